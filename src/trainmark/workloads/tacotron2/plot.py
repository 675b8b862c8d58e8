"""Plots a mel spectrogram, and the attention alignment below it."""

from __future__ import annotations

import bisect
import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainmark.data.mel import MEL

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

Values = npt.NDArray[np.floating[Any]]
Color = tuple[int, int, int]

WIDTH_PX = 1000
SECONDS_PER_FRAME = MEL.hop / MEL.rate
MAX_LETTERS = 64
"""Texts up to this length label every symbol of the alignment; longer ones show counts."""

ANCHORS: tuple[Color, ...] = (
    (250, 249, 245),
    (197, 223, 212),
    (122, 187, 186),
    (62, 141, 163),
    (42, 91, 134),
    (29, 36, 78),
)
"""Light to dark with uniform steps of lightness, so that it also prints in grey."""

_PAPER, _INK, _FAINT = (255, 255, 255), (40, 44, 52), (150, 154, 160)
_LEFT_PX, _RIGHT_PX, _MEL_PX = 52, 76, 200
_LETTER_PX = 11


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """A heat map with axes; row 0 is at the bottom."""

    top_px: int
    height_px: int
    values: Values
    caption: str
    scale: tuple[float, float]
    """Values of the lightest and the darkest colour."""

    @property
    def bottom_px(self) -> int:
        return self.top_px + self.height_px

    def row_px(self, row: float) -> int:
        """Centre of a row in pixels."""
        return round(self.bottom_px - (row + 0.5) * self.height_px / len(self.values))


def draw(*, alignment: Values, mel: Values | None, title: str, letters: str | None) -> bytes:
    """A PNG of an alignment (frames, symbols), and of a mel spectrogram (bands, frames) if there is one.

    `letters` are shown if there is one per symbol and they fit.
    """
    if alignment.ndim != 2 or 0 in alignment.shape:
        raise ValueError(f"an alignment is (frames, symbols), not {alignment.shape}")
    if mel is not None and (mel.ndim != 2 or mel.shape[1] != len(alignment)):
        raise ValueError(f"the mel spectrogram {mel.shape} has other frames than the alignment {alignment.shape}")
    png = io.BytesIO()
    _render(alignment, mel, title, letters).save(png, "PNG", optimize=True)
    return png.getvalue()


def map_colors(shares: Values) -> npt.NDArray[np.uint8]:
    """The colours (..., 3) of values from 0 to 1."""
    steps = np.linspace(0, 1, len(ANCHORS))
    channels = [np.interp(shares, steps, [anchor[channel] for anchor in ANCHORS]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def _render(alignment: Values, mel: Values | None, title: str, letters: str | None) -> Image.Image:
    from PIL import Image, ImageDraw

    frames, symbols = alignment.shape
    panels, top_px = [], 62
    if mel is not None:
        mel = _replace_nonfinite(mel)
        scale = float(mel.min()), float(mel.max())
        caption = "mel spectrogram: band over time, darker is louder"
        panels.append(_Panel(top_px=top_px, height_px=_MEL_PX, values=mel, caption=caption, scale=scale))
        top_px += _MEL_PX + 40
    alignment = _replace_nonfinite(alignment)
    labelled = letters is not None and len(letters) == symbols <= MAX_LETTERS
    attention = _Panel(
        top_px=top_px,
        height_px=max(240, symbols * _LETTER_PX) if labelled else 420,
        values=alignment.T,
        caption="attention: which symbol is read, from the first at the bottom to the last at the top",
        scale=(0.0, float(alignment.max())),
    )
    panels.append(attention)
    image = Image.new("RGB", (WIDTH_PX, attention.bottom_px + 52), _PAPER)
    draw = ImageDraw.Draw(image)
    _write(draw, (_LEFT_PX, 14), _fit_text(title, WIDTH_PX - _LEFT_PX - 20, 17), size_px=17)
    for panel in panels:
        _paint(image, draw, panel)
    if mel is not None:
        _draw_row_axis(draw, panels[0])
    if labelled and letters is not None:
        for row, letter in enumerate(letters):
            # on their baselines, so that a comma does not float
            _write(draw, (_LEFT_PX - 12, attention.row_px(row) + 3), letter, size_px=_LETTER_PX, anchor="ms")
    else:
        _draw_row_axis(draw, attention)
    _draw_time_axis(draw, panels, frames)
    return image


def _paint(image: Image.Image, draw: ImageDraw.ImageDraw, panel: _Panel) -> None:
    """Draws the heat map with frame, caption and colour scale."""
    from PIL import Image

    width_px = WIDTH_PX - _LEFT_PX - _RIGHT_PX
    least, most = panel.scale
    shares = ((panel.values - least) / max(most - least, 1e-12)).clip(0, 1)
    # resized as values, not as colours: a mean of two colours need not be the colour of the mean
    field = Image.fromarray(np.ascontiguousarray(shares[::-1], np.float32))
    field = field.resize((width_px, panel.height_px), Image.Resampling.BOX)
    image.paste(Image.fromarray(map_colors(np.asarray(field).clip(0, 1))), (_LEFT_PX, panel.top_px))
    right_px = _LEFT_PX + width_px
    draw.rectangle((_LEFT_PX - 1, panel.top_px - 1, right_px, panel.bottom_px), outline=_FAINT)
    _write(draw, (_LEFT_PX, panel.top_px - 19), panel.caption, size_px=12)

    bar_px = right_px + 12
    ramp = np.linspace(1, 0, panel.height_px)[:, None].repeat(10, axis=1)
    image.paste(Image.fromarray(map_colors(ramp)), (bar_px, panel.top_px))
    draw.rectangle((bar_px - 1, panel.top_px - 1, bar_px + 10, panel.bottom_px), outline=_FAINT)
    _write(draw, (bar_px + 16, panel.top_px), f"{most:.3g}", anchor="lt")
    _write(draw, (bar_px + 16, panel.bottom_px), f"{least:.3g}", anchor="lb")


def _draw_row_axis(draw: ImageDraw.ImageDraw, panel: _Panel) -> None:
    for row in range(0, len(panel.values), _step(len(panel.values), 6)):
        height_px = panel.row_px(row)
        draw.line((_LEFT_PX - 6, height_px, _LEFT_PX - 2, height_px), fill=_FAINT)
        _write(draw, (_LEFT_PX - 9, height_px), str(row), anchor="rm")


def _draw_time_axis(draw: ImageDraw.ImageDraw, panels: list[_Panel], frames: int) -> None:
    """Ticks under every panel, labels under the last."""
    bottom_px, length_s = panels[-1].bottom_px, frames * SECONDS_PER_FRAME
    width_px = WIDTH_PX - _LEFT_PX - _RIGHT_PX
    step_s = _step(length_s * 1000, 12) / 1000
    for number in range(math.floor(length_s / step_s) + 1):
        second = number * step_s
        across_px = round(_LEFT_PX + width_px * second / length_s)
        for panel in panels:
            draw.line((across_px, panel.bottom_px + 1, across_px, panel.bottom_px + 5), fill=_FAINT)
        _write(draw, (across_px, bottom_px + 9), f"{second:g}", anchor="mt")
    _write(draw, (_LEFT_PX + width_px // 2, bottom_px + 28), f"seconds ({frames:,} frames)", size_px=12, anchor="mt")


def _step(span: float, most: int) -> int:
    """A round tick step, 1, 2 or 5 times a power of ten, for at most `most` ticks."""
    power = 1
    while span > most * 10 * power:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if span <= most * power * factor)


def _replace_nonfinite(values: Values) -> Values:
    """The values with NaN and infinities replaced by the minimum of the others."""
    finite = np.isfinite(values)
    return np.where(finite, values, values[finite].min() if finite.any() else 0.0)


def _write(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, *, size_px: int = 11, anchor: str = "la"
) -> None:
    draw.text(at, _to_drawable(text), fill=_INK, font=_font(size_px), anchor=anchor)


def _fit_text(text: str, width_px: int, size_px: int) -> str:
    text, font = _to_drawable(text[:width_px]), _font(size_px)  # no character is narrower than a pixel
    if font.getlength(text) <= width_px:
        return text
    fits = bisect.bisect(range(len(text)), width_px, key=lambda end: font.getlength(f"{text[:end]}..."))
    return text[: max(0, fits - 1)].rstrip() + "..."


def _to_drawable(text: str) -> str:
    """One line of characters that the font has; others become question marks."""
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return line.encode("latin-1", "replace").decode("latin-1")


def _font(size_px: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size_px)
