"""Draws pictures beside their masks, true and predicted, with the names of the classes on them."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from trainmark.datasets.ade20k.layouts import IGNORED
from trainmark.spec.artifact import Artifact
from trainmark.spec.whole_files import write_named
from trainmark.workloads.segmenter.batches import SceneData

FILE = "scenes.png"
SCENES = 3
"""Validation pictures that are drawn after training."""
WIDTH_PX, HIGHEST_PX = 300, 360
"""Of a panel: as wide as that unless it would be higher than this."""
_GAP_PX, _HEAD_PX, _LINE_PX, _MARGIN_PX = 10, 24, 20, 14
_PAPER, _INK, _UNJUDGED = (255, 255, 255), (40, 44, 52), (236, 236, 236)
_NAMED_SHARE = 0.012
"""A class is named on a mask where a region of it has so much of the picture."""
_COLOURS = 255
"""Of the whole drawing: a palette keeps it small enough for a page."""

Pixels = npt.NDArray[np.uint8]
Classes = npt.NDArray[np.int64]
Predict = Callable[[Tensor, tuple[int, int]], Tensor]
"""The class of each pixel, from a picture as the network sees it and the size of the answer."""


@dataclass(frozen=True, kw_only=True)
class ShownScene:
    pixels: Pixels
    """(height, width, 3)."""
    predicted: Classes
    truth: Classes | None = None
    caption: str = ""


def leave(folder: Path, data: SceneData, predict: Predict) -> tuple[Artifact, ...]:
    """The first validation pictures, in the run's folder."""
    shown = []
    for index in range(min(SCENES, len(data.val))):
        image, labels = data.scene(index)
        truth = labels.numpy().astype(np.int64)
        predicted = predict(image, (truth.shape[0], truth.shape[1])).cpu().numpy()
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        shown.append(ShownScene(pixels=pixels, predicted=predicted, truth=truth, caption=_judged(predicted, truth)))
    write_named(folder / FILE, png(shown, data.val.names))
    count = "a validation picture" if len(shown) == 1 else f"{len(shown)} validation pictures"
    return (Artifact(file=FILE, caption=f"{count.capitalize()}, what they show, and what the network took it for"),)


def png(scenes: Sequence[ShownScene], names: Sequence[str]) -> bytes:
    """One row a scene - picture, truth where it is known, prediction - and below them the colours of the classes."""
    rows = [_panels(scene, names) for scene in scenes]
    columns = max(len(row) for row in rows)
    width = 2 * _MARGIN_PX + columns * WIDTH_PX + (columns - 1) * _GAP_PX
    seen = sorted({int(one) for scene in scenes for one in _present(scene) if one < len(names)})
    legend = _legend(seen, names, width - 2 * _MARGIN_PX)
    heights = [max(panel.height for _, panel in row) + _HEAD_PX + _GAP_PX for row in rows]
    sheet = Image.new("RGB", (width, _MARGIN_PX + sum(heights) + legend.height + _MARGIN_PX), _PAPER)
    pen, top = ImageDraw.Draw(sheet), _MARGIN_PX
    for row, height in zip(rows, heights, strict=True):
        for number, (title, panel) in enumerate(row):
            left = _MARGIN_PX + number * (WIDTH_PX + _GAP_PX)
            pen.text((left, top + 4), _fitting(title, WIDTH_PX, 13), fill=_INK, font=_font(13))
            sheet.paste(panel, (left, top + _HEAD_PX))
        top += height
    sheet.paste(legend, (_MARGIN_PX, top))
    file = io.BytesIO()
    sheet.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def colour(label: int) -> tuple[int, int, int]:
    """Of a class: hues far apart for classes that follow each other, and three lightnesses."""
    hue, lightness = (0.58 + label * 0.381966) % 1, (0.46, 0.64, 0.34)[label % 3]
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.62)
    return round(255 * red), round(255 * green), round(255 * blue)


def _panels(scene: ShownScene, names: Sequence[str]) -> list[tuple[str, Image.Image]]:
    height, width = scene.pixels.shape[:2]
    scale = min(WIDTH_PX / width, HIGHEST_PX / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    picture = Image.fromarray(scene.pixels).resize(size, Image.Resampling.LANCZOS)
    panels = [("picture", picture)]
    if scene.truth is not None:
        panels.append(("truth", _painted(scene.truth, size, names)))
    panels.append((f"prediction{scene.caption}", _painted(scene.predicted, size, names)))
    return panels


def _painted(labels: Classes, size: tuple[int, int], names: Sequence[str]) -> Image.Image:
    """A mask in the colours of its classes, with their names where there is room."""
    palette = np.full((IGNORED + 1, 3), _UNJUDGED, np.uint8)
    for label in range(len(names)):
        palette[label] = colour(label)
    mask = Image.fromarray(labels.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    small = np.asarray(mask)
    image = Image.fromarray(palette[small])
    pen = ImageDraw.Draw(image)
    for label in np.unique(small):
        if label < len(names):
            for x, y in _middles(small == label):
                _name(pen, (x, y), names[label], image.width)
    return image


def _name(pen: ImageDraw.ImageDraw, at: tuple[int, int], name: str, width: int) -> None:
    font = _font(11)
    half = font.getlength(name) / 2
    x = min(max(at[0], half + 2), max(half + 2, width - half - 2))
    pen.text((x, at[1]), name, fill=_PAPER, font=font, anchor="mm", stroke_width=1, stroke_fill=_INK)


def _middles(region: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """A place well inside each large connected part of a region: as far as any from its edge."""
    from scipy import ndimage  # late: it takes longer to import than to draw

    numbered, count = ndimage.label(region)
    sizes = np.bincount(numbered.reshape(-1), minlength=count + 1)
    middles = []
    for number in np.flatnonzero(sizes[1:] >= _NAMED_SHARE * region.size) + 1:
        inside = ndimage.distance_transform_edt(np.pad(numbered == number, 1))[1:-1, 1:-1]
        row, column = np.unravel_index(int(inside.argmax()), inside.shape)
        middles.append((int(column), int(row)))
    return middles


def _legend(labels: Sequence[int], names: Sequence[str], width: int) -> Image.Image:
    """A swatch and a name a class, in as many lines as it takes."""
    font = _font(12)
    places, x, y = [], 0.0, 0
    for label in labels:
        needed = _LINE_PX + font.getlength(names[label]) + 16
        if x and x + needed > width:
            x, y = 0.0, y + _LINE_PX
        places.append((label, x, y))
        x += needed
    image = Image.new("RGB", (width, y + _LINE_PX), _PAPER)
    pen = ImageDraw.Draw(image)
    for label, left, top in places:
        pen.rectangle((left, top + 3, left + 13, top + 16), fill=colour(label))
        pen.text((left + _LINE_PX, top + 3), names[label], fill=_INK, font=font)
    return image


def _present(scene: ShownScene) -> Classes:
    both = [scene.predicted, *([scene.truth] if scene.truth is not None else [])]
    return np.unique(np.concatenate([np.unique(labels) for labels in both]))


def _judged(predicted: Classes, truth: Classes) -> str:
    judged = truth != IGNORED
    right = float((predicted == truth)[judged].mean()) if judged.any() else 0.0
    return f": {100 * right:.0f} % of its pixels are right"


def _fitting(text: str, width_px: int, size_px: int) -> str:
    font = _font(size_px)
    while text and font.getlength(text) > width_px:
        text = text[:-1]
    return text


def _font(size_px: int) -> Any:
    return ImageFont.load_default(size_px)
