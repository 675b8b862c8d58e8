"""What a step is really computed in is seen, whatever was asked, and seeing it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import RECIPE, LineFit, job
from torch import Tensor, nn

from trainmark import workloads
from trainmark.data.input_pool import ImageBatch
from trainmark.platforms import files, standin_device
from trainmark.platforms.platform import Device, Platform
from trainmark.record.errors import UsageError
from trainmark.record.events import EventTail, EventWriter, PrecisionSeen
from trainmark.record.precision import PRECISIONS, Precision, describe_matmuls, scaled_share
from trainmark.train import loop
from trainmark.train.precision_proof import Proof, classify_operator
from trainmark.train.schedule import Position
from trainmark.train.setup import build_stepper
from trainmark.train.stepper import Stepper
from trainmark.workloads.decoder.workload import TextBatch
from trainmark.workloads.tacotron2.workload import SpeechBatch

RUNS_ON_A_CPU = [name for name, precision in PRECISIONS.items() if name != "tf32" and not precision.scaled]
NAMES = ("resnet50", "vit", "tacotron2")


@pytest.fixture
def device() -> Iterator[Device]:
    yield Platform(files.load("cpu")).open(0)
    Platform(files.load("cpu")).open(0).set_precision(PRECISIONS["fp32"])


def batch(name: str) -> Any:
    drawn = torch.Generator().manual_seed(0)
    if name == "tacotron2":
        return SpeechBatch(
            text=torch.randint(1, 148, (3, 9), generator=drawn),
            symbols=(9, 7, 5),
            mels=torch.randn(12, 3, 80, generator=drawn) - 5,
            frames=torch.tensor([12, 8, 4]),
            frames_on_host=(12, 8, 4),
            numbers=(0, 1, 2),
            count=3,
            global_count=3,
        )
    if name == "gpt124m":
        tokens = torch.randint(0, 416, (4, 65), generator=drawn)
        return TextBatch(tokens=tokens, count=4, global_count=4)
    images = torch.randint(0, 255, (4, 3, 64, 64), generator=drawn, dtype=torch.uint8)
    return ImageBatch(
        images=images.contiguous(memory_format=torch.channels_last),
        labels=torch.randint(0, 10, (4,), generator=drawn),
        count=4,
        global_count=4,
    )


def tiny(name: str, word: str, device: Device, **changes: Any) -> Stepper:
    workload = workloads.load(name)
    small: dict[str, dict[str, Any]] = {
        "gpt124m": {"layers": 2},
        "resnet50": {"width": 4},
        "vit": {"layers": 1},
        "tacotron2": {"rnn_width": 32, "postnet_width": 32},
    }
    recipe = replace(workload.recipes["smoke"], **{**small[name], **changes})
    device.set_precision(Precision.parse(word))
    stepper = build_stepper(workload, recipe, Precision.parse(word), device, 1)
    stepper.set_learning_rate(recipe.learning_rate)
    return stepper


def losses(stepper: Stepper, data: Any, steps: int = 2) -> list[float]:
    torch.manual_seed(5)
    return [float(stepper.step(data)) for _ in range(steps)]


def said(folder: Path) -> dict[str, Any]:
    return [event for event in EventTail(folder / "rank0.jsonl").new_events() if isinstance(event, PrecisionSeen)][-1]


def watched(folder: Path, stepper: Stepper, data: Any) -> dict[str, Any]:
    proof = Proof(stepper, EventWriter(folder / "rank0.jsonl"))
    losses(stepper, data, 1)
    proof.conclude(1)
    return said(folder)


@pytest.mark.slow
@pytest.mark.parametrize("word", RUNS_ON_A_CPU)
@pytest.mark.parametrize("name", NAMES)
def test_every_precision_is_named_by_what_ran_and_watching_changes_no_loss(
    tmp_path: Path, device: Device, name: str, word: str
) -> None:
    data = batch(name)
    plain = losses(tiny(name, word, device), data)
    stepper = tiny(name, word, device)
    Proof(stepper, EventWriter(tmp_path / "rank0.jsonl"))
    assert losses(stepper, data) == plain
    found = said(tmp_path)
    assert (found.asked, found.ran) == (word, word)
    assert found.autocast == PRECISIONS[word].autocast
    assert (found.loss_scale is not None) == PRECISIONS[word].scales_loss
    main = PRECISIONS[word].computes_in
    assert found.computed["matmul"][main] > 0
    assert found.computed["convolution"][main] > 1  # there and back


@pytest.mark.parametrize(
    ("name", "changes", "share"),
    [
        ("vit", {"layers": 2, "mlp": 512}, 0.5),
        ("gpt124m", {}, 0.75),
        ("gpt124m", {"recompute": "selective"}, 0.75),
        ("gpt124m", {"tied": False, "activation": "swiglu", "kv_heads": 2}, 0.75),
    ],
)
def test_fp8_is_what_linear_layers_compute_in_and_their_share_is_told(
    tmp_path: Path, device: Device, name: str, changes: dict[str, Any], share: float
) -> None:
    data = batch(name)
    plain = losses(tiny(name, "fp8", device, **changes), data)
    stepper = tiny(name, "fp8", device, **changes)
    Proof(stepper, EventWriter(tmp_path / "rank0.jsonl"))
    assert losses(stepper, data) == plain
    assert plain == pytest.approx(losses(tiny(name, "bf16", device, **changes), data), rel=0.01)
    found = said(tmp_path)
    assert (found.asked, found.ran) == ("fp8", "fp8")
    counted = found.multiplications["matmul"]
    assert counted["float8_e5m2"] == 2 * counted["float8_e4m3fn"]  # two on the way back
    assert found.scaled_share == scaled_share(found.multiplications)
    assert share < found.scaled_share < 1
    assert found.inside["matmul"]["float8_e5m2"] == "float8_e5m2"
    assert describe_matmuls(found.computed).count("float8") == 2


def test_a_network_with_few_linear_layers_is_not_called_fp8(tmp_path: Path, device: Device) -> None:
    found = watched(tmp_path, tiny("tacotron2", "fp8", device), batch("tacotron2"))
    assert found.ran.startswith("mixed: ")
    assert 0 < found.scaled_share < 0.1
    with pytest.raises(UsageError, match="fp8 has nothing to compute in this network"):
        tiny("resnet50", "fp8", device)


def test_only_the_first_step_is_watched(tmp_path: Path, device: Device) -> None:
    stepper = tiny("resnet50", "fp32", device)
    Proof(stepper, EventWriter(tmp_path / "rank0.jsonl"))
    losses(stepper, batch("resnet50"), 3)
    assert stepper.watch is None
    assert len(list(EventTail(tmp_path / "rank0.jsonl").new_events())) == 1


def test_micro_batches_are_all_seen(tmp_path: Path, device: Device) -> None:
    whole = watched(tmp_path, tiny("resnet50", "fp32", device), batch("resnet50"))
    (tmp_path / "parts").mkdir()
    parts = watched(tmp_path / "parts", tiny("resnet50", "fp32", device, accumulate=2), batch("resnet50"))
    assert parts.computed["convolution"]["float32"] == 2 * whole.computed["convolution"]["float32"]


class Stubborn(nn.Module):
    """Leaves autocast for its forward pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.inner(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("word", ["amp-bf16", "amp-fp16"])
def test_a_model_that_ignores_autocast_is_found_out(tmp_path: Path, device: Device, word: str) -> None:
    stepper = tiny("resnet50", word, device)
    stepper.model = stepper.bare_model = Stubborn(stepper.bare_model)
    found = watched(tmp_path, stepper, batch("resnet50"))
    assert (found.asked, found.ran, found.autocast) == (word, "fp32", PRECISIONS[word].autocast)
    assert set(found.computed["convolution"]) == {"float32"}


def test_a_model_that_lowers_half_of_itself_is_mixed(tmp_path: Path, device: Device) -> None:
    stepper = tiny("vit", "amp-bf16", device, layers=2)
    encoder: Any = stepper.bare_model.encoder
    encoder.layers[0] = Stubborn(encoder.layers[0])
    found = watched(tmp_path, stepper, batch("vit"))
    assert found.ran.startswith("mixed: ")
    assert "% bfloat16" in found.ran and "% float32" in found.ran


def test_allowed_tf32_is_named(tmp_path: Path, device: Device) -> None:
    stepper = tiny("resnet50", "fp32", device)
    device.set_precision(PRECISIONS["tf32"])
    found = watched(tmp_path, stepper, batch("resnet50"))
    assert (found.asked, found.ran, found.tf32) == ("fp32", "tf32", {"matmul": True, "convolution": True})


@pytest.mark.parametrize("kind", ["fused", "plain"])
def test_steps_that_the_loss_scaler_skips_are_counted(tmp_path: Path, device: Device, kind: str) -> None:
    stepper = tiny("resnet50", "amp-fp16", device, optimizer_kind=kind)
    stepper.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    proof = Proof(stepper, EventWriter(tmp_path / "rank0.jsonl"))
    losses(stepper, batch("resnet50"), 4)
    assert said(tmp_path).loss_scale == 2.0**40
    proof.conclude(4)
    found = said(tmp_path)
    assert found.skipped_steps == 4
    assert found.loss_scale == 2.0**36


def test_the_loop_has_its_first_step_watched(tmp_path: Path) -> None:
    ready = job(tmp_path, recipe=replace(RECIPE, epochs=1))
    Proof(ready.stepper, ready.events)
    loop.train(ready, Position())
    assert said(tmp_path).ran == "mixed: no product was seen"
    assert said(tmp_path).weights == {"float32": 2}
    assert isinstance(ready.workload, LineFit)


@pytest.mark.parametrize(
    ("kind", "names"),
    {
        "matmul": "mm addmm addmm_ bmm baddbmm addbmm mv addmv_ dot linear linear_backward _linear_pointwise "
        "_scaled_mm _addmm_activation _scaled_dot_product_flash_attention_for_cpu _flash_attention_forward "
        "_scaled_dot_product_efficient_attention_backward _cudnn_rnn mkldnn_rnn_layer_backward npu_fusion_attention",
        "convolution": "convolution convolution_backward _convolution cudnn_convolution miopen_convolution "
        "_convolution_pointwise thnn_conv2d slow_conv3d_forward _conv_depthwise2d convolution_overrideable",
        None: "add add_ addcmul upsample_linear1d upsample_bilinear2d _reorder_linear_weight _thnn_fused_lstm_cell "
        "_cudnn_rnn_flatten_weight convert_element_type relu _softmax native_batch_norm comm_ _foreach_add_",
    }.items(),
)
def test_products_are_known_by_the_names_devices_give_them(kind: str | None, names: str) -> None:
    assert {name: classify_operator(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(
    ("inside", "word"), [("float32", "fp32"), ("bfloat16", "mixed: 100 % bfloat16, weights float32")]
)
def test_a_run_is_called_by_what_its_device_makes_of_float32(
    inside: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.toml").write_text(f"float32_inside = '{inside}'\n", encoding="utf-8")
    monkeypatch.setenv("TRAINMARK_STANDIN", str(tmp_path / "script.toml"))
    stepper = tiny("vit", "fp32", Platform(files.load("standin")).open(0))
    Proof(stepper, EventWriter(tmp_path / "rank0.jsonl"))
    stepper.step(batch("vit"))
    seen = said(tmp_path)
    assert set(seen.computed["matmul"]) == {"float32"}  # what was asked
    assert seen.inside == {kind: {"float32": inside} for kind in ("matmul", "convolution")}
    assert seen.ran == word


def test_a_device_that_lowers_float32_after_the_first_step_is_found_by_the_probe_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.toml").write_text("honest_for = 300\nfloat32_inside = 'bfloat16'\n", encoding="utf-8")
    monkeypatch.setenv("TRAINMARK_STANDIN", str(tmp_path / "script.toml"))
    stepper = tiny("resnet50", "fp32", Platform(files.load("standin")).open(0))
    proof = Proof(stepper, EventWriter(tmp_path / "rank0.jsonl"))
    losses(stepper, batch("resnet50"))
    assert said(tmp_path).ran == "fp32"
    proof.probe_again()
    assert said(tmp_path).ran == "mixed: 100 % bfloat16, weights float32"


@pytest.mark.parametrize("limit", [0, 70_000])
def test_a_device_that_lowers_only_large_matmuls_is_found_by_those_of_the_network(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMARK_STANDIN", "")
    round_all = standin_device.round_operands

    def round_large(type_: str, operation: Any, args: tuple[Any, ...]) -> Any:
        largest = max((arg.numel() for arg in args if isinstance(arg, Tensor)), default=0)
        return round_all("bfloat16", operation, args) if largest > limit else args

    monkeypatch.setattr(standin_device, "round_operands", round_large)
    stepper = tiny("resnet50", "fp32", Platform(files.load("standin")).open(0), width=32)
    proof = Proof(stepper, EventWriter(tmp_path / "rank0.jsonl"))
    losses(stepper, batch("resnet50"))
    assert (said(tmp_path).ran == "fp32") == bool(limit)
    proof.probe_again()
    assert said(tmp_path).inside["convolution"] == {"float32": "bfloat16"}
