from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainmark.workloads.tacotron2 import plot
from trainmark.workloads.tacotron2.plot import ANCHORS, Values, map_colors


def drawn(
    path: Path, alignment: Values, *, mel: Values | None = None, title: str = "hello", letters: str | None = None
) -> np.ndarray:
    path.write_bytes(plot.draw(alignment=alignment, mel=mel, title=title, letters=letters))
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def dark(pixels: np.ndarray) -> np.ndarray:
    """Where the darkest colour of the scale was painted, as (row, column) pairs left of the scale itself."""
    rows, columns = np.nonzero((pixels == ANCHORS[-1]).all(-1))
    return np.stack((rows, columns), 1)[columns < 924]


def test_time_goes_right_and_the_text_goes_up(tmp_path: Path) -> None:
    spots = dark(drawn(tmp_path / "x.png", np.eye(40)))
    first, last = spots[spots[:, 1].argmin()], spots[spots[:, 1].argmax()]
    assert first[1] < 100 and last[1] > 850
    assert first[0] - last[0] > 350
    assert np.corrcoef(spots[:, 0], spots[:, 1])[0, 1] < -0.99


def test_low_bands_are_at_the_bottom_of_the_spectrogram(tmp_path: Path) -> None:
    mel = np.full((80, 50), -11.5)
    mel[:8] = 1.0
    spots = dark(drawn(tmp_path / "x.png", np.full((50, 30), 1e-9), mel=mel))
    spots = spots[spots[:, 0] < 270]
    assert spots[:, 0].min() > 230
    assert len(spots) == pytest.approx(872 * 20, rel=0.01)


def test_the_image_is_higher_with_a_spectrogram_and_as_wide(tmp_path: Path) -> None:
    alone = drawn(tmp_path / "a.png", np.eye(30))
    both = drawn(tmp_path / "b.png", np.eye(30), mel=np.zeros((80, 30)))
    assert alone.shape[1] == both.shape[1] == 1000
    assert both.shape[0] == alone.shape[0] + 240


def test_letters_are_shown_where_each_symbol_has_one_and_they_fit(tmp_path: Path) -> None:
    labels = slice(0, 44)
    plain = drawn(tmp_path / "a.png", np.eye(30))
    lettered = drawn(tmp_path / "b.png", np.eye(30), letters="abcdefghijklmnopqrstuvwxyzabcd")
    assert (lettered[:, labels] < 200).sum() > 2 * (plain[:, labels] < 200).sum()
    assert (drawn(tmp_path / "c.png", np.eye(30), letters="abc") == plain).all()
    long = drawn(tmp_path / "d.png", np.eye(190))
    assert (drawn(tmp_path / "e.png", np.eye(190), letters="a" * 190) == long).all()


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
def test_any_title_is_drawn_on_its_one_line(title: str, tmp_path: Path) -> None:
    pixels = drawn(tmp_path / "x.png", np.eye(20), title=title)
    assert (pixels[:, -19:] == 255).all(), "ink up to the right edge"
    assert (pixels[:10] == 255).all()
    assert (pixels[36:42] == 255).all(), "a second line"


def test_odd_letters_are_drawn_too(tmp_path: Path) -> None:
    odd = drawn(tmp_path / "x.png", np.eye(5), letters="é两\n\ud800 ")
    plain, none = (drawn(tmp_path / "x.png", np.eye(5), letters=letters) for letters in ("abcde", "     "))
    assert odd.shape == plain.shape
    assert (odd != none).any(), "no ink where the letters are"


@pytest.mark.parametrize("shape", [(1, 1), (1, 60), (700, 1), (2500, 400)])
def test_any_size_can_be_drawn(shape: tuple[int, int], tmp_path: Path) -> None:
    pixels = drawn(tmp_path / "x.png", np.full(shape, 1 / shape[1]), mel=np.zeros((80, shape[0])))
    assert pixels.shape[0] < 1100


def test_values_that_are_no_numbers_are_drawn_as_nothing(tmp_path: Path) -> None:
    alignment = np.eye(20)
    alignment[3, 3] = np.nan
    expected = np.eye(20)
    expected[3, 3] = 0
    assert (drawn(tmp_path / "a.png", alignment) == drawn(tmp_path / "b.png", expected)).all()
    drawn(tmp_path / "c.png", np.full((20, 9), np.nan), mel=np.full((80, 20), np.inf))


def test_the_colours_grow_darker_evenly() -> None:
    light = (map_colors(np.linspace(0, 1, 101)) / 255 @ [0.2126, 0.7152, 0.0722]) ** (1 / 1.2)
    steps = -np.diff(light)
    assert (steps > 0).all()
    assert steps.max() < 2.5 * steps.mean()
    assert [tuple(color) for color in map_colors(np.array([0.0, 1.0]))] == [ANCHORS[0], ANCHORS[-1]]


def test_the_same_values_give_the_same_file(tmp_path: Path) -> None:
    drawn(tmp_path / "a.png", np.eye(20), letters="a" * 20)
    drawn(tmp_path / "b.png", np.eye(20), letters="a" * 20)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_shapes_that_cannot_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other frames"):
        drawn(tmp_path / "x.png", np.eye(5), mel=np.zeros((80, 6)))
    with pytest.raises(ValueError, match="an alignment is"):
        drawn(tmp_path / "x.png", np.zeros((5, 0)))
