"""The fields by which a recipe gives a decoder its shape, its data and its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainmark.record.errors import UsageError
from trainmark.record.recipe import Recipe, knob


@dataclass(frozen=True, kw_only=True)
class DecoderRecipe(Recipe):
    layers: int = knob(least=1)
    width: int = knob(least=2)
    """Of the stream that all layers read and add to."""
    heads: int = knob(least=1)
    kv_heads: int = knob(least=1)
    """Heads of keys and values; fewer than `heads` is grouped-query attention."""
    ffn: int = knob(least=1)
    """Inner width of the feed-forward part."""
    activation: str = knob("swiglu", words=("swiglu", "gelu"))
    vocabulary: int = knob(least=2)
    context: int = knob(least=2)
    """Tokens of a window, each of which is predicted from those before it."""
    tied: bool = knob(False)
    """The head that predicts tokens uses the weights of the embedding."""
    rope_theta: float = knob(10_000.0, least=1)
    rope_scaling: str = knob("none", words=("none", "llama3.1"))
    """`llama3.1` slows the turning of positions that are longer than what the network was first trained on."""
    norm_eps: float = knob(1e-5, least=0)
    norm_weights: bool = knob(True)
    scale_attention: bool = knob(False)
    """What attention adds is multiplied by 1 / sqrt(2 x layers)."""
    init: str = knob("normal", words=("normal", "torch"))
    """`normal` draws weights with `init_std`, those that add to the stream with less, as Megatron does; `torch` draws
    as torch's Linear does, and a tied embedding takes the head's."""
    init_std: float = knob(0.02, least=0)

    schedule: str = knob("cosine", words=("cosine", "trapezoid"))
    """`cosine` falls to `last_rate` at the end; `trapezoid` stays, then falls in a line over `cooldown_steps`."""
    warmup_steps: int = knob(0, least=0)
    """The learning rate rises in a line over these."""
    cooldown_steps: int = knob(0, least=0)
    decay_steps: int = knob(0, least=0)
    """Where the schedule ends; 0: where the recipe does."""
    last_rate: float = knob(0.1, least=0, most=1)
    """Share of the learning rate that is left at the end of `cosine`."""
    adam_beta1: float = knob(0.9, least=0, most=1)
    adam_beta2: float = knob(0.95, least=0, most=1)
    adam_eps: float = knob(1e-8, least=0)

    data_order: str = knob("in-order", words=("in-order", "shuffled"))
    """Windows as they follow one another in the text, or in an order drawn anew each epoch."""
    eval_tokens: int = knob(0, least=0)
    """Of the validation text, from its beginning; 0: all."""
    loss_chunk: int = knob(1024, least=1)
    """Tokens whose scores over the vocabulary are in memory at once."""
    recompute: str = knob("none", words=("none", "selective", "full"))
    """What backward computes again instead of keeping it: nothing, all but the products, or whole blocks."""
    tensor_parallel: int = knob(1, least=1)
    """Devices of a node that compute each block together, on the batches of all of them: every one has some of its
    heads and of its inner width. What each holds is sharded further, as `parallel` says."""

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def check_shape(recipe: DecoderRecipe) -> None:
    """UsageError where no network has these numbers."""
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
    """Forward and backward, a multiply-add as 2."""

    attention: float
    """Every weight that multiplies, and attention over the whole window: as PaLM and torchtitan count. Ours."""
    parameters: float
    """6 for each parameter, the embedding among them and attention left out: as FlagPerf counts."""
    causal: float
    """As `attention`, with the half of the window that a token cannot see left out: what flash kernels compute."""


def parameters(recipe: DecoderRecipe) -> int:
    embedding = recipe.vocabulary * recipe.width
    norms = (2 * recipe.layers + 1) * recipe.width if recipe.norm_weights else 0
    return multiplying(recipe) + (0 if recipe.tied else embedding) + norms


def multiplying(recipe: DecoderRecipe) -> int:
    """Parameters that every token is multiplied with."""
    attention = recipe.width * recipe.head_width * (2 * recipe.heads + 2 * recipe.kv_heads)
    feed_forward = (3 if recipe.activation == "swiglu" else 2) * recipe.width * recipe.ffn
    return recipe.layers * (attention + feed_forward) + recipe.vocabulary * recipe.width


def per_token(recipe: DecoderRecipe) -> TokenFlops:
    attention = 12.0 * recipe.layers * recipe.heads * recipe.head_width * recipe.context
    products = 6.0 * multiplying(recipe)
    return TokenFlops(
        attention=products + attention,
        parameters=6.0 * parameters(recipe),
        causal=products + attention / 2,
    )
