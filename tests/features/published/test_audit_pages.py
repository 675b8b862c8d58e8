"""An audit of published pages finds by itself what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmark import workloads
from trainmark.analysis import published_library as library
from trainmark.analysis.peaks import find_card
from trainmark.analysis.published_library import PageStatement, PublishedPage
from trainmark.features.published.audit import audit, group_by_source
from trainmark.features.published.read import read_page
from trainmark.record.checks import CheckResult
from trainmark.record.published_row import PublishedDetail, PublishedRow
from trainmark.record.workload_facts import derive_facts
from trainmark.view.audit_screen import render


def find_results(page: PublishedPage, code: str | None = None) -> list[CheckResult]:
    return [finding for entry in audit(page).checks for finding in entry.findings if code in (None, finding.name)]


def check(page: PublishedPage, code: str) -> CheckResult:
    return next(entry for entry in audit(page).checks if entry.name == code)


def find_page(title: str) -> PublishedPage:
    return next(page for page in group_by_source(library.load_rows()) if page.title == title)


VIT, RESNET = find_page("FlagPerf: ViT on NVIDIA"), find_page("FlagPerf: ResNet-50 on NVIDIA")
SPEECH = find_page("FlagPerf: Tacotron2 on NVIDIA")
HONEST = replace(
    VIT.rows[0],
    name="honest-1x8",
    precision="amp",
    e2e_time_s=73258.0,
    p_whole=7000.0,
    p_train=7300.0,
    p_core=7400.0,
    mem_used_gib=30.0,
)


def page(*rows: PublishedRow, **changes: Any) -> PublishedPage:
    return PublishedPage(title="a page", rows=rows, **changes)


def test_an_honest_row_passes_and_what_could_not_be_looked_at_is_said() -> None:
    checked = audit(page(replace(HONEST, e2e_time_s=54_000.0))).checks
    assert not any(entry.findings for entry in checked)
    assert all(entry.sentence for entry in checked if entry.verdict == "unknown")


def test_what_a_tacotron2_page_calls_samples_can_only_be_mel_frames() -> None:
    assert "only be mel frames" in find_results(SPEECH, "item")[0].sentence
    said = (PageStatement(place="table 1", quantity="throughput", word="p_core", unit="samples/s"),)
    [finding] = find_results(replace(SPEECH, said=said), "item")
    assert finding.verdict == "doubt"
    assert "samples/s" in finding.sentence
    slow = tuple(replace(row, p_whole=60.0, p_train=62.0, p_core=64.0) for row in SPEECH.rows)
    assert not find_results(replace(SPEECH, rows=slow), "item")


def test_a_page_that_names_its_result_a_loss_and_an_accuracy_is_wrong() -> None:
    said = (
        PageStatement(place="table 1", quantity="quality", word="val_loss"),
        PageStatement(place="table 2", quantity="quality", word="final_acc1", value=80.024),
    )
    [finding] = find_results(replace(VIT, said=said), "quality-named-once")
    assert finding.verdict == "failed"
    assert "val_loss (table 1), final_acc1 (table 2)" in finding.evidence
    alike = (
        PageStatement(place="a", quantity="quality", word="acc"),
        PageStatement(place="b", quantity="quality", word="top1 acc"),
    )
    assert not find_results(replace(VIT, said=alike), "quality-named-once")


def test_two_throughputs_of_one_run_without_a_unit_are_found() -> None:
    fast = replace(HONEST, line=65, details=(PublishedDetail(name="Performance", text="77", value=77.0),))
    slow = replace(HONEST, line=61, details=(PublishedDetail(name="FPS", text="9.2", value=9.2),))
    [finding] = find_results(page(slow, fast), "one-throughput")
    assert "FPS 9.2 (line 61), Performance 77 (line 65)" in finding.evidence
    assert "neither has a unit" in finding.sentence
    assert find_results(page(replace(slow, details=(*slow.details, *fast.details))), "one-throughput")
    for other in (
        {"topology": "1x1"},
        {"precision": "fp32"},
        {"precision": "unknown"},
        {"fix_hp": "bs=512"},
        {"quality": 1.0},
    ):
        assert not find_results(page(slow, replace(fast, **other)), "one-throughput"), other
    said = (PageStatement(place="table 1", quantity="throughput", word="FPS", value=9.2),)
    [units] = find_results(page(HONEST, said=said), "units")
    assert "no unit of throughput" in units.sentence


def test_a_unit_in_the_word_or_the_cell_is_a_unit_and_a_word_without_figures_needs_none() -> None:
    words = (
        PageStatement(place="table 1", quantity="throughput", word="token/p/s", value=908.0),
        PageStatement(place="table 2", quantity="throughput", word="FPS", unit="images/s", value=9.2),
        PageStatement(place="table 3", quantity="time", word="e2e_time"),
    )
    assert not find_results(page(replace(HONEST, e2e_time_s=None), said=words, was_read=True), "units")
    assert find_results(page(HONEST, said=words, was_read=True), "units")


def test_a_table_may_give_a_loss_and_an_accuracy_beside_each_other() -> None:
    both = tuple(PageStatement(place="table 2, line 5", quantity="quality", word=word) for word in ("loss", "acc"))
    assert not find_results(replace(VIT, said=both), "quality-named-once")
    above = PageStatement(place="table 1, line 2", quantity="quality", word="acc")
    assert not find_results(replace(VIT, said=(above, *both)), "quality-named-once")


def read_table(*lines: str, accelerator: str = "", data: str = "", model: str = "mobilenetv2") -> PublishedPage:
    """A page that was read, as people write them."""
    told = f"- 加速卡型号: {accelerator}\n\n" if accelerator else ""
    metrics = f"| 指标名称 | 指标值 | 特殊说明 |\n|---|---|---|\n| 模型 | {model} | |\n| 数据集 | {data} | |\n"
    images = "| 总吞吐量 | p_whole | 实际训练图片数除以总时间 |\n\n"
    return read_page(
        told + metrics + images + "\n".join((lines[0], "|" + "---|" * (lines[0].count("|") - 1), *lines[1:])),
        name="p.md",
    )


HEADS = "| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem |"


def test_words_that_count_other_devices_than_their_bracket_are_wrong() -> None:
    page = read_table(HEADS, "| BI-V100单机8卡（1x1） | fp32 | bs=256 | / | 624 | 632 | 633 | / | 21.4/32.0 |")
    [finding] = find_results(page, "configuration")
    assert finding.verdict == "failed"
    assert "its words say 1x8 and its bracket 1x1" in finding.sentence
    honest = "| BI-V100两机16卡（2x8） | fp32 | / | / | 624 | 632 | 633 | / | 21.4/32.0 |"
    assert check(read_table(HEADS, honest), "configuration").verdict == "ok"


def test_rows_of_another_makers_card_than_their_page_are_found_by_name_and_by_memory() -> None:
    foreign = "| A100单机8卡（1x8） | fp32 | bs=16 | / | | | | 0.64 | 25.5/64.0 |"
    page = read_table(HEADS, foreign, accelerator="曦云®C500 64G")
    [device], [memory] = find_results(page, "page-device"), find_results(page, "card-memory")
    assert "A100 in the table, 曦云®C500 64G above it" in device.evidence
    assert "64 GiB, A100 has 40 or 80" in memory.evidence
    own = "| C500单机8卡（1x8） | fp32 | bs=16 | / | | | | 0.64 | 25.5/64.0 |"
    assert not find_results(read_table(HEADS, own, accelerator="曦云®C500 64G"), "page-device")
    both = read_table(HEADS, own, foreign, accelerator="曦云®C500 64G")
    assert not find_results(both, "page-device"), "a row of another card beside its own is there to compare with"


def test_items_that_grow_with_the_cards_are_counted_once_a_card() -> None:
    def rows(*products: tuple[str, float, float]) -> PublishedPage:
        lines = [
            f"| A100单机（{topology}） | fp32 | bs=1 | {time:g} | {rate:g} | {rate:g} | {rate:g} | / | / |"
            for topology, time, rate in products
        ]
        return read_table(HEADS, *lines)

    [finding] = find_results(rows(("1x1", 1000, 100), ("1x8", 1000, 800), ("2x8", 1010, 1600)), "samples-once")
    assert "grow 8 and 16 times" in finding.sentence
    assert not find_results(rows(("1x1", 8000, 100), ("1x8", 1000, 800), ("2x8", 510, 1600)), "samples-once")
    assert not find_results(rows(("1x1", 1000, 100), ("1x8", 500, 800)), "samples-once")


@pytest.mark.parametrize(
    ("rate", "share", "size", "verdict"),
    [
        (3713, "50%", "sail_7b", "ok"),
        (3713, "0.5", "sail_7b", "ok"),
        (3713, "16.7%", "sail_7b", "ok"),  # frozen weights: the forward pass alone
        (3713, "7%", "sail_7b", "doubt"),
        (29700, "50%", "sail_7b", "doubt"),
        (3713, "50%", "sail", "unknown"),
    ],
)
def test_tokens_are_held_against_mfu(rate: float, share: str, size: str, verdict: str) -> None:
    page = read_table(
        "| 配置 | precision | parallel | token/p/s | MFU |",
        f"| A100单机8卡（1x8） | bf16 | TP2PP1DP4 | {rate} | {share} |",
        model=size,
    )
    assert check(page, "tokens-mfu").verdict == verdict
    assert check(page, "parallel").verdict == "ok"


def test_tokens_of_a_whole_machine_are_found_where_the_card_is_not_known() -> None:
    page = read_table(
        "| 配置 | precision | parallel | token/p/s | MFU |",
        "| BI150单机8卡（1x8） | bf16 | PP2DP4EP4TP2 | 20106.0 | 7.98% |",
        model="mixtral_8x7B",
    )
    assert "no card is known" in find_results(page, "tokens-mfu")[0].sentence
    assert "PP2DP4EP4TP2 is 16 ranks, 1x8 is 8 devices" in find_results(page, "parallel")[0].evidence


def test_epochs_are_reckoned_for_any_model_on_a_set_that_is_known() -> None:
    def epochs(time: float, data: str = "ImageNet2012") -> CheckResult:
        row = f"| A100单机8卡（1x8） | fp32 | bs=256 | {time:g} | 4390 | 4543 | 4625 | 61.9% | 21/40 |"
        return check(read_table(HEADS, row, data=data), "epochs")

    assert epochs(87_559).verdict == "ok"
    assert "0.3 epochs" in epochs(87.5).findings[0].evidence
    assert "counted more than once" in epochs(875_590).findings[0].sentence
    assert epochs(87_559, "COCO").verdict == "unknown"
    [beyond] = find_results(page(replace(HONEST, e2e_time_s=73_258.0)), "epochs")
    assert "400.3 epochs" in beyond.evidence and beyond.verdict == "doubt"


def test_scaling_is_compared_within_one_recipe_and_six_points_are_no_collapse() -> None:
    def rows(alone: str, many: str) -> PublishedPage:
        return read_table(HEADS, f"| A100单机单卡（1x1） | fp32 | {alone} |", f"| A100单机8卡（1x8） | fp32 | {many} |")

    honest = rows("bs=16 | / | 26 | 27 | 45 | / | 33/40", "bs=16 | / | 187 | 199 | 298 | / | 38/40")
    assert not find_results(honest, "scaling")
    collapse = rows("bs=16 | / | 20 | 44 | 45 | / | 33/40", "bs=16 | / | 157 | 190 | 200 | / | 38/40")
    assert "collapses" in find_results(collapse, "scaling")[0].sentence
    for alone, many in (("/", "bs=64"), ("bs=8", "bs=64")):
        other = rows(f"{alone} | / | 26 | 27 | 30 | / | /", f"{many} | / | 600 | 610 | 620 | / | /")
        assert check(other, "scaling").verdict == "unknown", "rows of unlike batch are not one training"


def test_an_evaluation_that_does_not_get_faster_explains_its_share() -> None:
    alone = replace(HONEST, name="alone", topology="1x1", p_whole=90.0, p_train=100.0, p_core=100.0)
    amdahl = replace(HONEST, name="many", p_whole=424.0, p_train=800.0, p_core=800.0)  # 10 % of one is 47 % of eight
    assert not find_results(page(alone, amdahl), "shares")
    assert find_results(page(alone, replace(amdahl, p_whole=200.0)), "shares")
    assert find_results(page(replace(alone, p_whole=60.0), replace(amdahl, p_whole=790.0)), "shares")


def test_a_page_without_figures_is_no_pass() -> None:
    empty = read_table(HEADS, "| A100单机8卡（1x8） | fp32 | / | / | / | / | / | / | / |")
    for nothing in (empty, read_page("# nothing here", name="p.md")):
        assert audit(nothing).empty
        assert {entry.verdict for entry in audit(nothing).checks if entry.name != "read"} == {"unknown"}
    assert not audit(page(HONEST)).empty


def test_only_a_page_that_was_read_whole_is_said_to_be() -> None:
    assert check(page(HONEST), "read").verdict == "unknown"
    whole = "| A100单机8卡（1x8） | fp32 | bs=16 | / | 4 | 5 | 6 | 0.64 | 25.5/40.0 |"
    assert check(read_table(HEADS, whole), "read").verdict == "ok"
    assert check(read_table(HEADS, whole.replace("0.64", "soon")), "read").verdict == "note"


def test_pages_of_one_title_are_not_put_together() -> None:
    rows = [replace(HONEST, source=replace(HONEST.source, title="README", address=name)) for name in ("a.md", "b.md")]
    assert [len(entry.rows) for entry in group_by_source(rows)] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"p_train": 6000.0}, "throughput-order"),
        ({"p_core": -1.0}, "possible-values"),
        ({"quality": 101.0}, "possible-values"),
        ({"topology": "8 cards"}, "possible-values"),
        ({"mem_used_gib": 0.0}, "possible-values"),
        ({"mem_used_gib": 43.0}, "memory-fits"),
        ({"p_core": 100_000.0}, "mfu"),
    ],
)
def test_what_cannot_be_is_wrong(changes: dict[str, Any], code: str) -> None:
    [finding, *_] = find_results(page(replace(HONEST, **changes)), code)
    assert finding.verdict == "failed"


def test_more_devices_that_are_each_faster_than_one_are_found() -> None:
    alone = replace(HONEST, name="alone", topology="1x1", p_whole=800.0, p_train=820.0, p_core=830.0)
    assert {finding.verdict for finding in find_results(page(alone, HONEST), "scaling")} == {"doubt"}
    slower = replace(alone, p_whole=400.0, p_train=410.0, p_core=420.0)
    assert {finding.verdict for finding in find_results(page(slower, HONEST), "scaling")} == {"failed"}


@pytest.mark.parametrize("name", ["A100-SXM4-40GB", "NVIDIA_A100-SXM4-40GB", "nvidia A100", "A100-80GB"])
def test_a_device_is_known_by_the_words_of_its_name(name: str) -> None:
    known = find_card(name)
    assert known and known.tflops["tf32"] == 156
    assert known.memory_gib == (None if name == "nvidia A100" else 80 if "80" in name else 40), "there are two sizes"


@pytest.mark.parametrize("name", ["V100", "H100", "R300"])
def test_a_name_that_several_cards_have_is_none_of_them(name: str) -> None:
    assert find_card(name) is None


@pytest.mark.parametrize("name", workloads.names())
def test_what_is_known_of_a_training_is_what_is_trained(name: str) -> None:
    workload = workloads.load(name)
    known, derived = workloads.facts(name), derive_facts(workload)
    assert known == derived
    assert known and known.reference and known.name == workload.name == name
    reference = workload.recipes["reference"]
    assert {field: getattr(reference, field) for field in known.reference.recipe} == known.reference.recipe
    assert known.reference.global_batch == workload.reference_global_batch
    assert (known.item, known.data_set, known.quality.target) == (workload.item, workload.data_set, workload.target)
    assert set(known.recipes) == set(workload.recipes)
    one = [1.0] if name == "segmenter" else 1.0  # its sums are vectors, with a place for each class
    sums = {**dict.fromkeys(workload.sums, one), "samples": 2.0}
    assert [quality.name for quality in known.qualities] == list(workload.quality(sums))


def test_the_page_about_audits_shows_what_is_printed() -> None:
    audits = list(map(audit, group_by_source(library.load_rows())))
    shown = (Path(__file__).parents[3] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert render(audits, width=110) in shown, "paste what 'COLUMNS=110 trainmark audit published' prints"


def test_an_opinion_above_the_public_listening_test_of_the_model_is_doubtful() -> None:
    def opinions(score: float, workload: str = "tacotron2") -> list[str]:
        scored = replace(SPEECH.rows[0], workload=workload, quality_name="MOS", quality=score)
        return [finding.sentence for finding in find_results(page(scored), "opinion")]

    (said,) = opinions(4.46)
    assert "above the public listening test" in said and "no published code computes it" in said
    assert opinions(4.05) == opinions(4.46, workload="another") == []
