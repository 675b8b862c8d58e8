"""The API as a script or a notebook uses it: the page that describes it, then each function on records."""

from __future__ import annotations

import html
import re
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support.records import a_vocoder_record, make_record, make_timeline, renamed

import trainmark
from trainmark import api
from trainmark.launch import session
from trainmark.launch.options import PlanKeywords, RunKeywords, RunOptions
from trainmark.record.errors import SignalError
from trainmark.record.record import Doubt, Record
from trainmark.record.store import Store

PAGE = Path(__file__).parent.parent / "docs" / "api.md"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "store")


@pytest.mark.slow
def test_the_examples_of_the_page_do_what_they_say(
    store: Store, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    said: dict[str, Any] = {"pictures": pictures}
    for block in blocks:
        exec(block, said)
    out, err = capsys.readouterr()
    record: Record = said["record"]
    assert record.status == "valid"
    assert record.timeline.steps == 8
    assert record == said["same"]
    assert store.record(record.run_id).to_json() == record.to_json()
    assert said["newest"] == said["again"][0]
    assert {"init", "train", "end"} <= said["phases"]
    assert said["plan"].topology == "1x8"
    assert len(said["rows"]) == 2
    assert said["verdict"].metric == "p_core"
    assert Path("runs.html").read_text(encoding="utf-8") == said["page"]
    assert "| p_core" in said["table"]
    assert "setting 'widht' is not known; did you mean 'width'?" in out
    assert err == "", "run is quiet"


def test_all_that_is_named_is_there_and_everything_else_is_a_sentence() -> None:
    for name in trainmark.__all__:
        assert getattr(trainmark, name) is not None
    assert set(dir(trainmark)) == set(trainmark.__all__)
    with pytest.raises(AttributeError, match="module 'trainmark' has no attribute 'rnu'"):
        _ = trainmark.rnu


def test_the_function_report_is_not_hidden_by_the_room_of_its_name() -> None:
    from trainmark.view import table

    assert callable(trainmark.report)
    assert callable(table.render)


def test_run_and_plan_know_every_option_there_is() -> None:
    """One that is added to the command line later, too; with the type it has there."""
    several = {"workloads", "repeat", "sweep"}
    options = {field.name: field.type for field in fields(RunOptions) if field.name not in several}
    keywords = dict(RunKeywords.__annotations__)
    assert keywords.pop("set").__forward_arg__ == "Mapping[str, object] | None"
    assert keywords.pop("tags").__forward_arg__ == "Mapping[str, str] | None"
    assert {options.pop("settings"), options.pop("tags")} == {"tuple[str, ...]"}
    written = {name: kind.__forward_arg__.replace("Place", "str") for name, kind in keywords.items()}
    assert written == options
    assert PlanKeywords.__annotations__.keys() < RunKeywords.__annotations__.keys()
    with pytest.raises(TypeError, match="'repeat' is no option here; known: recipe, topology"):
        trainmark.run("resnet50", repeat=3)  # type: ignore[call-arg]


# Running


def a_result(monkeypatch: pytest.MonkeyPatch, **values: Any) -> list[RunOptions]:
    """Whatever is to run comes to this result; the options it was asked for with."""
    asked: list[RunOptions] = []

    def run(options: RunOptions, **_: Any) -> session.Result:
        asked.append(options)
        return session.Result(**values)

    monkeypatch.setattr(session, "run", run)
    return asked


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (2, trainmark.UsageError),
        (3, trainmark.NotReadyError),
        (4, trainmark.WorkloadError),
        (5, trainmark.InvalidResultError),
        (124, trainmark.HangError),
    ],
)
def test_a_run_that_fails_raises_its_sentence_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[trainmark.TrainmarkError]
) -> None:
    record = make_record(status="incomplete", ended="rank 1 was killed by SIGKILL")
    error = kind("rank 1 was killed by SIGKILL")
    a_result(monkeypatch, records=(record,), error=error, complaints=(str(error),))
    with pytest.raises(kind, match="rank 1 was killed by SIGKILL") as caught:
        trainmark.run("resnet50")
    assert caught.value.record is not None
    assert caught.value.record.run_id == record.run_id
    assert caught.value.exit_code == code


def test_an_interrupted_run_says_where_its_record_is(monkeypatch: pytest.MonkeyPatch) -> None:
    a_result(monkeypatch, records=(make_record(run_id="cut"),), error=SignalError("ended by SIGINT", 2))
    with pytest.raises(KeyboardInterrupt, match=r"trainmark\.load\('cut'\)"):
        trainmark.run("resnet50")


def test_settings_of_a_program_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = a_result(monkeypatch, records=(make_record(),))
    trainmark.run("vit", set={"width": 4, "compiled": True, "learning_rate": 0.5}, data=tmp_path, hosts="a,b")
    assert asked[0].settings == ("width=4", "compiled=yes", "learning_rate=0.5")
    assert asked[0].data == str(tmp_path)
    assert asked[0].to_argv()[0] == ("vit",)
    assert ("--set", "compiled=yes") in asked[0].to_argv()
    plan = trainmark.plan("resnet50", recipe="smoke", platform="cpu", set={"compiled": True})
    assert plan.recipe["compiled"] == "yes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "takes the name of one workload"),
        ({"workload": "resnet50", "resume": "last"}, "takes the name of one workload"),
        ({"workload": "resnet51"}, "did you mean 'resnet50'"),
        ({"workload": "resnet50", "steps": 3, "epochs": 1}, "--steps and --epochs are both limits of the run"),
        ({"workload": "resnet50", "max_restarts": -1}, "--max-restarts must be at least 0, not -1"),
    ],
)
def test_a_wrong_word_is_a_sentence(store: Store, words: dict[str, Any], said: str) -> None:
    with pytest.raises(trainmark.UsageError, match=said):
        trainmark.run(**words)
    assert trainmark.records() == []


def test_a_script_that_is_one_of_several_launchers_is_told_what_to_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NNODES": 2, "NODE_RANK": 0, "NPROC_PER_NODE": 1, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(f"PET_{name}", str(value))
    with pytest.raises(trainmark.UsageError, match="start 'trainmark run' in the job instead"):
        trainmark.run("resnet50", topology="2x1", platform="cpu", recipe="smoke")


@pytest.mark.slow
def test_a_watcher_that_fails_ends_the_run_and_its_record_is_kept(store: Store, pictures: Path) -> None:
    """From another thread, too, where no signal can be caught."""
    caught: list[BaseException] = []

    def fail(moment: trainmark.Moment) -> None:
        if moment.step:
            raise ZeroDivisionError("in the notebook")

    def go() -> None:
        try:
            words: dict[str, Any] = {"set": {"width": 4, "batch_per_device": 8}, "data": pictures, "seconds": 600}
            trainmark.run("resnet50", recipe="smoke", platform="cpu", watch=fail, **words)
        except ZeroDivisionError as error:
            caught.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join(120)
    assert [str(error) for error in caught] == ["in the notebook"]
    kept = trainmark.load("last")
    assert kept.status == "incomplete"
    assert kept.ended == "ended by ZeroDivisionError: in the notebook"


# Records


def test_a_record_shows_itself_as_the_command_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    record = api.PrintableRecord.of(make_record())
    assert repr(record) == "<Record 20261115-205100-resnet50-a1b2: resnet50 quick 1x1, valid>"
    assert "p_core" in str(record)
    assert "synthetic data, not the real set" in " ".join(str(record).split())
    both = trainmark.Records([record, a_vocoder_record()])
    assert "tacotron2" in str(both)
    assert both._repr_html_().startswith("<pre>")


HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_a_card_is_the_runs_own_style_and_words_and_no_script_whatever_its_names_are() -> None:
    made = make_record(
        run_id=HOSTILE,
        device=HOSTILE,
        ended=HOSTILE,
        quality=replace(make_record().quality, name=HOSTILE),
        doubts=(Doubt(code="x", text=HOSTILE),),
    )
    record = api.PrintableRecord.of(made)
    card = record._repr_html_()
    assert card.startswith('<iframe sandbox=""'), "the frame runs no script, and no rule of a notebook reaches into it"
    inside = html.unescape(card)
    assert "<script" not in inside and "<img" not in inside
    assert inside.count("</style>") == 1
    assert "&lt;script&gt;alert(1)" in inside
    assert HOSTILE not in trainmark.Records([record])._repr_html_()


def test_rows_are_flat_and_all_alike() -> None:
    vocoder = a_vocoder_record()
    odd = replace(vocoder, metrics={**vocoder.metrics, "newer": replace(vocoder.metrics["p_core"], value=3.0)})
    first, second = trainmark.Records([make_record(), odd]).to_rows()
    assert list(first) == list(second)
    assert all(isinstance(value, str | float | int | bool | None) for row in (first, second) for value in row.values())
    assert first["run_id"] == "20261115-205100-resnet50-a1b2"
    assert (first["host"], first["workload"], first["recipe"]) == ("node-a", "resnet50", "quick")
    assert (first["p_core_unit"], second["p_core_unit"]) == ("images/s", "mel frames/s")
    assert (first["newer"], second["newer"]) == (None, 3.0)
    assert trainmark.Records().to_rows() == []


def test_records_come_newest_first_and_a_damaged_file_is_warned_of(store: Store) -> None:
    store.add(make_record())
    store.add(a_vocoder_record())
    assert [record.plan.workload for record in trainmark.records()] == ["tacotron2", "resnet50"]
    assert [record.plan.workload for record in trainmark.records(workload="resnet50")] == ["resnet50"]
    assert len(trainmark.records(store.folder, limit=1)) == 1
    store.path("broken").write_text("{")
    with pytest.warns(UserWarning, match="broken"):
        assert len(trainmark.records()) == 2


def test_a_record_is_loaded_by_its_id_a_file_or_as_the_newest(store: Store, tmp_path: Path) -> None:
    store.add(make_record())
    file = tmp_path / "mine.json"
    file.write_text(a_vocoder_record().dumps())
    assert trainmark.load().plan.workload == "resnet50"
    assert trainmark.load("a1b2") == trainmark.load("last", store=store.folder)
    assert trainmark.load(file).plan.workload == "tacotron2"
    with pytest.raises(trainmark.UsageError, match="no run 'nothing' in the store"):
        trainmark.load("nothing")


# Verdicts


def a_run(name: str, compute_ms: float) -> Record:
    return renamed(make_record(timeline=make_timeline(compute_ms=compute_ms)), name)


@pytest.mark.parametrize(("compute_ms", "word"), [(500, "faster"), (2000, "slower"), (1000, "inconclusive")])
def test_a_verdict_is_a_word_a_ratio_and_what_they_rest_on(compute_ms: float, word: str) -> None:
    verdict = trainmark.compare(a_run("a", 1000), a_run("b", compute_ms), threshold=0.01)
    assert verdict.word == word
    assert verdict.ratio == pytest.approx(1000 / compute_ms, rel=0.01)
    assert verdict.interval is not None
    assert verdict.interval[0] < verdict.ratio < verdict.interval[1]
    assert "The interval rests on the steps of one run each" in verdict.why
    assert ("would decide" in verdict.why or "would not decide" in verdict.why) is (word == "inconclusive")
    assert f"{word.capitalize()}: B's p_core is" in str(verdict)


def test_repeats_words_and_published_rows_are_compared(store: Store) -> None:
    first, *rest = (a_run(name, 1000 + step) for step, name in enumerate(["a1", "a2", "b1", "b2"]))
    for record in (first, *rest):
        store.add(record)
    assert trainmark.compare([first, rest[0]], rest[1:]).word == "same"
    assert trainmark.compare("a1,a2", "b1").metric == "p_core"
    beside = trainmark.compare("published:flagperf-a100-resnet50-1x1", "b1", anyway=True)
    assert (beside.word, beside.interval) == ("slower", None)
    assert "A published figure has neither steps nor repeats" in beside.why
    assert beside.differences


def test_what_cannot_be_compared_is_a_sentence() -> None:
    with pytest.raises(trainmark.UsageError, match="are not alike"):
        trainmark.compare(make_record(), a_vocoder_record())
    with pytest.raises(trainmark.UsageError, match=r"from 0 to below 1, not 3; 0\.03 is 3 %"):
        trainmark.compare(a_run("a", 1000), a_run("b", 1000), threshold=3)


# Reports


def test_a_report_is_text_in_the_format_asked_for(store: Store, tmp_path: Path) -> None:
    record = make_record()
    with pytest.raises(trainmark.UsageError, match="no records to report on"):
        trainmark.report()
    store.add(record)
    assert trainmark.report().startswith("<!doctype html>")
    assert trainmark.report("last", format="csv").startswith("kind,run_id")
    assert "node-a" not in trainmark.report(record, format="json", publish=True)
    assert trainmark.report([record], path=tmp_path / "page.html", language="zh") == (tmp_path / "page.html").read_text(
        encoding="utf-8"
    )
    with pytest.raises(trainmark.UsageError, match="format 'htlm' is not known; did you mean 'html'"):
        trainmark.report(record, format="htlm")
