"""Lets a trained image classifier name what it sees in an image."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from trainmark.data import image_sets
from trainmark.data.crops import eval_crop
from trainmark.data.imagenet import make
from trainmark.data.jpeg import BadImage, JpegDecoder, Pixels
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import knob
from trainmark.record.sample import ImagePart, Sample, SampleSettings, TextPart
from trainmark.workloads.normalise import normalise
from trainmark.workloads.sampling import SampleRequest, Trained


@dataclass(frozen=True, kw_only=True)
class NamingSettings(SampleSettings):
    """The seed chooses the validation image where none is given."""

    top: int = knob(5, least=1, most=1000)
    """How many classes are named."""


def sample(trained: Trained, asked: SampleRequest) -> Sample:
    """The likeliest classes of an image, and the part of it that the network saw."""
    settings, recipe = asked.settings(NamingSettings), trained.recipe
    titles = _titles(asked.data, recipe.classes)
    truth: int | None = None
    read: Callable[[], bytes]
    if asked.given is None:
        val = image_sets.open_split(asked.data_folder, "val")
        number = int(np.random.default_rng(settings.seed).integers(len(val)))
        path, truth = Path(val.path(number)), int(val.labels[number])
        read = partial(val.read, number)
    else:
        path = Path(asked.given)
        read = path.read_bytes
    pixels = _seen(path, read, recipe.image_px, recipe.eval_resize_px, turn_by_exif=recipe.exif == "turn")
    images = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2).to(trained.device.torch)
    scores = trained.model(normalise(images, next(trained.model.parameters()).dtype)).float()[0]
    shares, classes = (found.cpu().tolist() for found in scores.softmax(0).topk(min(settings.top, len(scores))))
    lines = [f"{100 * share:5.1f} %  {titles[number]}" for share, number in zip(shares, classes, strict=True)]
    right = "" if truth is None else f"; it is: {titles[truth]}"
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG", optimize=True)
    found = [
        {"class": number, "name": titles[number], "probability": share}
        for share, number in zip(shares, classes, strict=True)
    ]
    return Sample(
        parts=(
            TextPart(text="\n".join(lines), caption=f"what the network takes {path.name} for{right}"),
            ImagePart(png=png.getvalue(), caption=f"what it saw of {path.name}"),
        ),
        shown=str(path),
        facts={"classes": found, "truth": None if truth is None else titles[truth]},
    )


def _titles(folder: Path | None, classes: int) -> list[str]:
    """Of all classes the network can name; by their numbers where the data is not there to say more."""
    found: list[str] = []
    if folder is not None:
        found = make.class_titles(folder, image_sets.class_names(folder))
    return [*found, *(f"class {number}" for number in range(len(found), classes))]


def _seen(path: Path, read: Callable[[], bytes], size: int, resize_to: int, *, turn_by_exif: bool) -> Pixels:
    """The pixels (size, size, 3) by which an image is judged in evaluation."""
    pixels = np.empty((size, size, 3), np.uint8)
    try:
        choose = partial(eval_crop, size=size, resize_to=resize_to)
        JpegDecoder(turn_by_exif=turn_by_exif).decode(read(), choose, pixels)
    except BadImage as error:
        raise NotReadyError(f"{path} is no picture that can be read: {error}; give a JPEG or a PNG file") from error
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror or error}") from error
    return pixels
