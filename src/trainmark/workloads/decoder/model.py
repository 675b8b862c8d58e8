"""A decoder-only transformer with Llama's parameter names: grouped-query attention, RoPE, RMSNorm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainmark.record.errors import UsageError
from trainmark.record.recipe import FAST_OR_PLAIN, Recipe, knob
from trainmark.workloads.tensor_group import Alone, TensorGroup, local_part


@dataclass(frozen=True, kw_only=True)
class DecoderRecipe(Recipe):
    implementation: str = FAST_OR_PLAIN
    """The loss is `fast`: in chunks of `loss_chunk`, whose gradients are computed with their logits."""
    layers: int = knob(least=1)
    width: int = knob(least=2)
    """Width of the residual stream."""
    heads: int = knob(least=1)
    kv_heads: int = knob(least=1)
    """Key and value heads; fewer than `heads` is grouped-query attention."""
    ffn: int = knob(least=1)
    """Inner width of the feed-forward layer."""
    activation: str = knob("swiglu", words=("swiglu", "gelu"))
    vocabulary: int = knob(least=2)
    context: int = knob(least=2)
    """Tokens per window."""
    tied: bool = knob(False)
    """Tie the head to the embedding."""
    rope_theta: float = knob(10_000.0, least=1)
    rope_scaling: str = knob("none", words=("none", "llama3.1"))
    """`llama3.1` scales RoPE for contexts longer than the original one."""
    norm_eps: float = knob(1e-5, least=0)
    norm_weights: bool = knob(True)
    scale_attention: bool = knob(False)
    """Multiply attention's output by 1 / sqrt(2 x layers)."""
    init: str = knob("normal", words=("normal", "torch"))
    """`normal` uses `init_std`, less for residual projections, as Megatron does; `torch` initialises as torch's Linear,
    and a tied embedding uses the head's weights."""
    init_std: float = knob(0.02, least=0)

    schedule: str = knob("cosine", words=("cosine", "trapezoid"))
    """`cosine` decays to `last_rate`; `trapezoid` is constant, then decays linearly over `cooldown_steps`."""
    warmup_steps: int = knob(0, least=0)
    """Linear warm-up."""
    cooldown_steps: int = knob(0, least=0)
    decay_steps: int = knob(0, least=0)
    """Length of the schedule; 0: the recipe's."""
    last_rate: float = knob(0.1, least=0, most=1)
    """Final share of the learning rate for `cosine`."""
    adam_beta1: float = knob(0.9, least=0, most=1)
    adam_beta2: float = knob(0.95, least=0, most=1)
    adam_eps: float = knob(1e-8, least=0)

    data_order: str = knob("in-order", words=("in-order", "shuffled"))
    """Windows in the order of the text, or shuffled each epoch."""
    eval_tokens: int = knob(0, least=0)
    """Tokens of the validation text, from its beginning; 0: all."""
    loss_chunk: int = knob(1024, least=1)
    """Tokens whose logits are in memory at once."""
    recompute: str = knob("none", words=("none", "selective", "full"))
    """Activation checkpointing: nothing, all but matmuls, or whole blocks."""
    tensor_parallel: int = knob(1, least=1)
    """Devices of a node that share each block, on the batches of all of them: each has some heads and some of the inner
    width. Its weights are sharded further, as `parallel` says."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def check_shape(recipe: DecoderRecipe) -> None:
    """UsageError if the sizes do not fit together."""
    if recipe.width % recipe.heads:
        raise UsageError(f"width={recipe.width} cannot be shared by heads={recipe.heads}; set a multiple of it")
    if recipe.head_width % 2:
        raise UsageError(
            f"width={recipe.width} gives each of heads={recipe.heads} the odd width {recipe.head_width}, and positions "
            "turn pairs; set an even multiple"
        )
    if recipe.heads % recipe.kv_heads:
        raise UsageError(f"heads={recipe.heads} cannot share kv_heads={recipe.kv_heads}; set a divisor of it")
    for name, count in (("kv_heads", recipe.kv_heads), ("ffn", recipe.ffn)):
        if count % recipe.tensor_parallel:
            raise UsageError(
                f"{name}={count} cannot be shared by tensor_parallel={recipe.tensor_parallel} devices; set a divisor"
            )


class TokenFlops(NamedTuple):
    """Forward and backward pass, a multiply-add as 2."""

    attention: float
    """All matmul weights, and attention over the whole window: as PaLM and torchtitan count. The default."""
    parameters: float
    """6 per parameter, with the embedding and without attention: as FlagPerf counts."""
    causal: float
    """As `attention`, without the masked half of the window: what flash kernels compute."""


def count_parameters(recipe: DecoderRecipe) -> int:
    embedding = recipe.vocabulary * recipe.width
    norms = (2 * recipe.layers + 1) * recipe.width if recipe.norm_weights else 0
    return matmul_parameters(recipe) + (0 if recipe.tied else embedding) + norms


def matmul_parameters(recipe: DecoderRecipe) -> int:
    """Parameters used in matmuls for every token."""
    attention = recipe.width * recipe.head_width * (2 * recipe.heads + 2 * recipe.kv_heads)
    feed_forward = (3 if recipe.activation == "swiglu" else 2) * recipe.width * recipe.ffn
    return recipe.layers * (attention + feed_forward) + recipe.vocabulary * recipe.width


def per_token(recipe: DecoderRecipe) -> TokenFlops:
    attention = 12.0 * recipe.layers * recipe.heads * recipe.head_width * recipe.context
    products = 6.0 * matmul_parameters(recipe)
    return TokenFlops(
        attention=products + attention,
        parameters=6.0 * count_parameters(recipe),
        causal=products + attention / 2,
    )


def nll_sum(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """Summed cross-entropy of the next tokens, in float32.

    Gradients are computed with the logits, chunk by chunk, in the forward pass: memory is that of the hidden states and
    the head, not of tokens x vocabulary, and no matmul is repeated.
    """
    found: Tensor = _ChunkedNll.apply(hidden, weight, targets, chunk)  # type: ignore[no-untyped-call]
    return found


class _ChunkedNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        # the head's weights are cast once, not per chunk
        head = weight.detach().to(dtype)
        wants_hidden, wants_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        total = hidden.new_zeros((), dtype=torch.float32)
        with torch.autocast(kind, enabled=False):
            for start in range(0, len(targets), chunk):
                rows = slice(start, start + chunk)
                read, wanted = hidden[rows].to(dtype), targets[rows]
                scores = (read @ head.t()).float()
                scores -= scores.amax(dim=-1, keepdim=True)
                right = scores.gather(1, wanted[:, None])
                sums = scores.exp_().sum(dim=-1, keepdim=True)
                total += (sums.log() - right).sum()
                if of_hidden is None and of_weight is None:
                    continue
                # of the sum, not of the mean: small values in half precision are scaled later, in backward
                scores /= sums
                scores.scatter_add_(1, wanted[:, None], torch.full_like(right, -1.0))
                errors = scores.to(dtype)
                if of_hidden is not None:
                    of_hidden[rows] = errors @ head
                if of_weight is not None:
                    if of_weight.dtype == dtype:
                        of_weight.addmm_(errors.t(), read)
                    else:
                        of_weight += errors.t() @ read
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        of_hidden, of_weight = ctx.saved_tensors
        share = grads[0]
        return (
            None if of_hidden is None else of_hidden.mul_(share.to(of_hidden.dtype)),
            None if of_weight is None else of_weight.mul_(share).to(ctx.weight_dtype),
            None,
            None,
        )


def _copy_whole(parameter: Tensor, whole: Tensor) -> None:
    parameter.data.copy_(whole)


LLAMA_3_1 = {"factor": 8.0, "low": 1.0, "high": 4.0, "trained": 8192.0}
"""RoPE scaling of Llama 3.1: frequencies below `low` turns per original context are divided by `factor`, those above
`high` are unchanged."""
_SAVED_OPS = {"mm", "addmm", "bmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}
_SAVED_OPS |= {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention", "_scaled_mm"}
"""Matmuls, whose results selective activation checkpointing keeps: everything else is cheap to recompute."""


class RMSNorm(nn.RMSNorm):
    """Always in float32, which the sum of squares needs."""

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.float()
        return F.rms_norm(x.float(), self.normalized_shape, weight, self.eps).to(x.dtype)


class Projection(nn.Linear):
    """Without a bias; initialised with the whole network."""

    def __init__(self, read: int, written: int) -> None:
        super().__init__(read, written, bias=False)

    def reset_parameters(self) -> None:
        pass


class TokenTable(nn.Embedding):
    """An embedding, initialised with the whole network."""

    def reset_parameters(self) -> None:
        pass


class CausalAttention(nn.Module):
    def __init__(self, recipe: DecoderRecipe) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = recipe.heads, recipe.kv_heads, recipe.head_width
        inner, shared = recipe.heads * self.head_width, recipe.kv_heads * self.head_width
        self.q_proj = Projection(recipe.width, inner)
        self.k_proj = Projection(recipe.width, shared)
        self.v_proj = Projection(recipe.width, shared)
        self.o_proj = Projection(inner, recipe.width)
        self.scale = 1 / math.sqrt(2 * recipe.layers) if recipe.scale_attention else 1.0
        self.group: TensorGroup = Alone()

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, _ = x.shape
        x = self.group.spread(x)
        q, k, v = (
            projected.view(batch, length, -1, self.head_width).transpose(1, 2)
            for projected in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        q, k = rotate(q, rotary), rotate(k, rotary)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        added = self.group.collect(self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)))
        return added if self.scale == 1.0 else added * self.scale


class FeedForward(nn.Module):
    def __init__(self, recipe: DecoderRecipe) -> None:
        super().__init__()
        self.gate_proj = Projection(recipe.width, recipe.ffn) if recipe.activation == "swiglu" else None
        self.up_proj = Projection(recipe.width, recipe.ffn)
        self.down_proj = Projection(recipe.ffn, recipe.width)
        self.group: TensorGroup = Alone()

    def forward(self, x: Tensor) -> Tensor:
        x = self.group.spread(x)
        inner = F.gelu(self.up_proj(x)) if self.gate_proj is None else F.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.group.collect(self.down_proj(inner))


class DecoderBlock(nn.Module):
    def __init__(self, recipe: DecoderRecipe) -> None:
        super().__init__()
        norm = partial(RMSNorm, recipe.width, eps=recipe.norm_eps, elementwise_affine=recipe.norm_weights)
        self.input_layernorm, self.self_attn = norm(), CausalAttention(recipe)
        self.post_attention_layernorm, self.mlp = norm(), FeedForward(recipe)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary)
        added: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added


class Trunk(nn.Module):
    """All but the head; checkpoints call it `model`."""

    def __init__(self, recipe: DecoderRecipe) -> None:
        super().__init__()
        self.embed_tokens = TokenTable(recipe.vocabulary, recipe.width)
        self.layers = nn.ModuleList(DecoderBlock(recipe) for _ in range(recipe.layers))
        self.norm = RMSNorm(recipe.width, eps=recipe.norm_eps, elementwise_affine=recipe.norm_weights)


class TextDecoder(nn.Module):
    """Tokens to logits; with targets, to the summed cross-entropy."""

    tensor_plan: Mapping[str, int] = {
        **dict.fromkeys(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight"), 0),
        **dict.fromkeys(("o_proj.weight", "down_proj.weight"), 1),
    }
    """Tensor-parallel plan: each device has some heads and some of the inner width."""

    def __init__(self, recipe: DecoderRecipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.model = Trunk(recipe)
        self.lm_head = Projection(recipe.width, recipe.vocabulary)
        if recipe.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.group: TensorGroup = Alone()
        self._rotary: tuple[Tensor, Tensor] | None = None
        if not self.lm_head.weight.is_meta:
            self.initialise()

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The layers, which are sharded, compiled and checkpointed one by one."""
        return list(self.model.layers)

    def share_among(self, group: TensorGroup) -> None:
        self.group = group
        for module in self.modules():
            if isinstance(module, (CausalAttention, FeedForward)):
                module.group = group

    def forward(self, tokens: Tensor, targets: Tensor | None = None, *, last: bool = False) -> Tensor:
        """With `last`, the logits after the last token alone."""
        x = self.hidden(tokens)
        if targets is None:
            scores: Tensor = self.lm_head(x[:, -1:] if last else x)
            return scores
        # every tensor-parallel device has the whole head, and scores some of the tokens
        rows = self.group.rows(targets.numel())
        read, weight = self.group.spread(x.flatten(0, 1)), self.group.spread(local_part(self.lm_head.weight))
        read, wanted = read[rows], targets.flatten()[rows]
        if self.recipe.implementation == "plain":
            return self.group.collect(F.cross_entropy(F.linear(read, weight).float(), wanted, reduction="sum"))
        return self.group.collect(nll_sum(read, weight, wanted, self.recipe.loss_chunk))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Inputs of the head."""
        x = self.model.embed_tokens(tokens)
        rotary = self.rotary_table(tokens.shape[1], x)
        again = self.recipe.recompute if self.training and torch.is_grad_enabled() else "none"
        for block in self.model.layers:
            x = block(x, rotary) if again == "none" else _run_checkpointed(block, x, rotary, again == "selective")
        normed: Tensor = self.model.norm(x)
        return normed

    def rotary_table(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions, in the dtype and on the device of `like`; cached."""
        kept = self._rotary
        if kept is None or len(kept[0]) < length or kept[0].device != like.device or kept[0].dtype != like.dtype:
            angles = torch.outer(
                torch.arange(max(length, self.recipe.context), dtype=torch.float32), frequencies(self.recipe)
            )
            twice = torch.cat((angles, angles), dim=-1).to(like.device)
            self._rotary = kept = (twice.cos().to(like.dtype), twice.sin().to(like.dtype))
        return kept[0][:length], kept[1][:length]

    def initialise(self, place: Callable[[Tensor, Tensor], None] = _copy_whole) -> None:
        """Initialises every weight from torch's seed, in the order of names, whole and on the CPU, so that a network is
        the same however it is sharded. `place` stores one."""
        if self.recipe.tied:  # materialising weights on a device may untie them
            self.lm_head.weight = self.model.embed_tokens.weight
        for name, parameter in self.named_parameters():
            with torch.device("cpu"):
                place(parameter, self._random_weight(name, parameter.shape))

    def _random_weight(self, name: str, shape: torch.Size) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape)
        if self.recipe.init == "torch":
            bound = 1 / math.sqrt(shape[1])  # also for the embedding, if it is not tied to the head
            return torch.empty(shape).uniform_(-bound, bound)
        adds = name.endswith(("o_proj.weight", "down_proj.weight"))
        deviation = self.recipe.init_std / (math.sqrt(2 * self.recipe.layers) if adds else 1)
        return torch.empty(shape).normal_(0.0, deviation)


def frequencies(recipe: DecoderRecipe) -> Tensor:
    """Rotation of each pair of a head per position, in radians."""
    pairs = torch.arange(0, recipe.head_width, 2, dtype=torch.float32)
    found = 1.0 / recipe.rope_theta ** (pairs / recipe.head_width)
    if recipe.rope_scaling == "none":
        return found
    scaling = LLAMA_3_1
    often = scaling["trained"] * found / (2 * math.pi)
    share = ((often - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return found * (share + (1 - share) / scaling["factor"])


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each pair (i, i + half) of a head by its position's angle."""
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _run_checkpointed(block: nn.Module, x: Tensor, rotary: tuple[Tensor, Tensor], selective: bool) -> Tensor:
    chosen: dict[str, Any] = (
        {"context_fn": partial(create_selective_checkpoint_contexts, _save_policy)} if selective else {}
    )
    found: Tensor = checkpoint(block, x, rotary, use_reentrant=False, preserve_rng_state=False, **chosen)
    return found


def _save_policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = operation.__name__.partition(".")[0]
    return CheckpointPolicy.MUST_SAVE if name in _SAVED_OPS else CheckpointPolicy.PREFER_RECOMPUTE
