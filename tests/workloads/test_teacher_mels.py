"""WaveNet learns from the mels of a Tacotron2 run: one frame for each true one, made once, by built-in networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmark import workloads
from trainmark.data.ljspeech import make
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.record.atomic_files import sha256
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import from_values, to_values
from trainmark.workloads.wavenet.workload import WORKLOAD, SoundData, WaveNetRecipe
from trainmark.workloads.workload import Share

WIDTHS = {"encoder_width": 16, "prenet_width": 8, "rnn_width": 16, "attention_width": 8, "postnet_width": 8}
STEP = Path("checkpoints") / "step-000000001"


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    make.make(folder, clips=12)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))


def save_run(run: Path, name: str = "tacotron2", **made_by: Any) -> Path:
    """The folder of a run with one checkpoint."""
    workload: Any = workloads.load(name)
    recipe = replace(workload.recipes["smoke"], **(WIDTHS if name == "tacotron2" else {"channels": 8}))
    torch.manual_seed(0)
    document = {
        "stepper": {"model": workload.build(recipe).state_dict()},
        "made_by": {"workload": name, "recipe": to_values(recipe), "heard": {}, **made_by},
    }
    (run / STEP).mkdir(parents=True)
    torch.save(document, run / STEP / "state.pt")
    return run


def plan_recipe(speech: Path, run: str | Path, store: Path | None = None) -> WaveNetRecipe:
    settings = (f"mels_from={run}", "window=512", "eval_window=512", "whole_set=false")
    options = RunOptions(workloads=("wavenet",), recipe="smoke", platform="cpu", data=str(speech), settings=settings)
    [plan] = planning.make_plans(replace(options, store=store and str(store)))
    return from_values(WaveNetRecipe, plan.recipe)


def open_data(recipe: WaveNetRecipe, speech: Path, **share: int) -> SoundData:
    return WORKLOAD.open_data(recipe, speech, Share(**{"rank": 0, "world": 1, "local_ranks": 1, **share}), 0)


def test_a_vocoder_may_learn_from_the_mels_a_reading_network_makes_of_the_same_clips(
    speech: Path, tmp_path: Path
) -> None:
    run = save_run(tmp_path / "runs" / "tacotron2-a1b2c3")
    recipe = plan_recipe(speech, run)
    file = run / STEP / "state.pt"
    assert (recipe.mels_from, recipe.mels_from_sha256) == (str(file), sha256(file))
    assert recipe == plan_recipe(speech, "a1b2c3", tmp_path)  # a run is known by its name, too
    WORKLOAD.check_data(recipe, speech, 1)
    data, plain = (open_data(each, speech) for each in (recipe, replace(recipe, mels_from="", mels_from_sha256="")))
    batch, true = (next(iter(source.evaluation())) for source in (data, plain))
    assert torch.equal(batch.sound, true.sound) and batch.mel.shape == true.mel.shape
    assert not torch.allclose(batch.mel, true.mel)
    for taught, recorded in ((data.val, plain.val), (data.training, plain.training)):
        for number in range(len(taught)):  # one frame for each true one
            assert taught.mel(number).shape == recorded.mel(number).shape
    file.unlink()  # what was made once is not made again
    again = next(iter(open_data(recipe, speech).evaluation()))
    assert torch.equal(again.mel, batch.mel)


def test_every_rank_makes_the_same_mels(speech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = plan_recipe(speech, save_run(tmp_path / "run"))
    found = []
    for rank in range(2):
        monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / f"cache-{rank}"))
        sounds = open_data(recipe, speech, rank=rank, world=2, local_ranks=2).training
        found.append([torch.from_numpy(sounds.mel(number)) for number in range(len(sounds))])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_teacher_that_changed_since_planning_is_refused(speech: Path, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    recipe = plan_recipe(speech, run)
    torch.save({}, run / STEP / "state.pt")
    with pytest.raises(NotReadyError, match="was changed after the run was planned"):
        open_data(recipe, speech)
    (run / STEP / "state.pt").unlink()
    with pytest.raises(NotReadyError, match=r"setting mels_from .* is not there"):
        WORKLOAD.check_data(recipe, speech, 1)


def test_a_network_that_makes_no_mels_is_refused_as_their_source(speech: Path, tmp_path: Path) -> None:
    recipe = plan_recipe(speech, save_run(tmp_path / "run", "wavenet"))
    with pytest.raises(NotReadyError, match="holds a network of wavenet, which predicts no mels"):
        WORKLOAD.check_data(recipe, speech, 1)
    with pytest.raises(NotReadyError, match=r"setting mels_from .* holds no checkpoint"):
        plan_recipe(speech, speech)
    with pytest.raises(NotReadyError, match=r"setting mels_from .* is not there"):
        plan_recipe(speech, tmp_path / "nowhere")


@pytest.mark.parametrize(
    "made_by",
    [{"workload": "evil.py"}, {"workload": ["tacotron2"]}, {"recipe": []}, {"recipe": {"channels": 8}}],
    ids=["a file", "a list", "no recipe", "another recipe"],
)
def test_weights_that_do_not_name_their_workload_are_refused(
    speech: Path, tmp_path: Path, made_by: dict[str, Any]
) -> None:
    recipe = plan_recipe(speech, save_run(tmp_path / "run", **made_by))
    with pytest.raises(NotReadyError, match="does not say which built-in workload"):
        WORKLOAD.check_data(recipe, speech, 1)


def test_sizes_that_the_weights_do_not_have_are_refused_before_memory_is_allocated(
    speech: Path, tmp_path: Path
) -> None:
    values = to_values(replace(workloads.load("tacotron2").recipes["smoke"], **WIDTHS))
    recipe = plan_recipe(speech, save_run(tmp_path / "run", recipe={**values, "rnn_width": 2**24}))
    with pytest.raises(NotReadyError, match="does not fit the model"):
        WORKLOAD.check_data(recipe, speech, 1)
