"""`trainmark plan --flops` tells what a step takes, as a table and as a document that adds up."""

from __future__ import annotations

import json

import pytest

from trainmark.cli.main import main

SMOKE = ["plan", "gpt124m", "--recipe", "smoke", "--platform", "cpu", "--flops"]


def test_the_table_has_layers_cards_and_the_word_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMOKE, "--precision", "amp-bf16", "--card", "H100"]) == 0
    out = capsys.readouterr().out
    assert "model.layers.*.mlp" in out
    assert "H100 80GB HBM3" in out
    assert "A100" not in out
    assert "differs by 0.0 %" in " ".join(out.split())
    assert "bounds, not forecasts" in " ".join(out.split())


def test_the_document_has_every_operator_and_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMOKE, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["flops"] == document["stated_flops"]
    assert {row["part"] for row in document["operators"]} == {"forward", "backward", "update"}
    assert any(row["layer"] == "model.layers.0.mlp.up_proj" and row["flops"] for row in document["operators"])
    assert {"A100-SXM4-40GB", "MI300X"} <= {card["card"] for card in document["cards"]}
    assert document["waits"] == {}
