"""The library holds how FlagPerf's other cases and MLPerf's results scaled, each row with its source."""

from __future__ import annotations

import pytest

from trainmark.analysis import clusters, published_library as library
from trainmark.analysis.scaling import find_published_scalings
from trainmark.cli.main import main
from trainmark.workloads import names


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


def test_a_row_says_what_its_page_says() -> None:
    azure = next(row for row in library.load_rows("mlperf-resnet") if row.topology == "8x8" and "azure" in row.name)
    assert (azure.p_train, azure.batch_per_device, azure.item) == (0.127288, 51, "epochs")
    assert azure.source.title == "MLPerf Training 2.0: resnet by Azure"
    bert = next(row for row in library.load_rows("bert_hf") if row.vendor == "iluvatar" and row.topology == "1x1")
    assert (bert.p_core, bert.item, bert.device) == (10.1, "samples", "BI-V100")
    assert bert.source.address.endswith("/training/iluvatar/bert_hf-pytorch/README.md")
    (tokens,) = {row.details[0].unit for row in library.load_rows("qwen1.5_moe-megatron")}
    assert tokens == "tokens/s"


def test_published_tables_of_any_training_are_scaled_by(capsys: pytest.CaptureFixture[str]) -> None:
    found = find_published_scalings(library.load_rows("mlperf-bert"))
    assert found and all(0.3 < (point.efficiency["p_train"] or 0) < 1.3 for one in found for point in one.points)
    assert main(["scaling", "--published", "mlperf-bert"]) == 0
    assert "MLPerf Training" in capsys.readouterr().out
    assert main(["published", "mlperf-bert"]) == 0
    assert "training_results_v" in capsys.readouterr().out
    assert main(["published"]) == 0
    assert "mlperf-resnet" in capsys.readouterr().err
