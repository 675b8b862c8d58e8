from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path

import pytest

from trainmark.analysis import clusters, published_library as library
from trainmark.analysis.peaks import estimate_mfu
from trainmark.analysis.published_library import load_rows
from trainmark.analysis.scaling import find_published_scalings
from trainmark.cli.main import main
from trainmark.record.errors import UsageError
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.view.published_table import render
from trainmark.workloads import names

FOLDER = Path(library.__file__).parent


def find_row(name: str) -> PublishedRow:
    return next(row for row in load_rows() if row.name == f"published:{name}")


def test_the_figures_are_those_of_the_pages() -> None:
    resnet = find_row("flagperf-a100-resnet50-1x8-fp32-bs256")
    assert (resnet.e2e_time_s, resnet.p_whole, resnet.p_train, resnet.p_core) == (22653, 5663, 5866, 6105)
    assert (resnet.fix_hp, resnet.quality, resnet.target, resnet.mem_used_gib) == ("bs=256,lr=0.8", 73.5, 75.5, 28.3)
    vit = find_row("flagperf-a100-vit-1x1-fp32-bs256")
    assert (vit.p_whole, vit.p_train, vit.p_core, vit.mem_used_gib) == (700, 1144, 1151, 29.4)
    assert find_row("flagperf-a100-vit-1x8-fp32").quality == 80.024
    speech = find_row("flagperf-a100-tacotron2-2x8-tf32-bs128")
    assert (speech.p_whole, speech.p_train, speech.p_core, speech.item) == (484402, 512004, 558171, "mel frames")
    assert find_row("deepspark-bi-v100-tacotron2-1x8-amp-bs128").quality == 4.46
    assert find_row("dle-a100-resnet50-1x8-amp").p_train == 16621
    a800 = find_row("flagperf-a800-llama8b-1x8-bf16")
    assert (a800.p_train, a800.item, a800.mem_used_gib, a800.better) == (8 * 3698.7, "tokens", 76.0, "lower")
    azure = next(row for row in library.load_rows("mlperf-resnet") if row.topology == "8x8" and "azure" in row.name)
    assert (azure.p_train, azure.batch_per_device, azure.item) == (0.127288, 51, "epochs")
    race = find_row("modded-nanogpt-h100-record2-gpt124m-1x8-amp-bf16")
    assert (race.e2e_time_s, race.quality, race.target, race.fix_hp) == (1884, 3.276, 3.28, "/")


def test_what_a_page_leaves_out_is_none_and_never_0() -> None:
    silent = find_row("flagperf-r300-vit-1x8-fp32-bs128")
    assert silent.p_whole is silent.p_train is silent.p_core is silent.e2e_time_s is None
    for row in load_rows():
        for field in fields(row):
            value = getattr(row, field.name)
            assert value != 0, f"{row.name}: {field.name}"
            assert value != "", f"{row.name}: {field.name}"


def test_every_row_is_whole_enough_to_stand_beside_a_run() -> None:
    assert len(load_rows()) == 61
    assert len({row.name for row in load_rows()}) == 61
    for row in load_rows():
        assert row.name.startswith("published:")
        assert row.topology == str(Topology.parse(row.topology))
        assert row.topology in row.name
        assert row.precision in row.name
        assert row.workload in row.name
        assert row.source.address.startswith("https://")
        assert (row.quality_name is None) == (row.target is None) == (row.better is None)
        if row.p_whole and row.p_train and row.p_core:
            assert row.p_whole <= row.p_train <= row.p_core


def test_every_source_is_used() -> None:
    with (FOLDER / "published_sources.csv").open(encoding="utf-8", newline="") as stream:
        titles = {entry["title"] for entry in csv.DictReader(stream)}
    assert {row.source.title for row in load_rows()} == titles


def test_rows_are_found_by_workload() -> None:
    assert {row.workload for row in load_rows("vit")} == {"vit"}
    assert len(load_rows("vit")) == 6
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        load_rows("resnet5")


@pytest.mark.parametrize("width", [60, 120])
def test_the_table_shows_every_row_and_its_page_at_any_width(width: int) -> None:
    shown = render(load_rows(), width=width)
    for row in load_rows():
        assert row.name.removeprefix("published:") in shown
        assert row.source.address in shown
    assert "11 874" in shown
    assert "— not published" in shown
    assert "FPS 9.2" in shown


def test_a_rows_mfu_is_its_flops_over_the_peak_of_all_its_devices() -> None:
    found = {row.name.removeprefix("published:"): estimate_mfu(row) for row in load_rows()}
    assert found["flagperf-a100-resnet50-1x8-fp32"] == pytest.approx(100 * 4659 * 24.3e9 / (8 * 19.5e12))
    assert found["dle-a100-resnet50-1x1-tf32"] == pytest.approx(100 * 938 * 24.3e9 / 156e12)  # it has no p_core
    assert found["flagperf-c500-resnet50-1x8-fp32"] is None  # nor any throughput


def test_an_mfu_above_100_is_said_to_be_about_the_label() -> None:
    above = [row.name for row in load_rows() if (estimate_mfu(row) or 0) > 100]
    assert above == [row.name for row in load_rows("vit") if row.p_core]
    assert "what ran is not what the label says" in " ".join(render(load_rows("vit"), width=120).split())
    assert "what ran is not" not in " ".join(render(load_rows("tacotron2"), width=120).split())


def test_every_row_of_the_clusters_is_in_the_library_once() -> None:
    rows = library.load_other_rows()
    left_out = len(clusters.load_table()) - len(rows)
    assert 0 < left_out < 50, "those of pages that stand in the library with their quality"
    assert len({row.name for row in (*library.load_rows(), *rows)}) == len(library.load_rows()) + len(rows)
    assert all(row.source.address.startswith("https://github.com/") and row.source.title for row in rows)
    assert all(row.has_figures for row in rows)


def test_rows_of_other_trainings_do_not_stand_among_those_trainmark_trains() -> None:
    assert {row.workload for row in library.load_rows()} <= set(names())
    assert not {row.workload for row in library.load_other_rows()} & set(names())
    assert {"mlperf-resnet", "bert_hf", "gpt2"} <= set(library.list_workloads())


def test_published_tables_of_any_training_are_scaled_by(capsys: pytest.CaptureFixture[str]) -> None:
    found = find_published_scalings(library.load_rows("mlperf-bert"))
    assert found and all(0.3 < (point.efficiency["p_train"] or 0) < 1.3 for one in found for point in one.points)
    assert main(["published", "mlperf-bert"]) == 0
    assert "training_results_v" in capsys.readouterr().out
    assert main(["published"]) == 0
    assert "mlperf-resnet" in capsys.readouterr().err
