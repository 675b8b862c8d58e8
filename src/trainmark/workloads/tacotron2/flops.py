"""FLOPs of training Tacotron2, from its shapes: what the network's mathematics takes, however it is computed."""

from __future__ import annotations

from itertools import pairwise

from trainmark.workloads.tacotron2.facts import CLIP_FRAMES
from trainmark.workloads.tacotron2.model import Sizes

CLIP_SYMBOLS = 100
"""Of a clip of LJSpeech, on average; what the encoder does for its letters is shared out among its frames."""


def per_frame(sizes: Sizes, *, symbols: int = CLIP_SYMBOLS, frames: int = CLIP_FRAMES) -> float:
    """Of one mel frame, forward and backward, with its share of the encoder."""
    return of_frame(sizes, symbols) + of_symbol(sizes) * symbols / frames


def of_frame(sizes: Sizes, symbols: int) -> float:
    """What grows with the frames of a clip of so many symbols: prenet, both recurrences, attention, postnet."""
    hidden, said, width = sizes.attention_rnn, sizes.decoder_rnn, sizes.encoder
    summary = said + width
    attention = (
        hidden * sizes.attention  # the query
        + symbols * sizes.location_kernel * 2 * sizes.location_filters
        + symbols * sizes.location_filters * sizes.attention
        + symbols * sizes.attention  # the energies
        + symbols * width  # the context
    )
    widths = [sizes.bands, *[sizes.postnet] * (sizes.postnet_layers - 1), sizes.bands]
    products = (
        sizes.prenet * sizes.prenet
        + 4 * hidden * (sizes.prenet + width + hidden)
        + attention
        + 4 * said * (hidden + width + said)
        + summary * (sizes.bands + 1)  # mel and gate
        + sum(a * b * sizes.postnet_kernel for a, b in pairwise(widths))
    )
    # the prenet's first layer needs no gradient of its input, the frames
    return 2 * (_TRAINED * products + (_TRAINED - 1) * sizes.bands * sizes.prenet)


def of_symbol(sizes: Sizes) -> float:
    """What grows with the letters alone: the encoder, and the keys attention compares with."""
    width = sizes.encoder
    convolutions = sizes.encoder_layers * width * width * sizes.encoder_kernel
    recurrence = 2 * 4 * (width // 2) * (width + width // 2)
    return 2 * _TRAINED * (convolutions + recurrence + width * sizes.attention)


_TRAINED = 3
"""A product is computed once forward; backward takes two of its size, one for each factor's gradient."""
