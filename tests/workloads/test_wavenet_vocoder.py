"""A trained WaveNet as a voice: it makes what the network predicts, stretches join, other mels are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trainmark.data.mel import MEL
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import to_values
from trainmark.workloads import weights
from trainmark.workloads.wavenet import generate, vocoder
from trainmark.workloads.wavenet.model import CONTEXT, REACH, WaveNet, WaveNetSizes
from trainmark.workloads.wavenet.workload import SMOKE, sizes_of

SMALL = WaveNetSizes(layers=6, cycles=2, residual=12, gate=24, skip=12, mixtures=3)


def network(sizes: WaveNetSizes = SMALL) -> WaveNet:
    torch.manual_seed(3)
    made = WaveNet(sizes)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("bias"):
                weight.uniform_(-0.2, 0.2)
    return made


@pytest.mark.parametrize(
    ("sizes", "stretches"),
    [(SMALL, 1), (SMALL, 3), (WaveNetSizes(layers=12, cycles=2), 2)],
    ids=["one", "a few", "wide"],
)
def test_each_sample_is_what_the_network_in_training_predicts(sizes: WaveNetSizes, stretches: int) -> None:
    """Whatever it made before: each sample is what the network, having heard all those, gives by the same draws."""
    net, generator = network(sizes), torch.Generator().manual_seed(7)
    mel = torch.randn(stretches, 80, 2 + 2 * CONTEXT, generator=generator)
    noise = generate.draw_noise(2 * MEL.hop, stretches, sizes.mixtures, generator)
    sound = generate.generate(net, mel, noise)
    with torch.no_grad():
        outputs = net(torch.cat([torch.zeros(stretches, 1), sound[:, :-1]], 1), mel)
    chances = zip(outputs.numpy().transpose(2, 0, 1), noise.gumbel.numpy(), noise.logistic.numpy(), strict=True)
    drawn = np.stack([generate.draw(*chance) for chance in chances], 1)
    torch.testing.assert_close(torch.from_numpy(drawn), sound, rtol=0, atol=2e-5)
    assert sound.std() > 0.01


def mels(*frames: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(80, count, generator=generator) - 5 for count in frames]


@pytest.mark.slow
def test_mels_of_any_length_become_sound_of_as_many_frames() -> None:
    sounds = vocoder.speak(network(), mels(1, 9, 129))
    assert [len(sound) // MEL.hop for sound in sounds] == [1, 9, 129]
    assert all(sound.isfinite().all() and sound.abs().max() <= 1 for sound in sounds)


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
    speaker, (short, long) = network(), mels(1, 2)
    alone, together = (vocoder.speak(speaker, given)[0] for given in ([short], [short, long]))
    torch.testing.assert_close(alone[:64], together[:64])
    other = vocoder.speak(speaker, [short], seed=1)[0]
    assert not torch.allclose(alone[:64], other[:64])


@pytest.mark.slow
def test_sound_is_given_back_at_its_own_loudness() -> None:
    net, [mel] = network(), mels(1)
    loud, quiet = (vocoder.speak(net, [mel], gain=gain)[0] for gain in (1.0, 0.5))
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


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"made_by": None}, "does not say what mels its network hears"),
        ({"made_by": {"heard": {**vocoder.MEL_SETTINGS, "mel_mean": -4.0}}}, "mel_mean -4 and not -5.298"),
    ],
    ids=["nothing said", "another mean"],
)
def test_weights_that_do_not_hear_tacotron2s_mels_are_refused_as_its_voice(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(NotReadyError, match=sentence):
        refuse(save_run(tmp_path, **changes))


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
    torch.save({**document, **({"ema": state(shadow)} if average else {})}, tmp_path / "public.pth")
    ours = WaveNet(sizes_of(SMOKE))
    weights.load_into(ours, weights.read_weights(tmp_path / "public.pth"), "public.pth")
    wanted = (shadow if average else theirs).state_dict()
    assert all(torch.equal(weight, wanted[name]) for name, weight in ours.state_dict().items())
