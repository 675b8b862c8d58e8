"""The network is the ViT-B/16 that public checkpoints are for, name by name, shape by shape and number by number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import NotReadyError
from trainmark.record.precision import Precision
from trainmark.train.stepper import Stepper
from trainmark.workloads import weights
from trainmark.workloads.vision_transformer import EncoderBlock, Norm, SelfAttention
from trainmark.workloads.vit.model import VisionTransformer

pytestmark = pytest.mark.usefixtures("one_thread")

Shape = tuple[int, ...]
TINY = {"image_px": 32, "patch_px": 8, "layers": 2, "heads": 4, "hidden": 16, "mlp": 24, "classes": 5}


def expected_entries(
    *,
    image_px: int = 224,
    patch_px: int = 16,
    layers: int = 12,
    heads: int = 12,
    hidden: int = 768,
    mlp: int = 3072,
    classes: int = 1000,
) -> dict[str, Shape]:
    """Names and shapes of the state_dict, from the network's published definition; heads only divide `hidden`."""

    def entries() -> Iterator[tuple[str, Shape]]:
        yield "class_token", (1, 1, hidden)
        yield "conv_proj.weight", (hidden, 3, patch_px, patch_px)
        yield "conv_proj.bias", (hidden,)
        yield "encoder.pos_embedding", (1, (image_px // patch_px) ** 2 + 1, hidden)
        for layer in range(layers):
            prefix = f"encoder.layers.encoder_layer_{layer}"
            yield f"{prefix}.ln_1.weight", (hidden,)
            yield f"{prefix}.ln_1.bias", (hidden,)
            yield f"{prefix}.self_attention.in_proj_weight", (3 * hidden, hidden)
            yield f"{prefix}.self_attention.in_proj_bias", (3 * hidden,)
            yield f"{prefix}.self_attention.out_proj.weight", (hidden, hidden)
            yield f"{prefix}.self_attention.out_proj.bias", (hidden,)
            yield f"{prefix}.ln_2.weight", (hidden,)
            yield f"{prefix}.ln_2.bias", (hidden,)
            yield f"{prefix}.mlp.0.weight", (mlp, hidden)
            yield f"{prefix}.mlp.0.bias", (mlp,)
            yield f"{prefix}.mlp.3.weight", (hidden, mlp)
            yield f"{prefix}.mlp.3.bias", (hidden,)
        yield "encoder.ln.weight", (hidden,)
        yield "encoder.ln.bias", (hidden,)
        yield "heads.head.weight", (classes, hidden)
        yield "heads.head.bias", (classes,)

    return dict(entries())


@pytest.fixture(scope="module")
def wide() -> VisionTransformer:
    """Full width and only two layers: enough numbers to know how they were drawn."""
    torch.manual_seed(0)
    return VisionTransformer(layers=2)


def scatter(model: nn.Module) -> nn.Module:
    """The model with every parameter drawn at random, so that no zero hides a mistake."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def test_vit_b_16_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        full = VisionTransformer()
    assert sum(parameter.numel() for parameter in full.parameters()) == 86_567_656
    assert len(full.state_dict()) == 152
    found = {name: tuple(value.shape) for name, value in full.state_dict().items()}
    assert list(found.items()) == list(expected_entries().items())


def test_a_checkpoint_with_torchvisions_older_names_loads() -> None:
    checkpoint = {name: torch.rand(shape) for name, shape in expected_entries(**TINY).items()}
    older = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): value
        for name, value in checkpoint.items()
    }
    assert older.keys() != checkpoint.keys()
    model = VisionTransformer(**TINY)
    weights.load_into(model, older, "vit.pth")
    assert all(torch.equal(value, checkpoint[name]) for name, value in model.state_dict().items())


def test_a_checkpoint_for_larger_images_is_refused_by_its_positions() -> None:
    checkpoint = VisionTransformer(**{**TINY, "image_px": 64}).state_dict()
    with pytest.raises(NotReadyError, match=r"encoder\.pos_embedding is \(1, 65, 16\) and not \(1, 17, 16\)"):
        weights.load_into(VisionTransformer(**TINY), checkpoint, "large.pth")


def spread(values: Tensor, expected: float) -> None:
    """Asserts a mean of 0 and a standard deviation; five times a sample's own uncertainty never fails by chance."""
    count = values.numel()
    assert float(values.detach().std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * count))
    assert abs(float(values.detach().mean())) < 5 * expected / math.sqrt(count)


def test_patches_and_positions_start_normal_and_the_head_at_zero(wide: VisionTransformer) -> None:
    spread(wide.conv_proj.weight, math.sqrt(1 / 768))
    spread(wide.encoder.pos_embedding, 0.02)
    for zeros in (wide.conv_proj.bias, wide.class_token, wide.heads.head.weight, wide.heads.head.bias):
        assert isinstance(zeros, Tensor) and not zeros.any()


def test_attention_and_the_layers_after_it_start_xavier_uniform(wide: VisionTransformer) -> None:
    blocks = [module for module in wide.modules() if isinstance(module, EncoderBlock)]
    assert len(blocks) == 2
    for block in blocks:
        state = block.state_dict()
        limits = {
            "self_attention.in_proj_weight": math.sqrt(6 / (768 + 3 * 768)),
            "self_attention.out_proj.weight": 1 / math.sqrt(768),
            "mlp.0.weight": math.sqrt(6 / (768 + 3072)),
            "mlp.3.weight": math.sqrt(6 / (768 + 3072)),
        }
        for name, limit in limits.items():
            assert 0.999 * limit < float(state[name].abs().max()) <= limit, name
            spread(state[name], limit / math.sqrt(3))
        spread(torch.cat((state["mlp.0.bias"], state["mlp.3.bias"])), 1e-6)
        assert not state["self_attention.in_proj_bias"].any() and not state["self_attention.out_proj.bias"].any()


def test_attention_is_torchs_own_in_values_and_gradients() -> None:
    ours, theirs = SelfAttention(16, 4), nn.MultiheadAttention(16, 4, batch_first=True)
    theirs.load_state_dict(scatter(ours).state_dict(), strict=True)
    x = torch.randn(2, 9, 16)
    found, expected = ours(x), theirs(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    for (name, mine), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None and mine.grad.any(), name
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-3)


def torchs_own(block: EncoderBlock) -> nn.TransformerEncoderLayer:
    """The block's weights in torch's layer of the same definition."""
    hidden, mlp = block.ln_1.weight.numel(), block.state_dict()["mlp.0.bias"].numel()
    layer = nn.TransformerEncoderLayer(
        hidden,
        block.self_attention.heads,
        mlp,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
    )
    names = {"ln_1": "norm1", "self_attention": "self_attn", "ln_2": "norm2", "mlp.0": "linear1", "mlp.3": "linear2"}
    state = {
        name.replace(our, their): value
        for name, value in block.state_dict().items()
        for our, their in names.items()
        if name.startswith(our)
    }
    layer.load_state_dict(state, strict=True)
    return layer


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_network_is_what_torchs_own_layers_make_put_together(layout: torch.memory_format) -> None:
    """Patches row by row, the class token first, positions, pre-norm blocks with the exact GELU, a norm, a head."""
    model, images = scatter(VisionTransformer(**TINY)), torch.rand(3, 3, 32, 32)
    state = model.state_dict()
    rows = F.unfold(images, 8, stride=8).transpose(1, 2)
    x = F.linear(rows, state["conv_proj.weight"].flatten(1), state["conv_proj.bias"])
    x = torch.cat((state["class_token"].repeat(3, 1, 1), x), 1) + state["encoder.pos_embedding"]
    for block in model.modules():
        if isinstance(block, EncoderBlock):
            x = torchs_own(block)(x)
    x = F.layer_norm(x[:, 0], (16,), state["encoder.ln.weight"], state["encoder.ln.bias"], eps=1e-6)
    expected = F.linear(x, state["heads.head.weight"], state["heads.head.bias"])
    torch.testing.assert_close(model(images.to(memory_format=layout)), expected, rtol=1e-4, atol=1e-4)


def test_a_norm_computes_in_float32_and_answers_in_the_type_it_was_asked_in() -> None:
    norm, x = Norm(16), torch.randn(5, 16) * 40 + 300
    torch.testing.assert_close(norm(x), F.layer_norm(x, (16,), eps=1e-6))
    narrow = norm(x.bfloat16())
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, F.layer_norm(x.bfloat16().float(), (16,), eps=1e-6).bfloat16())


@dataclass(frozen=True, eq=False)
class Batch:
    images: Tensor
    labels: Tensor
    count: int = 10
    global_count: int = 10


@pytest.mark.parametrize("word", ["fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"])
def test_a_small_network_learns_in_every_precision(word: str) -> None:
    torch.manual_seed(0)
    model, batch = VisionTransformer(**TINY), Batch(torch.randn(10, 3, 32, 32), torch.arange(10) % 5)

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(network(batch.images.to(model.class_token.dtype)).float(), batch.labels)

    stepper = Stepper(
        model,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
        loss=loss,
        precision=Precision.parse(word),
        device=Platform(files.load("cpu")).open(0),
        clip_gradient_norm=1.0,
    )
    losses = [float(stepper.step(batch)) for _ in range(12)]
    assert losses[0] == pytest.approx(math.log(5), rel=1e-3)
    assert losses[-1] < 0.5 * losses[0]
    kinds = {type(module): parameter.dtype for module in model.modules() for parameter in module.parameters(False)}
    assert kinds[Norm] == torch.float32
    assert kinds[SelfAttention] == getattr(torch, Precision.parse(word).weights)
