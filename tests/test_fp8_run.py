"""A run in eight bits by its command: its record says how much of it was so, and what cannot be so is refused."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Cli

from trainmark.data.text import make

SETTINGS = ("batch_per_device=4", "layers=2", "evaluate_every=end", "evaluate_first=no", "leave_sample=no")


def test_the_record_of_a_run_in_fp8_says_how_much_of_it_was(cli: Cli, tmp_path: Path) -> None:
    make.make(tmp_path / "set", lines=400)
    set_words = [word for setting in SETTINGS for word in ("--set", setting)]
    run = ("run", "gpt124m", "--recipe", "smoke", "--platform", "cpu", "--steps", "4", "--data", tmp_path / "set")
    ended = cli(*run, "--precision", "fp8", *set_words, "--json", "--quiet")
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)
    proof = record["environment"]["precision"]
    assert (proof["asked"], proof["ran"]) == ("fp8", "fp8")
    assert 0.75 < proof["scaled_share"] < 0.9
    doubts = {doubt["code"]: doubt["text"] for doubt in record["doubts"]}
    assert "no instructions for fp8" in doubts["emulated-precision"]
    assert "precision-differs" not in doubts
    assert f"{100 * proof['scaled_share']:.1f} % of the multiplications" in cli("show", "last", "--all").stdout
    audited = cli("audit", "last")
    assert audited.returncode == 0, audited.stdout


def test_what_cannot_be_computed_in_fp8_is_refused_before_it_starts(cli: Cli, pictures: Path) -> None:
    ended = cli("run", "resnet50", "--recipe", "smoke", "--platform", "cpu", "--precision", "fp8", "--data", pictures)
    assert ended.returncode == 2
    assert "fp8 has nothing to compute in this network" in ended.stderr
    ended = cli("run", "gpt124m", "--recipe", "smoke", "--platform", "apple", "--precision", "fp8")
    assert ended.returncode == 2
    assert "precision fp8 does not run on platform apple; it has fp32" in ended.stderr
