"""WaveNet through the command line: what a short run's record, checkpoint and folder hold."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from conftest import Cli

from trainmark.data import audio
from trainmark.data.ljspeech import make
from trainmark.workloads import weights
from trainmark.workloads.wavenet import vocoder

SETTINGS = ("channels=8", "layers=4", "window=512", "eval_window=512", "average_decay=0.9")
TINY = [
    *("run", "wavenet", "--recipe", "smoke", "--platform", "cpu", "--quiet", "--json", "--steps", "4"),
    *(word for setting in (*SETTINGS, "evaluate_every=2 steps") for word in ("--set", setting)),
]
"""A network so small that a run is mostly start-up."""


def test_a_short_run_carries_its_bar_doubts_itself_and_leaves_a_voice(cli: Cli, tmp_path: Path) -> None:
    make.make(tmp_path / "set", clips=18)
    ended = cli(*TINY, "--data", tmp_path / "set")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    found = document["quality"]["history"][-1]["values"]["val_nll"]
    bar = document["data_facts"]["linear_nll"]
    assert 4 < bar < found
    doubts = {doubt["code"]: doubt["text"] for doubt in document["doubts"]}
    assert doubts["below-bar"].startswith(f"has not learnt: val_nll of {found:.2f} nats is above linear prediction")
    assert document["plan"]["recipe"]["average_decay"] == 0.9

    folder = tmp_path / "store" / "runs" / document["run_id"]
    assert audio.length(folder / "sample.wav") > audio.RATE / 4
    [file] = (folder / "checkpoints").glob("step-*/state.pt")
    kept = weights.read_document(file)
    vocoder.refuse_other_mels(kept, file)  # it may speak after Tacotron2
    assert kept["made_by"]["recipe"] == document["plan"]["recipe"]
    # it is the average over steps that was judged and speaks
    average, own = (kept["stepper"][name]["first_conv.weight_v"] for name in ("average", "model"))
    assert torch.equal(weights.read_weights(file)["first_conv.weight_v"], average)
    assert not torch.equal(average, own)
