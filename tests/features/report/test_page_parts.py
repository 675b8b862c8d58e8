"""What the page is made of holds without a browser: escaping, axes, thinning, files, size, colours."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support import shown
from support.records import doubt, in_environment, make_record, make_timeline

from trainmark.analysis import published_library as library
from trainmark.features.report.artifacts import (
    ALL_BYTES,
    MAX_BYTES,
    MAX_LATER,
    ByteBudget,
    draw_artifacts,
    draw_samples,
)
from trainmark.features.report.run_page import ReportInputs, render
from trainmark.record.audit import conclude, doubtful
from trainmark.record.doubts import collect_doubts
from trainmark.record.language import translator
from trainmark.record.machine import Artifact
from trainmark.record.published_row import Source
from trainmark.record.record import Evaluation, Quality
from trainmark.record.sample import NetworkUsed, SampleDocument, SpeechScore, SpeechScores
from trainmark.view import chart, facts, frame, table
from trainmark.view.describe import describe
from trainmark.view.element import el, join_markup

PACKAGE = Path(frame.__file__).parent
SAY = translator("en")


@given(st.text())
def test_no_text_becomes_markup(text: str) -> None:
    shown_text = el("p", text, title=text)
    assert re.fullmatch(r'<p title="[^"<>]*">[^<>]*</p>', shown_text)


def test_markup_joined_with_text_is_escaped_again() -> None:
    bold = el("b", "x")
    assert join_markup(["a ", bold]) == "a <b>x</b>"
    assert "&lt;b&gt;" in join_markup("a " + bold)
    assert type("a " + bold) is str


def test_only_the_builder_makes_markup() -> None:
    for path in PACKAGE.glob("*.py"):
        if path.name == "element.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "Markup", path.name
                assert node.func.id != "raw" or path.name in ("card.py", "frame.py"), path.name  # our own style


@given(st.lists(st.floats(-1e9, 1e9, allow_nan=False), min_size=1, max_size=50))
def test_an_axis_holds_all_its_values(values: list[float]) -> None:
    found = chart.linear_axis(values)
    assert all(-1e-9 <= found.share(value) <= 1 + 1e-9 for value in values)
    assert 2 <= len(found.ticks) <= 13


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=50))
def test_a_logarithmic_axis_holds_all_its_values_and_has_marks(values: list[float]) -> None:
    found = chart.log_axis(values)
    assert all(0 <= found.share(value) <= 1 for value in values)
    assert found.ticks
    assert len(found.ticks) <= 8


def test_a_thinned_series_keeps_every_spike() -> None:
    points = [(float(step), 1.0) for step in range(100_000)]
    points[12_345] = (12_345.0, 9.0)
    points[54_321] = (54_321.0, 0.1)
    thin = chart.thin_points(points, 360)
    assert len(thin) <= 720
    assert {points[12_345], points[54_321]} <= set(thin)
    assert thin == sorted(thin)


def test_the_waterfall_leads_from_all_time_to_computing() -> None:
    record = make_record()
    found = facts.split_time(record)
    assert [step.name for step in found if step.kind == "total"] == ["e2e_time", "p_whole", "p_train", "p_core"]
    assert sum(step.ns for step in found if step.kind == "phase") + found[-1].ns == found[0].ns
    items = record.timeline.items
    for step in found[1:]:
        if step.kind == "total":
            value = record.metrics[step.name].value
            assert value is not None
            assert items / (step.ns / 1e9) == pytest.approx(value)


def test_a_record_may_not_name_files_outside_its_folder(tmp_path: Path) -> None:
    folder = shown.leave_files(tmp_path / "run")
    (tmp_path / "secret.png").write_bytes(shown.a_picture())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "text.png").write_text("not a picture")
    (folder / "large.wav").write_bytes(b"RIFF" + b"\0" * MAX_BYTES)
    (folder / "sub.png").mkdir()
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png", "text.png", "large.wav", "gone.png",
                 "sub.png", "\0.png"):  # fmt: skip
        drawn = draw_artifacts([Artifact(file=name, caption="x")], folder, ByteBudget(), SAY)
        assert drawn is not None
        assert "data:" not in drawn, name
        assert "Not in this page" in drawn
    inside = draw_artifacts([Artifact(file="alignment.png", caption="x")], folder, ByteBudget(), SAY)
    assert inside is not None
    assert "data:image/png" in inside


def test_all_files_of_a_page_share_one_room(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "sample.wav").write_bytes(b"RIFF" + b"\0" * (MAX_BYTES - 100))
    room = ByteBudget()
    artifacts = [Artifact(file="sample.wav", caption=str(index)) for index in range(4)]
    drawn = draw_artifacts(artifacts, folder, room, SAY)
    assert drawn is not None
    assert drawn.count("data:audio/wav") == ALL_BYTES // (MAX_BYTES - 96) == 1


@pytest.mark.slow
def test_ten_long_runs_with_their_sounds_are_below_a_megabyte(tmp_path: Path) -> None:
    folder = shown.leave_files(tmp_path / "run")
    records = [shown.a_voice(f"voice-{index}") for index in range(4)]
    records += [shown.resnet(f"eight-{index}", "1x8") for index in range(2)]
    records += [shown.resnet(f"one-{index}") for index in range(4)]
    html = render(
        ReportInputs(
            records=tuple(records),
            rows=library.load_rows(),
            beside=library.load_rows(),
            folders={record.run_id: folder for record in records},
        )
    )
    assert len(html.encode()) < 1_000_000


def test_the_page_names_no_address_outside() -> None:
    html = render(ReportInputs(records=(shown.on_a_laptop(),), rows=library.load_rows(), beside=library.load_rows()))
    addresses = re.findall(r'\s(?:src|href|action|srcset|poster)="([^"]*)"', html)
    assert addresses
    sources = {row.source.address for row in library.load_rows()}
    assert all(address.startswith(("#", "data:")) or address in sources for address in addresses)
    # a reader may go to a source; nothing is ever fetched from one
    links = re.findall(r'<a href="http[^"]*" rel="noreferrer"[^>]*>', html)
    assert links and len(links) == sum(address.startswith("http") for address in addresses)
    assert "http" not in re.sub(r"<a href=[^>]*>|http-equiv", "", html)
    assert "@import" not in html
    assert "url(" not in html


def test_a_small_network_is_not_set_beside_the_published_one() -> None:
    small = make_record(environment={"flops": {"per_item": 1.0e7}})
    html = render(ReportInputs(records=(small,), beside=library.load_rows()))
    assert "beside published" not in html


def test_published_dots_lead_to_their_pages_and_an_address_that_is_none_is_not_made_one() -> None:
    row = dataclasses.replace(
        library.load_rows("resnet50")[2], source=Source(title="a page", address="javascript:alert(1)", date=None)
    )
    html = render(ReportInputs(records=(shown.on_a_laptop(),), beside=(*library.load_rows("resnet50"), row)))
    assert "javascript:" not in html and "<span>a page</span>" in html
    assert re.search(r'<a href="https://github.com/FlagOpen[^"]*" rel="noreferrer" data-tip="A100[^"]*"><circle', html)


def test_published_rows_say_which_throughput_they_give_and_how_many_times_ours_it_is() -> None:
    laptop = shown.on_a_laptop()
    plan = dataclasses.replace(laptop.plan, recipe={**laptop.plan.recipe, "implementation": "fast"})
    fast = dataclasses.replace(laptop, plan=plan)
    html = render(ReportInputs(records=(fast,), beside=library.load_rows("resnet50")))
    figure = html.partition("beside published ones")[2].partition("</section>")[0]
    rows = [re.sub("<[^>]+>", " ", row).split() for row in re.findall(r"<tr.*?</tr>", figure)]
    (sheet,) = [row for row in rows if row[:4] == ["A100-80GB", "1x1", "·", "tf32"]]
    assert sheet[-4:] == ["938", "p_train", "220", "[1]"]
    (doubted,) = [row for row in rows if "799" in row]
    assert "doubtful by the audit mfu 99.6 % of the fp32 peak" in " ".join(doubted)
    assert doubted[-3:] == ["p_core", "180", "[2]"]
    (own,) = [row for row in rows if "Laptop" in row]
    assert own[-2:] == ["p_core", "1.0"] and "hand-written gradients" in " ".join(own)


def test_no_setting_of_a_recipe_is_broken_inside() -> None:
    record = make_record(plan={"recipe": {"target": 90.0, "learning_rate": 0.003125}})
    html = render(ReportInputs(records=(record,)))
    assert '<span class="whole">lr=0.003125,</span>' in html
    assert re.search(r"\.whole \{[^}]*white-space: nowrap", (PACKAGE / "style.css").read_text(encoding="utf-8"))


def test_no_name_of_a_rule_is_drawn_over_a_line() -> None:
    html = render(ReportInputs(records=(shown.resnet("one"),)))
    plots = re.findall(r'<svg [^>]*class="plot">.*?</svg>', html)
    assert plots and not any("<text" in plot for plot in plots)
    assert re.search(r"median \d\S* m?s</span>", html) and "target ≥ 75.5 %</span>" in html


def test_the_summary_says_what_the_audit_found() -> None:
    record = make_record()
    for count, words in ((1, "doubtful"), (2, "doubtful +1")):
        failed = conclude("x", "a claim", (doubtful("1", "bad", "look"),), "s")
        assert f">{words}</span></td>" in render(
            ReportInputs(records=(record,), checks={record.run_id: (failed,) * count})
        )


def test_a_chinese_page_tells_a_doubt_once_and_why_a_run_ended_in_chinese() -> None:
    found = doubt("small-batch", batch=32, all_data=False, reference=256)
    record = make_record(doubts=(found,), ended="the time asked for is over")
    html = render(ReportInputs(records=(record,), language="zh"))
    card = html.partition("结果可信吗")[2].partition("</section>")[0]
    assert "<li>全局批量 32，小于参考训练配置的 256</li>" in card and "要求的时间已到" in card
    assert "global batch" not in html and "the time asked for" not in html


def test_a_step_that_stood_still_and_a_sleep_are_told_by_table_show_and_page() -> None:
    timeline = make_timeline()
    compute_ns = list(timeline.slowest.compute_ns)
    compute_ns[30] = 30 * max(compute_ns)
    (trace,) = timeline.ranks
    stopped = dataclasses.replace(timeline, ranks=(dataclasses.replace(trace, compute_ns=compute_ns),))
    record = in_environment(make_record(timeline=stopped), suspended_s=45.0)
    doubted = dataclasses.replace(record, doubts=tuple(collect_doubts(record, reference_global_batch=32)))
    for view in (table.render([doubted]), describe(doubted), render(ReportInputs(records=(doubted,)))):
        text = " ".join(view.split())
        assert re.search(r"step 31 took [\d.]+ s, \d+ times the median: [^;]*; it is in p_core, and in p_whole", text)
        assert "the machine slept for 45 s during the run" in text


def test_a_page_of_nothing_but_published_rows_can_be_made() -> None:
    html = render(ReportInputs(records=(), rows=library.load_rows("vit")))
    assert "A100" in html


def test_a_record_without_steps_or_numbers_can_be_shown() -> None:
    empty = make_record(
        timeline=make_timeline(steps=0, warmup_steps=0), metrics={}, loss=(), status="incomplete", environment={}
    )
    html = render(ReportInputs(records=(empty,)))
    assert "incomplete" in html


def _colors(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def _light(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_light(one), _light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_text_and_lines_can_be_told_from_their_ground_in_both_themes(theme: int) -> None:
    style = (PACKAGE / "style.css").read_text(encoding="utf-8")
    colors = _colors(re.findall(r"color-scheme: (?:light|dark);(.*?)\n *\}", style, re.DOTALL)[theme])
    for text, ground in [
        *((text, ground) for text in ("ink", "soft", "accent", "good", "fair", "bad") for ground in ("ground", "card")),
        *((name, f"{name}-ground") for name in ("good", "fair", "bad")),
        ("soft", "faint"),
        ("card", "accent"),
    ]:
        assert _contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    for index in range(8):
        assert _contrast(colors[f"c{index}"], colors["card"]) >= 3, index


def write_sample(folder: Path, name: str, text: str) -> None:
    """A sample as `trainmark sample` leaves one."""
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    network = NetworkUsed(
        workload="w", run_id="w-1", file="state.pt", sha256="ab" * 32, quality="loss", value=1.25, unit="nats"
    )
    left = (Artifact(file=f"{name}.txt", caption=f"caption {name}"),)
    rows = (SpeechScore(of="recordings", clips=4, seconds=33, predicted_mos=4.5, deviation=0.11, wer=0.037),)
    scores = SpeechScores(predictor="a predictor", recogniser="unavailable: why", rows=rows)
    document = SampleDocument(workload="w", input="x", networks=(network,), files=left, scores=scores)
    (folder / f"{name}.json").write_bytes(document.dumps())


def test_what_a_network_was_asked_to_show_later_is_shown_with_what_made_it(tmp_path: Path) -> None:
    assert draw_samples(None, ByteBudget(), SAY) is draw_samples(tmp_path, ByteBudget(), SAY) is None
    write_sample(tmp_path, "001", "<b>one</b>\n  two\n")
    (tmp_path / "002.json").write_text('{"kind": "something else"}')
    drawn = draw_samples(tmp_path, ByteBudget(), SAY)
    assert drawn is not None
    assert "<p>&lt;b&gt;one&lt;/b&gt;</p><p>  two</p>" in drawn
    cells = "<td>4.50 ± 0.11</td><td>3.7 %</td><td>4 clips, 33 s</td>"
    assert f'<th scope="row">recordings</th>{cells}' in drawn
    assert "not a listening test: a predictor; words by unavailable: why" in drawn
    assert "caption 001" in drawn and "Made by w-1, loss 1.25 (sha256 abababababab)" in drawn


def test_a_page_shows_the_newest_of_many_samples(tmp_path: Path) -> None:
    for number in range(MAX_LATER + 2):
        write_sample(tmp_path, f"{number:03d}", "text")
    drawn = draw_samples(tmp_path, ByteBudget(), SAY)
    assert drawn is not None and drawn.count("<figure>") == MAX_LATER
    assert "caption 001" not in drawn and f"caption {MAX_LATER + 1:03d}" in drawn


def test_all_that_the_last_evaluation_measured_stands_beside_the_quality() -> None:
    values = {"mIoU": 47.79, "one_class_mIoU": 8.9, "ceiling_mIoU": 88.7}
    history = (Evaluation(step=40, epoch=1.0, values=values, samples=80),)
    quality = Quality(name="mIoU", unit="%", goal=45.0, better="higher", value=47.79, reached=True, history=history)
    page = render(ReportInputs(records=(make_record(quality=quality),)))
    assert "evaluations; target ≥ 45 %. Beside it: one_class_mIoU 8.900, ceiling_mIoU 88.70." in page
