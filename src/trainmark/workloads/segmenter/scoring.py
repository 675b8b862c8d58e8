"""Sliding-window inference on whole images, and the counts of its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.data.ade20k.reader import IGNORED
from trainmark.data.ade20k.views import window_starts
from trainmark.workloads.segmenter.batches import SegmenterRecipe, one_class_miou
from trainmark.workloads.segmenter.model import upsample
from trainmark.workloads.vision import normalise

SUMS = ("right", "taken", "judged", "ceiling_right", "ceiling_taken")
"""Pixels per class: intersection, predicted, true; and the first two of the upper bound."""
_MAX_VALUES = 64 << 20
"""Pixel scores in memory at once; a large image is processed some classes at a time."""


def predict(model: nn.Module, image: Tensor, size: tuple[int, int], recipe: SegmenterRecipe) -> Tensor:
    """The class of each pixel (height, width), from the resized `image` (3, height, width)."""
    weight = next(model.parameters())
    pixels = normalise(image.to(weight.device)[None], weight.dtype, centring=recipe.centring)[0]
    return best_class(slide(model, pixels, recipe.image_px, recipe.window_stride, recipe.classes), size)


def slide(network: Callable[[Tensor], Tensor], image: Tensor, size: int, stride: int, classes: int) -> Tensor:
    """Scores (classes, height, width) of an image (3, height, width) from windows, averaged where these overlap."""
    height, width = image.shape[1:]
    places = [(top, left) for top in window_starts(height, size, stride) for left in window_starts(width, size, stride)]
    crops = torch.stack([image[:, top : top + size, left : left + size] for top, left in places])
    scores = network(crops)
    if len(places) == 1:
        return scores[0]
    total = scores.new_zeros(classes, height, width)
    times = scores.new_zeros(height, width)
    for (top, left), scored in zip(places, scores, strict=True):
        total[:, top : top + size, left : left + size] += scored
        times[top : top + size, left : left + size] += 1
    return total / times


def best_class(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """The argmax class (height, width) after upsampling scores (classes, rows, columns); the first of equals."""
    step = max(1, _MAX_VALUES // (size[0] * size[1]))
    best, found = None, scores.new_zeros(size, dtype=torch.long)
    for first in range(0, len(scores), step):
        values, places = upsample(scores[None, first : first + step], size)[0].max(0)
        if best is None:
            best, found = values, places
        else:
            better = values > best
            best, found = torch.where(better, values, best), torch.where(better, places + first, found)
    return found


def ceiling(labels: Tensor, seen: tuple[int, int], patch_px: int) -> Tensor:
    """Upper bound: the classes that interpolation gives from the true share of each class per patch.

    `seen` is the height and width of the network's input.
    """
    present = torch.bincount(labels.flatten(), minlength=IGNORED)[:IGNORED].nonzero()[:, 0]
    if not len(present):
        return torch.zeros_like(labels, dtype=torch.long)
    rows, columns = (max(1, round(side / patch_px)) for side in seen)
    # one class at a time
    shares = torch.stack(
        [F.interpolate((labels == one)[None, None].float(), (rows, columns), mode="area")[0, 0] for one in present]
    )
    return present.take(best_class(shares, (labels.shape[0], labels.shape[1])))


def count(found: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per class: intersection, predicted and true pixels, without ignored ones."""
    judged = labels != IGNORED
    truth = labels.long()
    # one more bin for ignored pixels
    places = (
        torch.where(judged & (found == truth), truth, classes),
        torch.where(judged, found, classes),
        torch.where(judged, truth, classes),
    )
    right, taken, of_it = (torch.bincount(one.flatten(), minlength=classes + 1)[:classes] for one in places)
    return right, taken, of_it


def qualities(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Metrics in percent, from sums over all images of all ranks."""
    right, judged = sums["right"], sums["judged"]
    of_each = [found / there for found, there in zip(right, judged, strict=True) if there]
    return {
        "mIoU": mean_iou(right, sums["taken"], judged),
        "aAcc": 100 * sum(right) / max(1, sum(judged)),
        "mAcc": 100 * fmean(of_each) if of_each else 0.0,
        "one_class_mIoU": one_class_miou(judged),
        "ceiling_mIoU": mean_iou(sums["ceiling_right"], sums["ceiling_taken"], judged),
    }


def mean_iou(right: Sequence[float], taken: Sequence[float], judged: Sequence[float]) -> float:
    """In percent, over the classes that occur or were predicted."""
    either = [one + other - both for both, one, other in zip(right, taken, judged, strict=True)]
    shares = [both / any_ for both, any_ in zip(right, either, strict=True) if any_]
    return 100 * fmean(shares) if shares else 0.0
