"""Draws images beside their true and predicted masks, with the names of their classes."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps

from trainmark.data.ade20k import reader
from trainmark.data.ade20k.reader import IGNORED
from trainmark.data.ade20k.views import SceneReader
from trainmark.data.jpeg import BadImage, JpegDecoder
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import knob
from trainmark.record.sample import ImagePart, Sample, SampleSettings
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.segmenter import scoring
from trainmark.workloads.segmenter.batches import fit_image

WIDTH_PX, HIGHEST_PX = 300, 360
"""Panel width, unless its height would exceed the second."""
_GAP_PX, _HEAD_PX, _LINE_PX, _MARGIN_PX, _NAME_PX = 10, 24, 20, 14, 200
_PAPER, _INK, _UNJUDGED = (255, 255, 255), (40, 44, 52), (236, 236, 236)
MAX_NAME = 24
"""Characters of a class name that fit beside its colour."""
_COLOURS = 255
"""Palette size, which keeps the file small enough for a page."""

Pixels = npt.NDArray[np.uint8]
Classes = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SceneSettings(SampleSettings):
    """The seed chooses validation images if no image is given."""

    scenes: int = knob(3, least=1, most=12)
    """Number of images shown."""


@dataclass(frozen=True, kw_only=True)
class ShownScene:
    pixels: Pixels
    """(height, width, 3)."""
    predicted: Classes
    truth: Classes | None = None

    @property
    def classes(self) -> Classes:
        both = [self.predicted, *([self.truth] if self.truth is not None else [])]
        return np.unique(np.concatenate([labels.reshape(-1) for labels in both]))

    @property
    def right(self) -> float | None:
        """Pixel accuracy without ignored pixels."""
        if self.truth is None or not (judged := self.truth != IGNORED).any():
            return None
        return float((self.predicted == self.truth)[judged].mean())


def sample(trained: Trained, request: SampleRequest) -> Sample:
    """The given image, or some of the validation set with the ground truth."""
    settings, recipe = request.settings(SceneSettings), trained.recipe
    val = reader.open_split(request.data, "val") if request.data is not None else None
    known = val.names if val is not None else ()
    names = [*known, *(f"class {number}" for number in range(len(known), recipe.classes))]
    read: list[Callable[[], tuple[Pixels, Pixels | None]]]
    if request.given is None:
        val = reader.open_split(request.data_folder, "val")
        chosen = np.random.default_rng(settings.seed).permutation(len(val))[: settings.scenes].tolist()
        paths = [Path(val.path(index)) for index in chosen]
        read = [partial(SceneReader().read, val, index) for index in chosen]
        what, truth = f"{len(paths)} validation images", ", the true classes of the pixels,"
    else:
        paths = [Path(request.given)]
        read = [partial(_read_image, paths[0])]
        what, truth = paths[0].name, ""
    scenes = [_predict_scene(trained, path, one) for path, one in zip(paths, read, strict=True)]
    return Sample(
        parts=(ImagePart(png=png(scenes, names), caption=f"{what}{truth} and what the network took them for"),),
        shown=", ".join(map(str, paths)),
        facts={"scenes": [_facts(scene, path, names) for scene, path in zip(scenes, paths, strict=True)]},
    )


def _read_image(path: Path) -> tuple[Pixels, None]:
    return JpegDecoder().decode_whole(path.read_bytes()), None


def _predict_scene(trained: Trained, path: Path, read: Callable[[], tuple[Pixels, Pixels | None]]) -> ShownScene:
    """The prediction for an image, with the ground truth if it is known."""
    try:
        pixels, labels = read()
    except BadImage as error:
        raise NotReadyError(f"{path} is no image that can be read: {error}; give a JPEG or a PNG file") from error
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror or error}") from error
    pixels = pixels.copy()
    image = fit_image(pixels, trained.recipe.image_px)
    predicted = scoring.predict(trained.model, image, (pixels.shape[0], pixels.shape[1]), trained.recipe).cpu().numpy()
    return ShownScene(pixels=pixels, predicted=predicted, truth=None if labels is None else labels.astype(np.int64))


def _facts(scene: ShownScene, path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Share of pixels per predicted class, and the accuracy."""
    counts = np.bincount(scene.predicted.reshape(-1), minlength=len(names))
    found = {
        names[label]: round(float(counts[label] / counts.sum()), 4) for label in np.argsort(-counts) if counts[label]
    }
    return {"picture": str(path), "shares": found, "right": scene.right}


def png(scenes: Sequence[ShownScene], names: Sequence[str]) -> bytes:
    """One row per scene - image, ground truth if known, prediction - and the classes' colours below."""
    rows = [_panels(scene, len(names)) for scene in scenes]
    columns = max(len(row) for row in rows)
    width = 2 * _MARGIN_PX + columns * WIDTH_PX + (columns - 1) * _GAP_PX
    heights = [max(panel.height for _, panel in row) + _HEAD_PX + _GAP_PX for row in rows]
    classes = sorted({int(label) for scene in scenes for label in scene.classes if label < len(names)})
    across = width // _NAME_PX
    legend_px = _LINE_PX * math.ceil(len(classes) / across)
    sheet = Image.new("RGB", (width, 2 * _MARGIN_PX + sum(heights) + legend_px), _PAPER)
    pen, top, font = ImageDraw.Draw(sheet), _MARGIN_PX, ImageFont.load_default(13)
    for row, height in zip(rows, heights, strict=True):
        for number, (title, panel) in enumerate(row):
            left = _MARGIN_PX + number * (WIDTH_PX + _GAP_PX)
            pen.text((left, top + 4), title, fill=_INK, font=font)
            sheet.paste(panel, (left, top + _HEAD_PX))
        top += height
    for number, label in enumerate(classes):
        x, y = _MARGIN_PX + number % across * _NAME_PX, top + number // across * _LINE_PX
        pen.rectangle((x, y + 3, x + 13, y + 16), fill=colour(label))
        pen.text((x + _LINE_PX, y + 2), names[label][:MAX_NAME], fill=_INK, font=font)
    file = io.BytesIO()
    sheet.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def colour(label: int) -> tuple[int, int, int]:
    """Colour of a class: distant hues for consecutive classes, and three lightnesses."""
    hue, lightness = (0.58 + label * 0.381966) % 1, (0.46, 0.64, 0.34)[label % 3]
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, 0.62)
    return round(255 * red), round(255 * green), round(255 * blue)


def _panels(scene: ShownScene, classes: int) -> list[tuple[str, Image.Image]]:
    palette = np.full((IGNORED + 1, 3), _UNJUDGED, np.uint8)
    palette[:classes] = [colour(label) for label in range(classes)]
    judged = "" if scene.right is None else f": {100 * scene.right:.0f} % of the pixels are right"
    named = {
        "image": scene.pixels,
        "truth": None if scene.truth is None else palette[scene.truth],
        f"prediction{judged}": palette[scene.predicted],
    }
    return [
        (title, ImageOps.contain(Image.fromarray(pixels), (WIDTH_PX, HIGHEST_PX), Image.Resampling.BOX))
        for title, pixels in named.items()
        if pixels is not None
    ]
