"""An audit of published pages finds by itself what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainmark import workloads
from trainmark.analysis.peaks import card, family
from trainmark.published import library
from trainmark.published.audit import audit_page, by_source
from trainmark.published.page import PublishedPage, Said
from trainmark.report.audit_screen import render
from trainmark.spec.audit import Audit
from trainmark.spec.checks import CheckResult
from trainmark.spec.published_row import PublishedRow
from trainmark.spec.workload_facts import derive


def found(page: PublishedPage, code: str | None = None) -> list[CheckResult]:
    return [finding for entry in audit_page(page) for finding in entry.findings if code in (None, finding.name)]


def check(page: PublishedPage, code: str) -> CheckResult:
    return next(entry for entry in audit_page(page) if entry.name == code)


def page_of(title: str) -> PublishedPage:
    return next(page for page in by_source(library.rows()) if page.title == title)


VIT, RESNET = page_of("FlagPerf: ViT on NVIDIA"), page_of("FlagPerf: ResNet-50 on NVIDIA")
SPEECH = page_of("FlagPerf: Tacotron2 on NVIDIA")
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
    checked = audit_page(page(replace(HONEST, e2e_time_s=54_000.0)))
    assert not any(entry.findings for entry in checked)
    assert all(entry.sentence for entry in checked if entry.verdict == "unknown")


def test_vit_rows_labelled_fp32_ran_in_something_narrower() -> None:
    findings = found(VIT, "mfu")
    assert [finding.verdict for finding in findings] == ["failed"] * 3
    alone = next(finding for finding in findings if "1x1" in finding.subject)
    assert "121 TFLOP/s" in alone.evidence
    assert "621 % of fp32" in alone.evidence
    assert "consistent with fp16 or bf16" in alone.sentence


def test_resnet_rows_at_the_edge_of_fp32_are_consistent_with_tf32() -> None:
    findings = found(RESNET, "mfu")
    assert len(findings) == 4
    assert {finding.verdict for finding in findings} == {"doubt"}
    assert all("consistent with tf32" in finding.sentence for finding in findings)


def test_the_vit_row_whose_evaluation_takes_ten_times_the_share_is_named() -> None:
    [finding] = found(VIT, "shares")
    assert "1x1" in finding.subject
    assert "39 %" in finding.evidence
    assert "4 %" in finding.evidence
    assert "timer missed the wait for the device" in finding.sentence


def test_vit_scaling_that_collapses_by_one_throughput_only_is_found() -> None:
    finding = next(finding for finding in found(VIT, "scaling") if "1x8" in finding.subject)
    assert "0.91 by p_whole" in finding.evidence
    assert "0.59 by p_core" in finding.evidence


def test_resnet_rows_that_missed_their_target_at_the_cap_are_found() -> None:
    missed = {finding.subject: finding for finding in found(RESNET, "target")}
    for name, value in (("1x8-fp32", "75"), ("1x8-fp32-bs256", "73.5")):
        finding = missed[f"published:flagperf-a100-resnet50-{name}"]
        assert f"acc {value} %, target 75.5 %" in finding.evidence
        assert "cap of 100" in finding.sentence
    assert [f"{finding.evidence.split()[-2]}" for finding in found(RESNET, "epochs")] == ["100.1", "100.1"]


def test_resnet_rows_of_two_recipes_are_not_one_scaling() -> None:
    [finding] = found(RESNET, "one-recipe")
    assert "batch 32, learning rate 0.1: 1x8" in finding.evidence
    assert "batch 256, learning rate 0.8" in finding.evidence
    assert not found(SPEECH, "one-recipe")  # its '/' stands for the batch and rate of the other rows


def test_what_a_tacotron2_page_calls_samples_can_only_be_mel_frames() -> None:
    assert "only be mel frames" in found(SPEECH, "item")[0].sentence
    said = (Said(place="table 1", quantity="throughput", word="p_core", unit="samples/s"),)
    [finding] = found(replace(SPEECH, said=said), "item")
    assert finding.verdict == "doubt"
    assert "samples/s" in finding.sentence
    slow = tuple(replace(row, p_whole=60.0, p_train=62.0, p_core=64.0) for row in SPEECH.rows)
    assert not found(replace(SPEECH, rows=slow), "item")


def test_a_val_loss_of_tacotron2_comes_with_what_it_depends_on() -> None:
    [finding] = found(SPEECH, "val-loss")
    assert "padding" in finding.sentence
    assert "dropout" in finding.sentence


def test_a_page_that_names_its_result_a_loss_and_an_accuracy_is_wrong() -> None:
    said = (
        Said(place="table 1", quantity="quality", word="val_loss"),
        Said(place="table 2", quantity="quality", word="final_acc1", value=80.024),
    )
    [finding] = found(replace(VIT, said=said), "quality-named-once")
    assert finding.verdict == "failed"
    assert "val_loss (table 1), final_acc1 (table 2)" in finding.evidence
    alike = (Said(place="a", quantity="quality", word="acc"), Said(place="b", quantity="quality", word="top1 acc"))
    assert not found(replace(VIT, said=alike), "quality-named-once")


def test_two_throughputs_of_one_run_without_a_unit_are_found() -> None:
    said = (
        Said(place="table 1", quantity="throughput", word="FPS", value=9.2),
        Said(place="table 2", quantity="throughput", word="Performance", value=77.0),
    )
    [finding] = found(page(HONEST, said=said), "one-throughput")
    assert "FPS 9.2" in finding.evidence
    assert "Performance 77" in finding.evidence
    assert "neither has a unit" in finding.sentence
    [units] = found(page(HONEST, said=said), "units")
    assert "no unit of throughput" in units.sentence


def test_p_whole_p_train_and_p_core_are_not_three_throughputs_of_a_kind() -> None:
    said = tuple(
        Said(place="table", quantity="throughput", word=word, unit="images/s", value=value)
        for word, value in (("p_whole", 1.0), ("p_train", 2.0), ("p_core", 3.0))
    )
    assert check(page(HONEST, said=said), "one-throughput").verdict == "ok"


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
    [finding, *_] = found(page(replace(HONEST, **changes)), code)
    assert finding.verdict == "failed"


def test_a_training_of_more_epochs_than_its_recipe_allows_is_doubtful() -> None:
    [finding] = found(page(replace(HONEST, e2e_time_s=73_258.0)), "epochs")
    assert "400.3 epochs" in finding.evidence
    assert finding.verdict == "doubt"


def test_more_devices_that_are_each_faster_than_one_are_found() -> None:
    alone = replace(HONEST, name="alone", topology="1x1", p_whole=800.0, p_train=820.0, p_core=830.0)
    assert {finding.verdict for finding in found(page(alone, HONEST), "scaling")} == {"doubt"}
    slower = replace(alone, p_whole=400.0, p_train=410.0, p_core=420.0)
    assert {finding.verdict for finding in found(page(slower, HONEST), "scaling")} == {"failed"}


def test_the_throughputs_of_the_deepspark_row_reach_the_reader_from_the_library_too() -> None:
    [finding] = found(page_of("DeepSparkHub: Tacotron2"), "remarks")
    assert "FPS 9.2 and Performance 77" in finding.sentence
    assert check(page_of("DeepSparkHub: Tacotron2"), "one-throughput").sentence


def test_devices_are_known_by_the_words_of_their_names() -> None:
    for name in ("A100-SXM4-40GB", "NVIDIA_A100-SXM4-40GB", "nvidia A100", "A100-80GB"):
        known = card(name)
        assert known and known.tflops["tf32"] == 156, name
    one_of_several = card("A100")
    assert one_of_several and one_of_several.memory_gib is None  # there are two sizes of it
    assert card("A100-SXM4-40GB").memory_gib == 40  # type: ignore[union-attr]
    assert card("V100") is None  # its two kinds differ
    assert card("H100") is None
    assert card("H100-SXM5-80GB").tflops["fp32"] == 67  # type: ignore[union-attr]
    assert card("BI-V100").tflops["fp32"] == 37  # type: ignore[union-attr]
    assert card("R300") is None
    assert [family(label) for label in ("fp32", "AMP", "amp-bf16", "tf32", "int3")] == [
        "fp32",
        "fp16",
        "bf16",
        "tf32",
        None,
    ]


@pytest.mark.parametrize("name", workloads.names())
def test_what_is_known_of_a_training_is_what_is_trained(name: str) -> None:
    workload = workloads.load(name)
    known, derived = workloads.facts(name), derive(workload)
    assert known is derived
    assert known and known.reference and known.name == workload.name == name
    reference = workload.recipes["reference"]
    assert {field: getattr(reference, field) for field in known.reference.recipe} == known.reference.recipe
    assert known.reference.global_batch == workload.reference_global_batch
    assert (known.item, known.data_set, known.quality.target) == (workload.item, workload.data_set, workload.target)
    assert set(known.recipes) == set(workload.recipes)
    sums = {**dict.fromkeys(workload.sums, 1.0), "samples": 2.0}
    assert [quality.name for quality in known.qualities] == list(workload.quality(sums))


def test_the_page_about_audits_shows_what_is_printed() -> None:
    audits = [Audit(title=page.title, checks=audit_page(page)) for page in by_source(library.rows())]
    shown = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert render(audits, width=110) in shown, "paste what 'COLUMNS=110 trainmark audit published' prints"
