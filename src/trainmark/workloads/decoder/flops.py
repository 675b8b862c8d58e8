"""The parameters of a decoder and the FLOPs of training it on a token, by formula, as three conventions count them."""

from __future__ import annotations

from typing import NamedTuple

from trainmark.workloads.decoder.recipes import DecoderRecipe


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
