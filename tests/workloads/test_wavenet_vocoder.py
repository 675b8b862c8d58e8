"""A trained WaveNet as a voice: two loops that make what the network predicts, stretches that join, mels it refuses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainmark import workloads
from trainmark.data.ljspeech import make
from trainmark.data.mel import MEL
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.record.atomic_files import sha256
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import from_values, to_values
from trainmark.workloads import weights
from trainmark.workloads.wavenet import batches, c_kernel, generate, logistics, vocoder
from trainmark.workloads.wavenet.model import CONTEXT, REACH, WaveNet, WaveNetSizes
from trainmark.workloads.wavenet.recipes import SMOKE, WaveNetRecipe, sizes_of
from trainmark.workloads.wavenet.workload import WORKLOAD
from trainmark.workloads.workload import Share

SMALL = WaveNetSizes(layers=6, cycles=2, residual=12, gate=24, skip=12, mixtures=3)
NEEDS_C = pytest.mark.skipif(not c_kernel.build().call, reason="there is no C compiler")


def network(sizes: WaveNetSizes = SMALL) -> WaveNet:
    torch.manual_seed(3)
    made = WaveNet(sizes)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("bias"):
                weight.uniform_(-0.2, 0.2)
    return made


def voice(net: WaveNet, gain: float = 1.0) -> vocoder.Vocoder:
    return vocoder.as_vocoder(net, gain)


@NEEDS_C
@pytest.mark.parametrize("stretches", [1, 3, 9], ids=["one", "a few", "many"])
def test_the_loop_in_c_makes_what_the_network_in_training_predicts(stretches: int) -> None:
    """Whatever it made before: each sample is what the network, having heard all those, gives by the same draws."""
    net, generator = network(), torch.Generator().manual_seed(7)
    mel = torch.randn(stretches, 80, 2 + 2 * CONTEXT, generator=generator)
    chance = generate.draw_uniform(2 * MEL.hop, stretches, 3, generator)
    sound = generate.generate(net, mel, chance, "c")
    with torch.no_grad():
        outputs = net(torch.cat([torch.zeros(stretches, 1), sound[:, :-1]], 1), mel)
    drawn = [logistics.draw(outputs[:, :, at], chance.which[at], chance.where[at]) for at in range(2 * MEL.hop)]
    torch.testing.assert_close(torch.stack(drawn, 1), sound, rtol=0, atol=2e-5)
    assert sound.std() > 0.01


@NEEDS_C
def test_the_loop_in_c_fits_the_published_sizes() -> None:
    net, generator = network(WaveNetSizes(layers=12, cycles=2)), torch.Generator().manual_seed(7)
    mel, chance = torch.randn(4, 80, 1 + 2 * CONTEXT, generator=generator), generate.draw_uniform(256, 4, 10, generator)
    torch.testing.assert_close(
        generate.generate(net, mel, chance, "c")[:, :32], generate.generate(net, mel, chance, "torch")[:, :32]
    )


@NEEDS_C
def test_the_loop_in_c_leaves_the_arithmetic_of_its_process_alone() -> None:
    """A library that was linked for fast mathematics has processors take tiny numbers for 0 from then on."""
    assert c_kernel.build().call
    assert sys.float_info.min / 2 > 0


def test_without_a_compiler_torch_speaks_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    c_kernel.build.cache_clear()
    try:
        made = vocoder.speak(voice(network()), [torch.full((80, 3), -5.0)])
    finally:
        c_kernel.build.cache_clear()
    assert (made.way, made.why) == ("torch", "there is no C compiler")
    assert [len(sound) for sound in made.sounds] == [3 * MEL.hop]


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no such target' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    c_kernel.build.cache_clear()
    try:
        assert c_kernel.build().reason == f"{compiler} refused: no such target"
    finally:
        c_kernel.build.cache_clear()


def mels(*frames: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(80, count, generator=generator) - 5 for count in frames]


@pytest.mark.slow
def test_mels_of_any_length_become_sound_of_as_many_frames() -> None:
    made = vocoder.speak(voice(network()), mels(1, 9, 129))
    assert [len(sound) // MEL.hop for sound in made.sounds] == [1, 9, 129]
    assert made.stretches == 4  # the last one was cut
    assert all(sound.isfinite().all() and sound.abs().max() <= 1 for sound in made.sounds)
    assert made.way == generate.choose_loop(network())


def test_a_long_mel_is_cut_where_it_is_quietest() -> None:
    [mel] = mels(140)
    mel[:, 65] = -11.0
    assert list(vocoder._cut_mel(mel)) == [(0, 65 + REACH), (65 - REACH, 140)]


def test_both_sides_of_a_cut_add_up_to_one() -> None:
    sound = torch.zeros(140 * MEL.hop)
    for first, last in ((0, 67), (63, 140)):
        vocoder._crossfade(sound, vocoder._Stretch(0, first, last), torch.ones((last - first) * MEL.hop))
    torch.testing.assert_close(sound, torch.ones_like(sound))


@pytest.mark.slow
def test_a_sentence_sounds_alike_in_any_company_and_otherwise_by_another_seed() -> None:
    speaker, (short, long) = voice(network()), mels(1, 2)
    alone, together = (vocoder.speak(speaker, given, way="torch").sounds[0] for given in ([short], [short, long]))
    torch.testing.assert_close(alone[:64], together[:64])
    other = vocoder.speak(speaker, [short], seed=1, way="torch").sounds[0]
    assert not torch.allclose(alone[:64], other[:64])


@pytest.mark.slow
def test_sound_is_given_back_at_its_own_loudness() -> None:
    net, [mel] = network(), mels(1)
    loud, quiet = (vocoder.speak(voice(net, gain), [mel], way="torch").sounds[0] for gain in (1.0, 0.5))
    torch.testing.assert_close((2 * loud).clamp(-1, 1), quiet)


# Files


def save_run(folder: Path, **changes: Any) -> Path:
    """A checkpoint as a run leaves it."""
    recipe = {**to_values(SMOKE), "layers": 4, "cycles": 2, "channels": 8}
    net = network(WaveNetSizes(layers=4, cycles=2, residual=8, gate=16, skip=8, mixtures=SMOKE.mixtures))
    document = {
        "stepper": {"model": net.state_dict()},
        "position": {"step": 40, "history": [{"values": {"val_nll": 6.5}}]},
        "made_by": {"workload": "wavenet", "recipe": recipe, "heard": dict(vocoder.MEL_SETTINGS)},
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(document, folder / "state.pt")
    return folder


def refuse(folder: Path) -> None:
    vocoder.refuse_other_mels(weights.read_document(folder), weights.weights_file(folder))


def test_a_network_trained_here_may_speak_and_by_its_average_of_weights(tmp_path: Path) -> None:
    net = network(WaveNetSizes(layers=4, cycles=2, residual=8, gate=16, skip=8, mixtures=SMOKE.mixtures))
    average = {name: 0 * weight for name, weight in net.named_parameters()}
    refuse(save_run(tmp_path, stepper={"model": net.state_dict(), "average": average}))
    assert not weights.read_weights(tmp_path)["first_conv.weight_v"].any()


HPARAMS = {"sample_rate": 22050, "hop_size": 256, "fft_size": 1024, "num_mels": 80, "fmin": 125, "fmax": 7600}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"made_by": None, "hparams": HPARAMS}, "other mels than Tacotron2 speaks: fmin 125 and not 0, fmax 7600"),
        (
            {"made_by": None, "config": {**HPARAMS, "fmin": 0, "fmax": 8000, "hop_size": 300}},
            "hop_size 300 and not 256",
        ),
        ({"made_by": None, "hparams": {**HPARAMS, "fmin": 0, "fmax": 8000}}, "does not say how the mels were scaled"),
        ({"made_by": None}, "does not say what mels its network hears"),
        ({"made_by": {"heard": {**vocoder.MEL_SETTINGS, "mel_mean": -4.0}}}, "mel_mean -4 and not -5.298"),
    ],
    ids=["other bands", "another hop", "another scale", "nothing said", "another mean"],
)
def test_weights_that_do_not_hear_tacotron2s_mels_are_refused_as_its_voice(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(NotReadyError, match=sentence):
        refuse(save_run(tmp_path, **changes))


def test_settings_in_a_file_beside_the_weights_count_too(tmp_path: Path) -> None:
    save_run(tmp_path, made_by=None)
    (tmp_path / "hparams.json").write_text(json.dumps(HPARAMS))
    with pytest.raises(NotReadyError, match="fmin 125 and not 0"):
        refuse(tmp_path)


def public_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As torch names the two parts of normed weights today."""
    parts = {"weight_g": "parametrizations.weight.original0", "weight_v": "parametrizations.weight.original1"}
    return {
        name.removesuffix(last) + parts.get(last, last): weight
        for name, weight in state.items()
        for last in (name.rpartition(".")[2],)
    }


@pytest.mark.parametrize("named", ["old", "new"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("average", [False, True], ids=["weights", "average"])
def test_training_may_begin_with_public_files_of_any_naming(
    named: str, wrapped: bool, average: bool, tmp_path: Path
) -> None:
    """As r9y9's and ESPnet's are: {state_dict, optimizer, global_step}, with weight norm of the older or newer kind."""
    torch.manual_seed(1)
    theirs, shadow = WaveNet(sizes_of(SMOKE)), WaveNet(sizes_of(SMOKE))

    def state(net: WaveNet) -> dict[str, Tensor]:
        found = net.state_dict() if named == "old" else public_names(net.state_dict())
        return {f"module.{name}": weight for name, weight in found.items()} if wrapped else dict(found)

    document = {"state_dict": state(theirs), "optimizer": {"state": {}, "param_groups": []}, "global_step": 1000}
    torch.save({**document, "hparams": HPARAMS, **({"ema": state(shadow)} if average else {})}, tmp_path / "public.pth")
    ours = WaveNet(sizes_of(SMOKE))
    weights.load_into(ours, weights.read_weights(tmp_path / "public.pth"), "public.pth")
    wanted = (shadow if average else theirs).state_dict()
    assert all(torch.equal(weight, wanted[name]) for name, weight in ours.state_dict().items())


# Mels of a network that reads


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught") / "set"
    make.make(folder, clips=9)
    return folder


@pytest.fixture
def teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a small network that makes mels of texts."""
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    workload: Any = workloads.load("tacotron2")
    widths = {"encoder_width": 16, "prenet_width": 8, "rnn_width": 16, "attention_width": 8, "postnet_width": 8}
    recipe = replace(workload.recipes["smoke"], **widths)
    torch.manual_seed(0)
    made_by = {"workload": "tacotron2", "recipe": to_values(recipe), "heard": {}}
    run = tmp_path / "runs" / "tacotron2-a1b2c3"
    (run / "checkpoints" / "step-000000001").mkdir(parents=True)
    document = {"stepper": {"model": workload.build(recipe).state_dict()}, "made_by": made_by}
    torch.save(document, run / "checkpoints" / "step-000000001" / "state.pt")
    return run


def plan_run(spoken: Path, run: str | Path, store: Path | None = None) -> Any:
    settings = (f"mels_from={run}", "window=512", "eval_window=512", "whole_set=false")
    options = RunOptions(workloads=("wavenet",), recipe="smoke", platform="cpu", data=str(spoken), settings=settings)
    options = replace(options, store=store and str(store))
    [plan] = planning.make_plans(options)
    return from_values(WaveNetRecipe, plan.recipe)


def test_a_vocoder_may_learn_from_the_mels_a_reading_network_makes_of_the_same_clips(
    spoken: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = plan_run(spoken, teacher)
    file = teacher / "checkpoints" / "step-000000001" / "state.pt"
    assert (recipe.mels_from, recipe.mels_from_sha256) == (str(file), sha256(file))
    assert recipe == plan_run(spoken, "a1b2c3", teacher.parent.parent)  # a run is known by its name, too
    WORKLOAD.check_data(recipe, spoken, 1)
    alone = Share(rank=0, world=1, local_ranks=1)
    data = WORKLOAD.open_data(recipe, spoken, alone, 0)
    plain = WORKLOAD.open_data(replace(recipe, mels_from="", mels_from_sha256=""), spoken, alone, 0)
    batch, true = (next(iter(source.evaluation())) for source in (data, plain))
    assert torch.equal(batch.sound, true.sound) and batch.mel.shape == true.mel.shape
    assert not torch.allclose(batch.mel, true.mel)
    for number in range(len(data.val)):  # one frame for each true one
        assert data.val.mel(number).shape == plain.val.mel(number).shape
    monkeypatch.setattr(batches, "open_teacher", None)  # what was made once is not made again
    again = next(iter(WORKLOAD.open_data(recipe, spoken, alone, 0).evaluation()))
    assert torch.equal(again.mel, batch.mel)


def test_a_network_that_makes_no_mels_is_refused_as_their_source(spoken: Path, tmp_path: Path) -> None:
    save_run(tmp_path / "run" / "checkpoints" / "step-000000001")
    with pytest.raises(NotReadyError, match="holds a network of wavenet, which makes no mels of texts"):
        WORKLOAD.check_data(plan_run(spoken, tmp_path / "run"), spoken, 1)
    with pytest.raises(NotReadyError, match=r"setting mels_from .* holds no checkpoint"):
        plan_run(spoken, spoken)
