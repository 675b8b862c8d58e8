"""The network against known numbers, and its training path against decoding step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train.setup import build_stepper
from trainmark.train.stepper import Stepper
from trainmark.workloads import weights
from trainmark.workloads.tacotron2 import matmuls, teacher_forcing
from trainmark.workloads.tacotron2.model import Outputs, Sizes, Tacotron2, mask_outputs
from trainmark.workloads.tacotron2.workload import RECIPES, WORKLOAD, SpeechBatch

SMOKE = RECIPES["smoke"]


SMALL = Sizes(encoder=32, prenet=24, attention_rnn=40, decoder_rnn=48, attention=16, location_filters=8, postnet=20)


def filled_with_waves(model: Tacotron2) -> Tacotron2:
    """Parameter k holds 0.02 sin(0.37 i + k): numbers anyone can write down again."""
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            i = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((0.02 * torch.sin(0.37 * i + k)).view(parameter.shape))
    return model


def use_plain(model: Tacotron2, plain: bool = True) -> Tacotron2:
    model.decoder.plain = plain
    return model


def some_batch(clips: int = 3, frames: int = 23, symbols: int = 17) -> tuple[Tensor, list[int], Tensor]:
    generator = torch.Generator().manual_seed(7)
    text = torch.randint(1, 148, (clips, symbols), generator=generator)
    lengths = [symbols - 5 * clip for clip in range(clips)]
    return text, lengths, torch.randn(frames, clips, 80, generator=generator)


def some_loss(outputs: Outputs) -> Tensor:
    """One that every output and every frame of it matters to, each differently."""
    weights = torch.linspace(0.5, 1.5, outputs.gate.shape[1])
    return (
        ((outputs.mel - 0.3).square() * weights).mean()
        + ((outputs.refined + 0.2).square() * weights).mean()
        + (torch.sigmoid(outputs.gate) * weights).mean()
    )


@pytest.fixture(params=["packed", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of product; chunks of the way back so small that there are several."""
    if request.param == "plain":
        monkeypatch.setattr(matmuls, "can_prepack", lambda dtype: False)
    monkeypatch.setattr(matmuls, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(teacher_forcing, "chunk_elements", lambda like: 3 * 5 * 160)
    return str(request.param)


def test_the_full_network_has_the_published_size() -> None:
    with torch.device("meta"):
        model = Tacotron2()
    assert sum(parameter.numel() for parameter in model.parameters()) == 28_193_153
    assert (len(list(model.parameters())), len(model.state_dict())) == (60, 84)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes["encoder.convolutions.2.0.conv.weight"] == (512, 512, 5)
    assert shapes["encoder.lstm.weight_hh_l0_reverse"] == (1024, 256)
    assert shapes["decoder.attention_rnn.weight_ih"] == (4096, 768)
    assert shapes["decoder.attention_layer.location_layer.location_conv.conv.weight"] == (32, 2, 31)
    assert shapes["decoder.decoder_rnn.weight_ih"] == (4096, 1536)
    assert shapes["decoder.gate_layer.linear_layer.weight"] == (1, 1536)
    assert shapes["postnet.convolutions.4.0.conv.weight"] == (80, 512, 5)


def test_the_forward_pass_gives_the_golden_numbers() -> None:
    model = filled_with_waves(Tacotron2()).eval()
    model.decoder.prenet.dropout = 0.0
    text = torch.zeros(2, 20, dtype=torch.long)
    text[0], text[1, :12] = torch.arange(38, 58), torch.arange(11, 23)
    target = (0.1 * torch.sin(0.11 * torch.arange(2 * 80 * 9, dtype=torch.float64))).view(2, 80, 9).float()
    ended = torch.zeros(2, 9)
    ended[0, 8:] = ended[1, 5:] = 1

    def loss(outputs: Outputs) -> float:
        gate = F.binary_cross_entropy_with_logits(outputs.gate, ended)
        return float(F.mse_loss(outputs.mel, target) + F.mse_loss(outputs.refined, target) + gate)

    with torch.no_grad():
        open_ = model(text, [20, 12], target.permute(2, 0, 1))
    closed = mask_outputs(open_, torch.tensor([9, 6]))
    close = {"rel": 1e-4, "abs": 1e-4}
    assert float(closed.mel.sum()) == pytest.approx(0.681382, **close)
    assert closed.mel[0, 0, :3].tolist() == pytest.approx([-0.082986, -0.11165, -0.125189], **close)
    assert float(closed.refined.sum()) == pytest.approx(-0.438212, **close)
    assert closed.refined[0, 0, :3].tolist() == pytest.approx([-0.070097, -0.098767, -0.11231], **close)
    assert float(closed.gate.sum()) == pytest.approx(3002.744031, rel=1e-6)
    assert closed.gate[0, :3].tolist() == pytest.approx([0.12458, 0.166449, 0.185917], **close)
    assert closed.alignment[0, 0, :3].tolist() == pytest.approx([0.050006, 0.050003, 0.050002], abs=1e-6)
    assert loss(closed) == pytest.approx(0.670257, abs=1e-5)
    assert loss(open_) == pytest.approx(0.775909, abs=1e-5)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fast_gives_the_outputs_and_all_60_gradients_of_plain(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    # in evaluation mode batch norm leaves the biases before it a gradient of their own to compare
    model = Tacotron2(SMALL, hidden_dropout=0.0).eval().to(dtype)
    model.decoder.prenet.dropout = 0.0
    relative, absolute = (1e-9, 1e-11) if dtype == torch.float64 else (1e-4, 1e-5)
    found: dict[bool, dict[str, Tensor]] = {}
    for plain in (False, True):
        use_plain(model, plain).zero_grad()
        outputs = model(*some_batch())
        looks = outputs.alignment.square() * torch.arange(outputs.alignment[0].numel()).view(23, 17)
        (some_loss(outputs) + looks.mean()).backward()
        found[plain] = {name: getattr(outputs, name).detach() for name in Outputs._fields[:4]}
        for name, weight in model.named_parameters():
            assert weight.grad is not None, name
            found[plain][name] = weight.grad
    assert len(found[True]) == 64
    for name, expected in found[True].items():
        scale = float(expected.abs().max())
        assert scale > 0, name
        torch.testing.assert_close(found[False][name], expected, rtol=relative, atol=absolute * scale, msg=name)


def test_a_pass_that_keeps_nothing_for_gradients_gives_the_same_numbers() -> None:
    torch.manual_seed(3)
    model = Tacotron2(SMALL).eval()
    model.decoder.prenet.dropout = 0.0
    expected = model(*some_batch())
    with torch.no_grad():
        found = model(*some_batch())
    for name in Outputs._fields[:4]:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_dropout_on_the_hidden_states_has_the_statistics_of_plain() -> None:
    """The draws come in another order, so means and spreads over many draws are compared."""
    torch.manual_seed(3)
    model = Tacotron2(SMALL, hidden_dropout=0.3).eval()
    model.decoder.prenet.dropout = 0.0
    model.decoder.train()
    text, lengths, mels = some_batch(clips=1, frames=12)
    many = 600
    text, lengths, mels = text.expand(many, -1), lengths * many, mels.expand(-1, many, -1).contiguous()
    with torch.no_grad():
        one, other = (use_plain(model, plain)(text, lengths, mels).mel for plain in (True, False))
    noise = one.std(0) * (2 / many) ** 0.5
    assert ((one.mean(0) - other.mean(0)).abs() < 5 * noise + 1e-6).all()
    assert (one.std(0)[:, 2:] > 0).all()
    assert (other.std(0) / one.std(0)).mean() == pytest.approx(1, abs=0.05)
    # the dropped state is what goes on: the spread of late frames depends on early draws
    assert float(one.std(0)[:, -1].mean() / one.std(0)[:, 0].mean()) == pytest.approx(
        float(other.std(0)[:, -1].mean() / other.std(0)[:, 0].mean()), rel=0.1
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_narrow_precisions_stay_near_float32(dtype: torch.dtype, autocast: bool) -> None:
    torch.manual_seed(3)
    model = Tacotron2(SMALL, hidden_dropout=0.0).eval()
    model.decoder.prenet.dropout = 0.0
    text, lengths, mels = some_batch()
    some_loss(exact := model(text, lengths, mels)).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    if not autocast:
        for name, parameter in model.named_parameters():
            if ".1.weight" not in name and ".1.bias" not in name:  # batch norm stays in float32
                parameter.data = parameter.data.to(dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        rounded = model(text, lengths, mels)
    some_loss(rounded).backward()
    assert rounded.mel.dtype == torch.float32
    torch.testing.assert_close(rounded.mel, exact.mel, rtol=0.1, atol=0.05)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == parameter.dtype, name
        similar = F.cosine_similarity(parameter.grad.float().flatten(), gradients[name].flatten(), dim=0)
        assert similar > 0.97, (name, float(similar))


def test_beyond_a_clips_end_masked_outputs_are_silent_and_sure() -> None:
    torch.manual_seed(3)
    model = Tacotron2(SMALL, mask_padding=True).eval()
    text, lengths, mels = some_batch()
    outputs = model(text, lengths, mels, frames=torch.tensor([23, 11, 4]))
    assert (outputs.mel[1, :, 11:] == 0).all() and (outputs.refined[2, :, 4:] == 0).all()
    assert (outputs.gate[1, 11:] == 1000).all() and (outputs.gate[0] != 1000).all()


def test_attention_never_looks_at_padding() -> None:
    torch.manual_seed(3)
    outputs = Tacotron2(SMALL).eval()(*some_batch())
    for clip, symbols in enumerate(some_batch()[1]):
        assert (outputs.alignment[clip, :, symbols:] == 0).all()
        assert outputs.alignment[clip].sum(1).tolist() == pytest.approx([1.0] * 23, abs=1e-5)


def test_speaking_ends_where_the_gate_says_so_for_each_text() -> None:
    torch.manual_seed(3)
    model = Tacotron2(SMALL).eval()
    text, lengths, _ = some_batch()
    with torch.no_grad():
        model.decoder.gate_layer.linear_layer.bias.fill_(10)
    spoken = model.speak(text, lengths, most_frames=9)
    assert (spoken.frames, spoken.finished) == ([1, 1, 1], [True, True, True])
    with torch.no_grad():
        model.decoder.gate_layer.linear_layer.bias.fill_(-10)
    spoken = model.speak(text, lengths, most_frames=9)
    assert (spoken.frames, spoken.finished) == ([9, 9, 9], [False, False, False])
    assert spoken.mel.shape == (3, 80, 9) and spoken.alignment.shape == (3, 9, 17)


def test_attention_is_led_only_where_a_recipe_says_so() -> None:
    torch.manual_seed(3)
    text, lengths, mels = some_batch()
    frames = torch.tensor([23, 11, 4])
    assert Tacotron2(SMALL).train()(text, lengths, mels, frames=frames).strayed is None
    led = Tacotron2(SMALL, guided_attention=2.0)
    assert led.eval()(text, lengths, mels, frames=frames).strayed is None
    strayed = led.train()(text, lengths, mels, frames=frames).strayed
    assert strayed.shape == (3,) and (strayed > 0).all()
    strayed.sum().backward()
    assert led.decoder.attention_layer.query_layer.linear_layer.weight.grad.abs().max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"])
def test_every_precision_trains_and_evaluates(precision: str) -> None:
    torch.manual_seed(3)
    recipe: Any = replace(SMOKE, encoder_width=32, prenet_width=24, rnn_width=40, attention_width=16, postnet_width=20)
    device = Platform(files.load("cpu")).open(0)
    stepper = Stepper(
        WORKLOAD.build(recipe).train(),
        optimizer=lambda parameters: WORKLOAD.optimizer(parameters, recipe),
        loss=WORKLOAD.loss,
        precision=Precision.parse(precision),
        device=device,
        clip_gradient_norm=1.0,
    )
    stepper.set_learning_rate(3e-3)
    text, lengths, mels = some_batch()
    batch = SpeechBatch(
        text=text,
        symbols=tuple(lengths),
        mels=mels - 5,
        frames=torch.tensor([23, 11, 4]),
        frames_on_host=(23, 11, 4),
        numbers=(0, 1, 2),
        count=3,
        global_count=3,
    )
    losses = [float(stepper.step(batch)) for _ in range(12)]
    assert losses[-1] < losses[0]
    stepper.bare_model.eval()
    with torch.no_grad(), stepper.arithmetic, device.autocast(stepper.precision):
        scores = WORKLOAD.score(stepper.bare_model, batch)
    assert all(value.dtype == torch.float32 and value.isfinite() for value in scores.values())


def test_a_public_checkpoint_loads(tmp_path: Path) -> None:
    torch.manual_seed(1)
    given = Tacotron2(SMALL).state_dict()
    public = {f"module.{name}": value for name, value in given.items() if "num_batches_tracked" not in name}
    torch.save({"state_dict": public, "iteration": 10, "learning_rate": 1e-3}, tmp_path / "public.pt")
    model = Tacotron2(SMALL)
    weights.load_into(model, weights.read_weights(tmp_path / "public.pt"), "public.pt")
    for name, value in model.state_dict().items():
        if "num_batches_tracked" not in name:
            assert torch.equal(value, given[name]), name


@pytest.mark.parametrize("init", ["ones", "uniform"])
def test_batch_norm_starts_as_the_recipe_says(init: str) -> None:
    torch.manual_seed(0)
    scale = Tacotron2(SMALL, batch_norm_init=init).encoder.convolutions[0][1].weight.detach()
    if init == "ones":
        assert (scale == 1).all()
    else:
        assert 0 <= float(scale.min()) < 0.3 and 0.7 < float(scale.max()) <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, while it loads its compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # and while it traces
def test_tacotron2_trains_compiled_with_the_losses_it_has_by_itself() -> None:
    losses = []
    for compiled in ("no", "blocks"):
        torch.manual_seed(3)
        recipe = replace(SMOKE, compiled=compiled)
        device = Platform(files.load("cpu")).open(0)
        stepper = build_stepper(WORKLOAD, recipe, Precision.parse("fp32"), device, 1)
        text, symbols, mels = some_batch()
        batch = SpeechBatch(
            text=text,
            symbols=tuple(symbols),
            mels=mels,
            frames=torch.full((3,), len(mels)),
            frames_on_host=(len(mels),) * 3,
            numbers=(0, 1, 2),
            count=3,
            global_count=3,
        )
        losses.append([float(stepper.step(batch)) for _ in range(3)])
        model: Any = stepper.bare_model
        assert all((part._compiled_call_impl is not None) is (compiled == "blocks") for part in model.blocks)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
