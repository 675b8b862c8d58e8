"""WaveNet: likelihood and network give known numbers, data is cut rightly, and it generates what it predicts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainmark.data import audio
from trainmark.data.ljspeech import make
from trainmark.data.mel import MEL
from trainmark.record.errors import UsageError
from trainmark.workloads.wavenet import generate, model, workload
from trainmark.workloads.wavenet.model import CONTEXT, NormedConv, WaveNet, WaveNetSizes
from trainmark.workloads.wavenet.workload import (
    RECIPES,
    WORKLOAD,
    SoundBatch,
    SoundData,
    WaveNetRecipe,
    Window,
    sizes_of,
)
from trainmark.workloads.workload import Progress, Share

REFERENCE = RECIPES["reference"]
SMOKE = RECIPES["smoke"]


SMALL = WaveNetSizes(layers=12, cycles=2)
TINY = WaveNetSizes(layers=4, cycles=2, residual=8, gate=16, skip=8, mixtures=2)
ALONE = Share(rank=0, world=1, local_ranks=1)


# Likelihood


def nats(outputs: list[float], sample: float, dtype: torch.dtype = torch.float64) -> float:
    found = model.nll(torch.tensor(outputs, dtype=dtype)[None, :, None], torch.tensor([[sample]], dtype=dtype))
    return found.item()


@pytest.mark.parametrize(
    ("outputs", "sample", "expected"),
    [
        ([0.0] * 30, 0.0, 11.7834868106),
        ([0, 0.1, -5], 0.1, 6.7834872380),
        ([0, 1, -0.2, 0.3, -4, -6], 0.2995, 6.1069065359),
        ([0, 0, -0.9, 0.5, -2, -3], -1.0, 1.8224202381),
        ([2, -1, 0.95, 0, -3, -1], 1.0, 1.3533252660),
        ([0, 0, -12], 1 / 65535, 0.7070760103),
        ([0, 0, -20], 0.0, 0.0),
        ([0, -0.5, -7], 0.5, 1100.0303042098),
    ],
    ids=["wide", "one", "two", "lowest", "highest", "a bin", "clamped", "far tail"],
)
def test_the_likelihood_of_a_sample_is_the_published_one_in_double_and_in_single_precision(
    outputs: list[float], sample: float, expected: float
) -> None:
    assert nats(outputs, sample) == pytest.approx(expected, abs=1e-9)
    assert nats(outputs, sample, torch.float32) == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_the_likelihoods_of_all_values_sum_to_one() -> None:
    values = torch.arange(65536, dtype=torch.float64) / 32767.5 - 1
    outputs = torch.tensor([0.3, -0.2, 0.1, -0.4, -3, -6], dtype=torch.float64)[None, :, None].expand(1, 6, 65536)
    # beyond 0.999 every value stands for all that are further out, so only those between are counted
    between = values.abs() <= model.EDGE
    total = (-model.nll(outputs, values[None])[0, between]).exp().sum()
    assert total == pytest.approx(1, abs=1e-6)


def test_draws_follow_the_distribution_they_are_drawn_from() -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.tensor([1.0, 0.0, -0.5, 0.5, -4.0, -3.0]).expand(20_000, 6)
    noise = generate.draw_noise(1, 20_000, 2, generator)
    drawn = generate.draw(outputs.numpy(), noise.gumbel[0].numpy(), noise.logistic[0].numpy())
    low = drawn[drawn < 0]
    assert len(low) / len(drawn) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.01)
    assert low.mean() == pytest.approx(-0.5, abs=0.002)
    assert low.std() == pytest.approx(math.exp(-4) * math.pi / math.sqrt(3), rel=0.03)


# Network


def mix_hash(count: int, tensor: int) -> Tensor:
    """Numbers from 0 to 1 that are the same everywhere: SplitMix64 of a position and a tensor's number."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(tensor * 1000003)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy(((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53)


def golden(sizes: WaveNetSizes) -> WaveNet:
    """A network with weights anybody can write down."""
    network, tensors = WaveNet(sizes).double(), iter(range(1000))
    layers = [
        conv for layer in network.layers for conv in (layer.conv, layer.conv1x1c, layer.conv1x1_out, layer.conv1x1_skip)
    ]
    convolutions = [network.first_conv, *layers, *network.last_conv_layers[1::2], network.upsample_net.conv_in]
    for conv in convolutions:
        weight = conv.weight_v if isinstance(conv, NormedConv) else conv.weight
        drawn = (math.sqrt(3 / weight[0].numel()) * (2 * mix_hash(weight.numel(), next(tensors)) - 1)).view_as(weight)
        with torch.no_grad():
            weight.copy_(drawn)
            if isinstance(conv, NormedConv):
                conv.weight_g.copy_(drawn.flatten(1).norm(dim=1).view(-1, 1, 1))
            if conv.bias is not None:
                conv.bias.copy_(0.1 * (2 * mix_hash(conv.bias.numel(), next(tensors)) - 1))
    return network


@pytest.mark.parametrize(
    ("sizes", "parameters", "tensors", "total", "first", "later", "loss", "upsampled"),
    [
        (
            *(WaveNetSizes(), 3_720_932, 282, 2343.146331, (-0.029890, 0.063848, 0.122789)),
            *((-0.064833, 0.014908, 0.079471), 11.861983, (-1838.137147, -0.218630)),
        ),
        (
            *(SMALL, 1_886_948, 150, -1935.763996, (0.023261, -0.080889, -0.124154)),
            *((0.082871, 0.189621, -0.351458), 11.846993, (-8782.396288, 0.218787)),
        ),
    ],
    ids=["24 layers", "12 layers"],
)
def test_the_forward_pass_gives_the_golden_numbers(
    sizes: WaveNetSizes,
    parameters: int,
    tensors: int,
    total: float,
    first: Any,
    later: Any,
    loss: float,
    upsampled: Any,
) -> None:
    network = golden(sizes)
    assert sum(weight.numel() for weight in network.parameters()) == parameters
    assert len(network.state_dict()) == tensors
    time_s = torch.arange(1536, dtype=torch.float64) / 22050
    sound = 0.3 * torch.sin(2 * math.pi * 220 * time_s) + 0.1 * torch.sin(2 * math.pi * 1760 * time_s)
    mel = 2 * torch.sin(0.11 * torch.arange(800, dtype=torch.float64)).view(1, 80, 10)
    with torch.no_grad():
        found = network(sound[None], mel)
        up = network.upsample_net.upsample(network.upsample_net.conv_in(mel)[0])
    assert found.sum().item() == pytest.approx(total, abs=1e-5)
    assert found[0, :3, 0].tolist() == pytest.approx(first, abs=1e-6)
    assert found[0, [0, 10, 20], 1000].tolist() == pytest.approx(later, abs=1e-6)
    assert model.nll(found[:, :, :-1], sound[None, 1:]).mean().item() == pytest.approx(loss, abs=1e-6)
    assert (up.sum().item(), up[0, 0].item()) == pytest.approx(upsampled, abs=1e-5)


@pytest.mark.parametrize(("sizes", "reach"), [(WaveNetSizes(), 505), (SMALL, 253)], ids=["24 layers", "12 layers"])
def test_an_output_hears_exactly_the_receptive_field(sizes: WaveNetSizes, reach: int) -> None:
    assert sizes.receptive_field == reach
    network = golden(replace(sizes, residual=16, gate=32, skip=16, mixtures=2))
    sound = torch.zeros(1, 768, dtype=torch.float64, requires_grad=True)
    network(sound, torch.zeros(1, 80, 7, dtype=torch.float64))[0, :, 700].sum().backward()
    assert sound.grad is not None
    [heard] = sound.grad.nonzero(as_tuple=True)[1:]
    assert (heard.min().item(), heard.max().item()) == (700 - reach + 1, 700)


def test_parameters_have_the_names_of_the_public_layout() -> None:
    names = set(WaveNet(TINY).state_dict())
    assert {"first_conv.weight_g", "conv_layers.3.conv1x1c.weight_v", "last_conv_layers.3.bias"} <= names
    assert {"upsample_net.conv_in.weight", "upsample_net.upsample.up_layers.7.weight_v"} <= names
    assert "conv_layers.0.conv1x1c.bias" not in names


@pytest.mark.parametrize("frames", [2, 13], ids=["all edges", "long"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fast_gives_the_outputs_and_gradients_of_plain(frames: int, dtype: torch.dtype) -> None:
    network = golden(WaveNetSizes(layers=14, cycles=7, residual=6, gate=10, skip=4, mixtures=2)).to(dtype)
    draws = torch.Generator().manual_seed(5)
    mel = torch.randn(2, 80, frames + 4, dtype=dtype, generator=draws)
    sound = torch.randn(2, 256 * frames, dtype=dtype, generator=draws)
    wanted = torch.randn(2, 6, 256 * frames, dtype=dtype, generator=draws)
    found = []
    for network.plain in (False, True):
        outputs = network(sound, mel)
        network.zero_grad()
        (outputs * wanted).sum().backward()
        found.append({"outputs": outputs.detach(), **{name: of.grad for name, of in network.named_parameters()}})
    fast, plain = found
    # zeros too, as ranks exchange all; no two share memory
    assert len({tensor.data_ptr() for tensor in fast.values()}) == len(fast) == len(plain)
    for name, expected in plain.items():
        close = {} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3 * float(expected.abs().max()) + 1e-6}
        torch.testing.assert_close(fast[name], expected, **close, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.slow
def test_flops_are_those_of_the_products() -> None:
    assert WORKLOAD.flops_per_item(REFERENCE) == pytest.approx(WORKLOAD.facts.flops_per_item, rel=0.01)
    assert WORKLOAD.flops_per_item(replace(REFERENCE, layers=12, cycles=2)) == pytest.approx(9.6e6, rel=0.01)


@pytest.mark.parametrize(("layers", "cycles"), [(12, 13), (12, 5), (24, 1)])
def test_layers_that_make_no_cycles_are_refused_in_a_sentence(layers: int, cycles: int, speech: Path) -> None:
    with pytest.raises(UsageError, match=rf"layers={layers} in cycles={cycles}: every cycle"):
        WORKLOAD.check_data(replace(SMOKE, layers=layers, cycles=cycles), speech, 1)


# Data and recipe


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "set"
    make.make(folder, clips=18)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path_factory.getbasetemp() / "wavenet-cache"))


def open_data(speech: Path, share: Share = ALONE, **changes: Any) -> SoundData:
    recipe = replace(SMOKE, **{"batch_per_device": 4, "window": 2048, "eval_window": 2048, **changes})
    return SoundData(recipe, speech, share, 0, sizes_of(recipe))


def test_a_stretch_is_cut_at_a_frame_with_the_mel_around_it(speech: Path) -> None:
    data = open_data(speech)
    batch = next(iter(data.train(0, 0)))
    assert batch.sound.shape == (4, 2049) and batch.mel.shape == (4, 80, 8 + 2 * CONTEXT)
    clips = [torch.from_numpy(audio.read(clip.path)) for clip in data.training.clips]
    for sound in batch.sound:
        places = [
            (clip, first)
            for clip in clips
            for first in range(0, len(clip) - 2048, MEL.hop)
            if torch.equal(clip[first : first + 2049], sound[: len(clip[first : first + 2049])])
        ]
        assert places, "a stretch that is no part of any clip, or does not begin at a frame"
    assert WORKLOAD.items(batch) == int(batch.judged.sum()) == 4 * 2048


def test_an_epoch_goes_on_where_it_was_left_and_another_cuts_elsewhere(speech: Path) -> None:
    data = open_data(speech)
    whole = list(data.train(1, 0))
    assert len(whole) == data.steps_per_epoch
    assert torch.equal(next(iter(data.train(1, 2))).sound, whole[2].sound)
    assert not torch.equal(next(iter(data.train(2, 0))).sound, whole[0].sound)
    assert data.items_per_step == pytest.approx(np.mean([WORKLOAD.items(batch) for batch in whole]), rel=0.01)


def score(data: SoundData, network: WaveNet) -> dict[str, float]:
    sums = {"nll": 0.0, "judged": 0.0}
    with torch.no_grad():
        for batch in data.evaluation():
            for name, value in WORKLOAD.score(network, batch).items():
                sums[name] += float(value)
    return sums


@pytest.mark.parametrize("eval_window", [2048, 0], ids=["a stretch", "whole clips"])
def test_every_clip_is_judged_once_by_all_ranks_together(speech: Path, eval_window: int) -> None:
    torch.manual_seed(0)
    network = WaveNet(TINY)
    alone = score(open_data(speech, eval_window=eval_window), network)
    parts = [
        score(open_data(speech, Share(rank=rank, world=2, local_ranks=2), eval_window=eval_window), network)
        for rank in (0, 1)
    ]
    for name, value in alone.items():
        assert value == pytest.approx(sum(part[name] for part in parts), rel=1e-5)
    clips = open_data(speech).val.clips
    judged = sum(min(audio.length(clip.path), eval_window or 10**9) for clip in clips)
    # the first sample of a whole clip follows nothing
    assert alone["judged"] == judged - (0 if eval_window else len(clips))


def test_a_stretch_is_judged_as_it_would_be_in_its_whole_clip(speech: Path) -> None:
    """The samples before it are heard, as far as the network hears."""
    torch.manual_seed(0)
    network, data = WaveNet(replace(SMALL, residual=4, gate=8, skip=4)), open_data(speech)
    there = int(data.val.frames[0])
    part, whole = (data.val.batch([0], [window], 1) for window in (data.scored_window(0), Window(first=0, count=there)))
    with torch.no_grad():
        of_part, of_whole = (
            model.nll(network(batch.sound[:, :-1], batch.mel), batch.sound[:, 1:])[0] for batch in (part, whole)
        )
    first = (there - 8) // 2 * MEL.hop
    torch.testing.assert_close(of_part[part.judged[0]], of_whole[first : first + 2048])


def test_a_gain_changes_no_quality(speech: Path) -> None:
    """Of a distribution that is as much narrower; here one whose scale the network's last bias gives."""

    class Fixed(nn.Module):
        def __init__(self, gain: float) -> None:
            super().__init__()
            self.log_scale = -4 + math.log(gain)

        def forward(self, sound: Tensor, mel: Tensor) -> Tensor:
            return torch.tensor([0.0, 0.0, self.log_scale])[None, :, None].expand(len(sound), 3, sound.shape[1])

    found = [
        WORKLOAD.quality(score(open_data(speech, gain=gain), Fixed(gain)))["val_nll"]  # type: ignore[arg-type]
        for gain in (1.0, 0.5)
    ]
    assert found[0] == pytest.approx(found[1], abs=2e-3)


def test_the_learning_rate_rises_and_is_halved() -> None:
    recipe = replace(REFERENCE, warmup_steps=10, halve_every="100 steps")

    def rate(step: int, recipe: WaveNetRecipe = recipe) -> float:
        return WORKLOAD.learning_rate(recipe, Progress(step=step, epoch=0, planned_steps=1000, items_per_step=1))

    assert [rate(0), rate(9), rate(99), rate(100), rate(250)] == pytest.approx([1e-4, 1e-3, 1e-3, 5e-4, 2.5e-4])


def test_a_linear_predictor_is_as_good_as_its_noise_allows() -> None:
    """Of sound made by a linear recursion, nothing is left but the noise that drives it."""
    generator = np.random.default_rng(0)
    noise = generator.logistic(scale=0.01, size=20_000)
    sound = np.zeros_like(noise)
    for at in range(2, len(sound)):
        sound[at] = 1.6 * sound[at - 1] - 0.8 * sound[at - 2] + noise[at]
    weights = workload.fit_predictor([sound])
    assert weights[::-1][:3] == pytest.approx([1.6, -0.8, 0], abs=0.03)
    # the entropy of a logistic distribution is ln s + 2, and bins are 2/65535 wide
    expected = math.log(0.01) + 2 - math.log(2 / 65535)
    assert workload.predictor_nll(sound, weights).mean() == pytest.approx(expected, abs=0.02)


@pytest.mark.slow
def test_a_small_network_learns(speech: Path) -> None:
    torch.manual_seed(0)
    recipe = replace(SMOKE, channels=8, batch_per_device=4, window=2048, learning_rate=0.01)
    network = WORKLOAD.build(recipe)
    optimizer = WORKLOAD.optimizer(network.parameters(), recipe)
    data = SoundData(recipe, speech, ALONE, 0, sizes_of(recipe))
    losses = []
    for epoch in range(3):
        for batch in data.train(epoch, 0):
            loss = WORKLOAD.loss(network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[0] > 11 and losses[-1] < losses[0] - 1


def test_padding_teaches_nothing() -> None:
    torch.manual_seed(0)
    network = WaveNet(TINY)
    judged = torch.zeros(1, 1280, dtype=torch.bool)
    judged[0, :700] = True
    sound = torch.rand(1, 1281) - 0.5

    def loss(sound: Tensor) -> float:
        batch = SoundBatch(
            sound=sound,
            mel=torch.zeros(1, 80, 9),
            judged=judged,
            judged_on_host=(700,),
            gain=1.0,
            count=1,
            global_count=1,
        )
        return WORKLOAD.loss(network, batch).item()

    other = sound.clone()
    other[0, 701:] = 0
    assert loss(sound) == pytest.approx(loss(other), rel=1e-6)
