"""Recipe fields of a decoder: shape, data and training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainmark.record.errors import UsageError
from trainmark.record.recipe import Recipe, knob


@dataclass(frozen=True, kw_only=True)
class DecoderRecipe(Recipe):
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


def parameters(recipe: DecoderRecipe) -> int:
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
        parameters=6.0 * parameters(recipe),
        causal=products + attention / 2,
    )
