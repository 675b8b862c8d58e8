"""Plots a mel spectrogram, and the attention alignment below it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from trainmark.data.mel import MEL

Values = npt.NDArray[np.floating[Any]]

WIDTH_PX = 1000
MAX_LETTERS = 64
"""Texts up to this length label every symbol of the alignment."""
ANCHORS = ((250, 249, 245), (197, 223, 212), (122, 187, 186), (62, 141, 163), (42, 91, 134), (29, 36, 78))
"""Light to dark with uniform steps of lightness, so that it also prints in grey."""

_PAPER, _INK = (255, 255, 255), (40, 44, 52)
_LEFT_PX, _RIGHT_PX, _MEL_PX, _LETTER_PX = 40, 20, 200, 11


def draw(*, alignment: Values, mel: Values, title: str, letters: str) -> bytes:
    """A PNG of a mel spectrogram (bands, frames) and an alignment (frames, symbols).

    `letters` are shown if there is one per symbol and they fit.
    """
    frames, symbols = alignment.shape
    labelled = len(letters) == symbols <= MAX_LETTERS
    height = max(240, symbols * _LETTER_PX) if labelled else 420
    top = 62 + _MEL_PX + 40
    image = Image.new("RGB", (WIDTH_PX, top + height + 52), _PAPER)
    pen = ImageDraw.Draw(image)
    _write(pen, (_LEFT_PX, 14), title, 17)
    _paint(image, pen, mel, 62, _MEL_PX, "mel spectrogram: band over time, darker is louder")
    caption = "attention: which symbol is read, from the first at the bottom to the last at the top"
    _paint(image, pen, alignment.T, top, height, caption)
    for number, letter in enumerate(letters if labelled else ""):
        # on their baselines, so that a comma does not float
        _write(pen, (_LEFT_PX - 12, top + height - (number + 0.5) * height / symbols + 3), letter, anchor="ms")
    _draw_time_axis(pen, top + height, frames)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    return png.getvalue()


def map_colors(shares: Values) -> npt.NDArray[np.uint8]:
    """The colours (..., 3) of values from 0 to 1."""
    steps = np.linspace(0, 1, len(ANCHORS))
    channels = [np.interp(shares, steps, [anchor[channel] for anchor in ANCHORS]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def _paint(image: Image.Image, pen: ImageDraw.ImageDraw, values: Values, top: int, height: int, caption: str) -> None:
    """A heat map with its caption; row 0 is at the bottom, and what is not finite is as light as the least."""
    values = np.nan_to_num(values, nan=-np.inf, posinf=-np.inf)
    finite = values[np.isfinite(values)]
    least, most = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    shares = ((values - least) / max(most - least, 1e-12)).clip(0, 1)
    # resized as values, not as colours: a mean of two colours need not be the colour of the mean
    field = Image.fromarray(np.ascontiguousarray(shares[::-1], np.float32))
    field = field.resize((WIDTH_PX - _LEFT_PX - _RIGHT_PX, height), Image.Resampling.BOX)
    image.paste(Image.fromarray(map_colors(np.asarray(field))), (_LEFT_PX, top))
    _write(pen, (_LEFT_PX, top - 19), caption, 12)


def _draw_time_axis(pen: ImageDraw.ImageDraw, bottom: int, frames: int) -> None:
    length_s, width = frames * MEL.hop / MEL.rate, WIDTH_PX - _LEFT_PX - _RIGHT_PX
    step_s = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, length_s) if length_s <= 12 * step)
    for second in np.arange(0, length_s, step_s):
        x = _LEFT_PX + width * second / length_s
        pen.line((x, bottom, x, bottom + 5), fill=_INK)
        _write(pen, (x, bottom + 9), f"{second:.3g}", anchor="mt")
    _write(pen, (_LEFT_PX + width // 2, bottom + 28), f"seconds ({frames:,} frames)", 12, "mt")


def _write(
    pen: ImageDraw.ImageDraw, at: tuple[float, float], text: str, size: int = _LETTER_PX, anchor: str = "la"
) -> None:
    """One line that ends at the right edge at the latest; characters the font does not have are question marks."""
    font = ImageFont.load_default(size)
    line = "".join(sign if sign.isprintable() else " " for sign in text[:WIDTH_PX]).encode("latin-1", "replace")
    shown = line.decode("latin-1")
    while len(shown) > 1 and at[0] + font.getlength(shown) > WIDTH_PX - _RIGHT_PX and anchor == "la":
        shown = shown[:-4].rstrip() + "..." if shown.endswith("...") else shown[:-3] + "..."
    pen.text(at, shown, fill=_INK, font=font, anchor=anchor)
