"""The plot of a reading: directions, colours, labels, and odd inputs."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from trainmark.workloads.tacotron2 import plot
from trainmark.workloads.tacotron2.plot import ANCHORS, Values


def drawn(alignment: Values, *, mel: Values | None = None, title: str = "hello", letters: str = "") -> np.ndarray:
    mel = np.zeros((80, len(alignment))) if mel is None else mel
    png = plot.draw(alignment=alignment, mel=mel, title=title, letters=letters)
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def dark(pixels: np.ndarray) -> np.ndarray:
    """Where the darkest colour was painted, as (row, column) pairs."""
    return np.stack(np.nonzero((pixels == ANCHORS[-1]).all(-1)), 1)


def test_time_goes_right_and_the_text_goes_up() -> None:
    spots = dark(drawn(np.eye(40)))
    first, last = spots[spots[:, 1].argmin()], spots[spots[:, 1].argmax()]
    assert first[1] < 100 and last[1] > 850
    assert first[0] - last[0] > 350
    assert np.corrcoef(spots[:, 0], spots[:, 1])[0, 1] < -0.99


def test_low_bands_are_at_the_bottom_of_the_spectrogram() -> None:
    mel = np.full((80, 50), -11.5)
    mel[:8] = 1.0
    spots = dark(drawn(np.full((50, 30), 1e-9), mel=mel))
    assert spots[:, 0].min() > 230 and spots[:, 0].max() < 270
    assert len(spots) == pytest.approx(940 * 20, rel=0.01)


def test_letters_are_shown_where_each_symbol_has_one_and_they_fit() -> None:
    labels = slice(0, 36)
    plain = drawn(np.eye(30))
    lettered = drawn(np.eye(30), letters="abcdefghijklmnopqrstuvwxyzabcd")
    assert (lettered[:, labels] < 200).sum() > 2 * (plain[:, labels] < 200).sum()
    assert (drawn(np.eye(30), letters="abc") == plain).all()
    assert (drawn(np.eye(190), letters="a" * 190) == drawn(np.eye(190))).all()


@pytest.mark.parametrize(
    "title",
    [
        "",
        "word " * 500,
        "两行\n第二行",
        "\x1b[31m red \x00 \ud800",
        "emoji 🎉 and \u202e",
        "<b>&amp;</b>",
    ],
)
def test_any_title_is_drawn_on_its_one_line(title: str) -> None:
    pixels = drawn(np.eye(20), title=title)
    assert (pixels[:, -19:] == 255).all(), "ink up to the right edge"
    assert (pixels[:10] == 255).all()
    assert (pixels[36:42] == 255).all(), "a second line"


@pytest.mark.parametrize("shape", [(1, 1), (1, 60), (700, 1), (2500, 400)])
def test_any_size_can_be_drawn(shape: tuple[int, int]) -> None:
    assert drawn(np.full(shape, 1 / shape[1])).shape[0] < 1100
