"""A decoder for language with Llama's parameter names: grouped-query attention, rotary positions, RMSNorm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainmark.workloads.decoder.recipes import DecoderRecipe
from trainmark.workloads.tensor_group import Alone, TensorGroup, own


def nll_sum(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The sum over tokens of -ln p of what follows each, in float32.

    The gradients are computed with the scores, chunk by chunk, and wait for backward: what stays in memory is as large
    as the hidden states and the head, not as tokens x vocabulary, and no product is made twice.
    """
    found: Tensor = _ChunkedNll.apply(hidden, weight, targets, chunk)  # type: ignore[no-untyped-call]
    return found


class _ChunkedNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        # a change of the vocabulary's weights to another type is made once, not for each chunk
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
                # of the sum, not of the mean: what is tiny in half precision is divided later, in what backward gives
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


def _copy(parameter: Tensor, whole: Tensor) -> None:
    parameter.data.copy_(whole)


LLAMA_3_1 = {"factor": 8.0, "low": 1.0, "high": 4.0, "trained": 8192.0}
"""How Llama 3.1 slows its positions: all that turn slower than `low` times in what it was first trained on by `factor`,
those faster than `high` not at all."""
_KEPT = {"mm", "addmm", "bmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}
_KEPT |= {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_cudnn_attention", "_scaled_mm"}
"""Products, which selective recomputing keeps: everything else is cheap to compute again."""


class RMSNorm(nn.RMSNorm):
    """In float32 whatever the network computes in, as the sum of squares needs it."""

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.float()
        return F.rms_norm(x.float(), self.normalized_shape, weight, self.eps).to(x.dtype)


class Projection(nn.Linear):
    """Without a bias; its weights are drawn with the whole network's."""

    def __init__(self, read: int, written: int) -> None:
        super().__init__(read, written, bias=False)

    def reset_parameters(self) -> None:
        pass


class TokenTable(nn.Embedding):
    """The same for the embedding."""

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

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, _ = x.shape
        x = self.group.spread(x)
        q, k, v = (
            projected.view(batch, length, -1, self.head_width).transpose(1, 2)
            for projected in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        q, k = rotated(q, turns), rotated(k, turns)
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

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns)
        added: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added


class Trunk(nn.Module):
    """All but the head; files of weights call it `model`."""

    def __init__(self, recipe: DecoderRecipe) -> None:
        super().__init__()
        self.embed_tokens = TokenTable(recipe.vocabulary, recipe.width)
        self.layers = nn.ModuleList(DecoderBlock(recipe) for _ in range(recipe.layers))
        self.norm = RMSNorm(recipe.width, eps=recipe.norm_eps, elementwise_affine=recipe.norm_weights)


class TextDecoder(nn.Module):
    """Given tokens, scores over the vocabulary; given also what follows each, the sum of -ln p of those."""

    tensor_plan: Mapping[str, int] = {
        **dict.fromkeys(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight"), 0),
        **dict.fromkeys(("o_proj.weight", "down_proj.weight"), 1),
    }
    """Devices that share a block have some of its heads and of its inner width each."""

    def __init__(self, recipe: DecoderRecipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.model = Trunk(recipe)
        self.lm_head = Projection(recipe.width, recipe.vocabulary)
        if recipe.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.group: TensorGroup = Alone()
        self._turns: tuple[Tensor, Tensor] | None = None
        if not self.lm_head.weight.is_meta:
            self.initialise()

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """What is alike and comes one after the other, so that it can be sharded, compiled and computed again apart."""
        return list(self.model.layers)

    def share_among(self, group: TensorGroup) -> None:
        self.group = group
        for module in self.modules():
            if isinstance(module, (CausalAttention, FeedForward)):
                module.group = group

    def forward(self, tokens: Tensor, targets: Tensor | None = None, *, last: bool = False) -> Tensor:
        """With `last`, the scores of what follows the last token alone."""
        x = self.hidden(tokens)
        if targets is None:
            scores: Tensor = self.lm_head(x[:, -1:] if last else x)
            return scores
        # the head is whole on every device that shares the blocks, and each scores some of the tokens
        rows = self.group.rows(targets.numel())
        read, weight = self.group.spread(x.flatten(0, 1)), self.group.spread(own(self.lm_head.weight))
        return self.group.collect(nll_sum(read[rows], weight, targets.flatten()[rows], self.recipe.loss_chunk))

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the head reads."""
        x = self.model.embed_tokens(tokens)
        turns = self.turns(tokens.shape[1], x)
        again = self.recipe.recompute if self.training and torch.is_grad_enabled() else "none"
        for block in self.model.layers:
            x = block(x, turns) if again == "none" else _recomputed(block, x, turns, again == "selective")
        normed: Tensor = self.model.norm(x)
        return normed

    def turns(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions, in the type and on the device of the stream; made once."""
        kept = self._turns
        if kept is None or len(kept[0]) < length or kept[0].device != like.device or kept[0].dtype != like.dtype:
            angles = torch.outer(
                torch.arange(max(length, self.recipe.context), dtype=torch.float32), frequencies(self.recipe)
            )
            twice = torch.cat((angles, angles), dim=-1).to(like.device)
            self._turns = kept = (twice.cos().to(like.dtype), twice.sin().to(like.dtype))
        return kept[0][:length], kept[1][:length]

    def initialise(self, place: Callable[[Tensor, Tensor], None] = _copy) -> None:
        """Draws every weight from torch's seed, in the order of their names: whole and on the CPU, so that a network is
        the same however it is spread over devices. `place` puts one where it belongs."""
        if self.recipe.tied:  # making room for weights on a device may part them
            self.lm_head.weight = self.model.embed_tokens.weight
        for name, parameter in self.named_parameters():
            with torch.device("cpu"):
                place(parameter, self._drawn(name, parameter.shape))

    def _drawn(self, name: str, shape: torch.Size) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape)
        if self.recipe.init == "torch":
            bound = 1 / math.sqrt(shape[1])  # of the embedding too: where it is not the head's, it is drawn as one
            return torch.empty(shape).uniform_(-bound, bound)
        adds = name.endswith(("o_proj.weight", "down_proj.weight"))
        deviation = self.recipe.init_std / (math.sqrt(2 * self.recipe.layers) if adds else 1)
        return torch.empty(shape).normal_(0.0, deviation)


def frequencies(recipe: DecoderRecipe) -> Tensor:
    """How far each pair of a head turns from one position to the next."""
    pairs = torch.arange(0, recipe.head_width, 2, dtype=torch.float32)
    found = 1.0 / recipe.rope_theta ** (pairs / recipe.head_width)
    if recipe.rope_scaling == "none":
        return found
    scaling = LLAMA_3_1
    often = scaling["trained"] * found / (2 * math.pi)
    share = ((often - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return found * (share + (1 - share) / scaling["factor"])


def rotated(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair (i, i + half) of a head turned by its position's angle."""
    cos, sin = turns
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _recomputed(block: nn.Module, x: Tensor, turns: tuple[Tensor, Tensor], selective: bool) -> Tensor:
    chosen: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, _policy)} if selective else {}
    found: Tensor = checkpoint(block, x, turns, use_reentrant=False, preserve_rng_state=False, **chosen)
    return found


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = operation.__name__.partition(".")[0]
    return CheckpointPolicy.MUST_SAVE if name in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
