"""Scenes and their masks: drawn, laid out as three public sets are, read, checked, unpacked and cut at random."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from trainmark.data import find
from trainmark.data.ade20k import make, prepare, reader, views
from trainmark.data.ade20k.reader import IGNORED, SceneCounts
from trainmark.data.ade20k.views import Distortion, SceneReader, ViewSettings
from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.jpeg import BadImage
from trainmark.record.errors import NotReadyError, UsageError

COUNTS = SceneCounts(train=4, val=3)


def make_small(folder: Path) -> Path:
    make.make(folder, train=COUNTS.train, val=COUNTS.val, classes=6, long_side=80)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small(tmp_path_factory.mktemp("scenes") / "set")


@pytest.fixture
def own(root: Path, tmp_path: Path) -> Path:
    """A set the test may damage."""
    return Path(shutil.copytree(root, tmp_path / "set"))


# Drawing


def test_the_same_seed_draws_the_same_scenes_and_another_others(root: Path, tmp_path: Path) -> None:
    again = make_small(tmp_path / "again")
    files = sorted(path.relative_to(root) for path in root.rglob("*.*") if path.is_file())
    assert len(files) == 2 * 7 + 2
    assert all((root / path).read_bytes() == (again / path).read_bytes() for path in files)
    make.make(tmp_path / "other", train=1, val=1, classes=6, long_side=80, seed=1)
    image = "images/training/ADE_train_00000001.jpg"
    assert (tmp_path / "other" / image).read_bytes() != (root / image).read_bytes()


def test_a_seed_gives_the_scenes_it_gave_when_records_were_made() -> None:
    digest = hashlib.sha256()
    for seed in range(8):
        for plane in make.draw(8, np.random.default_rng(seed), long_side=64):
            digest.update(plane.tobytes())
    assert digest.hexdigest()[:16] == "585696e1dc6d5094"


def test_a_scene_holds_several_classes_and_a_thin_border_that_nobody_judges() -> None:
    drawn = [make.draw(8, np.random.default_rng(number), long_side=128) for number in range(12)]
    for pixels, mask in drawn:
        assert pixels.shape[:2] == mask.shape
        assert make.BACKGROUND in mask and len(np.unique(mask[mask >= make.FIRST_FORM])) >= 1
        assert 0 < (mask == make.VOID).mean() < 0.08
    found = set(np.unique(np.concatenate([mask.reshape(-1) for _, mask in drawn])).tolist())
    assert found == set(range(9))
    assert make.class_name(2) == "ground" and make.class_name(3) == "striped star"


@pytest.mark.parametrize("words", [{"train": 0}, {"classes": 2}, {"classes": 151}, {"seed": -1}, {"long_side": 8}])
def test_a_set_that_cannot_be_is_refused(tmp_path: Path, words: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        find("ade20k").make(tmp_path / "set", **words)


# Reading


def test_the_synthetic_set_is_read_as_ade20k(root: Path) -> None:
    train = reader.open_split(root, "train")
    assert train.layout.title == "ADE20K" and len(train) == 4
    assert train.names[:3] == ("background", "ground", "striped star")
    pixels, labels = SceneReader().read(train, 0)
    stored = np.asarray(Image.open(train.mask_path(0)))
    assert pixels.shape[:2] == labels.shape == stored.shape
    assert (labels[stored == 0] == IGNORED).all() and (labels[stored > 0] == stored[stored > 0] - 1).all()


def save(path: Path, image: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def voc(root: Path) -> Path:
    for split, name in (("train", "2007_000032"), ("val", "2007_000033")):
        mask = Image.fromarray(np.array([[0, 1], [20, 255]], np.uint8)).convert("P")
        mask.putpalette([7, 8, 9] * 256)
        save(root / "JPEGImages" / f"{name}.jpg", Image.new("RGB", (2, 2)))
        save(root / "SegmentationClass" / f"{name}.png", mask)
        (root / "ImageSets/Segmentation").mkdir(parents=True, exist_ok=True)
        (root / "ImageSets/Segmentation" / f"{split}.txt").write_text(f"{name}\n")
    return root


def cityscapes(root: Path) -> Path:
    for split in ("train", "val"):
        name = "bonn_000000_000019"
        save(root / "leftImg8bit" / split / "bonn" / f"{name}_leftImg8bit.png", Image.new("RGB", (2, 2)))
        mask = Image.fromarray(np.array([[7, 33], [0, 26]], np.uint8))
        save(root / "gtFine" / split / "bonn" / f"{name}_gtFine_labelIds.png", mask)
        save(root / "gtFine" / split / "bonn" / f"{name}_gtFine_color.png", Image.new("RGB", (2, 2)))
    return root


@pytest.mark.parametrize(
    ("lay_out", "below", "title", "classes", "labels"),
    [
        (voc, "VOCdevkit/VOC2012", "VOC2012", 21, [[0, 1], [20, 255]]),
        (cityscapes, ".", "Cityscapes", 19, [[0, 18], [255, 13]]),
    ],
)
def test_other_sets_are_read_by_the_same_table(
    tmp_path: Path, lay_out: Callable[[Path], Path], below: str, title: str, classes: int, labels: list[list[int]]
) -> None:
    lay_out(tmp_path / below)
    train = reader.open_split(tmp_path, "train")
    assert (train.layout.title, len(train.names), len(train)) == (title, classes, 1)
    assert SceneReader().read(train, 0)[1].tolist() == labels
    report = prepare.verify(tmp_path, decode="full")
    assert report.ok and str(report.found) == "1 train and 1 val scenes, 25.0 % of their pixels ignored"


def png(array: np.ndarray, mode: str | None = None) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array, mode).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "its mask is empty"),
        (b"GIF89a", "its mask is no PNG"),
        (png(np.zeros((3, 3, 3), np.uint8)), "one channel.*full ADE20K"),
        (png(np.zeros((3, 3), np.uint16)), "one channel and 8 bits"),
        (png(np.full((3, 3), 7, np.uint8)), "holds 7, which is no class of ADE20K's 6"),
        (png(np.zeros((30, 30), np.uint8))[:50], "cannot be decoded"),
    ],
)
def test_a_mask_that_is_none_is_told_what_it_is(root: Path, data: bytes, said: str) -> None:
    with pytest.raises(BadImage, match=said):
        reader.open_split(root, "train").labels(data)


def test_a_mask_that_is_missing_or_of_another_size_is_told(own: Path) -> None:
    train = reader.open_split(own, "train")
    Path(train.mask_path(0)).unlink()
    Path(train.mask_path(1)).write_bytes(png(np.ones((5, 4), np.uint8)))
    with pytest.raises(BadImage, match=r"its mask annotations/training/ADE_train_00000001.png is not there"):
        SceneReader().read(train, 0)
    with pytest.raises(BadImage, match=r"its mask is 4x5 and it is \d+x\d+"):
        SceneReader().read(train, 1)


def test_a_folder_of_something_else_is_refused_with_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"ADE20K has images/training.*VOC2012 has.*Cityscapes has"):
        reader.open_split(tmp_path, "train")


# Checking


def test_a_whole_set_is_found_whole(root: Path) -> None:
    for decode in ("none", "header", "full"):
        report = prepare.verify(root, decode=decode)  # type: ignore[arg-type]
        assert report.ok and not report.notes, decode


def test_every_damage_is_named(own: Path) -> None:
    train = reader.open_split(own, "train")
    image = Path(train.path(0))
    image.write_bytes(image.read_bytes()[:-700])
    Path(train.mask_path(1)).write_bytes(png(np.full((4, 4), 99, np.uint8)))
    Path(train.mask_path(2)).write_bytes(png(np.ones((4, 4), np.uint8)))
    Path(train.mask_path(3)).unlink()
    report = prepare.verify(own)
    said = {Path(found.subject).name: found.sentence for found in report.problems}
    assert "truncated" in said["ADE_train_00000001.jpg"]
    assert "holds 99" in said["ADE_train_00000002.jpg"]
    assert "its mask is 4x4" in said["ADE_train_00000003.jpg"]
    assert "cannot be read" in said["ADE_train_00000004.jpg"]
    Path(train.path(3)).unlink()
    assert "3 train and 3 val scenes, " in prepare.verify(own).sentence()
    assert "where 4 train and 3 val scenes were expected" in prepare.verify(own).sentence()


def test_a_nearly_whole_ade20k_is_not_whole(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "trainmark-set.json").unlink()
    assert reader.expected_counts(own) is None, "a small part may be meant"
    monkeypatch.setattr(reader, "LAYOUTS", (_with_whole(reader.LAYOUTS[0]),))
    assert reader.expected_counts(own) == SceneCounts(train=4, val=9)


def _with_whole(layout: reader.SceneLayout) -> reader.SceneLayout:
    from dataclasses import replace

    return replace(layout, published=SceneCounts(train=4, val=9))


# Unpacking


def zip_set(root: Path, archive: Path, top: str = "ADEChallengeData2016") -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(root.rglob("*")):
            if path.name != "trainmark-set.json":
                file.write(path, f"{top}/{path.relative_to(root)}")
    return archive


def unpack(archive: Path, out: Path, any_archive: bool = False) -> str:
    return prepare.prepare(out, any_archive=any_archive, progress=lambda *_: None, zip=archive)


def test_the_archive_becomes_a_set_and_a_second_time_nothing_is_written(root: Path, tmp_path: Path) -> None:
    archive = zip_set(root, tmp_path / "ADEChallengeData2016.zip")
    assert unpack(archive, tmp_path / "out", any_archive=True) == "4 train and 3 val scenes, 15 files written now"
    assert unpack(archive, tmp_path / "out", any_archive=True) == "4 train and 3 val scenes, 0 files written now"
    assert prepare.verify(tmp_path / "out", decode="full").ok
    with pytest.raises(NotReadyError, match=r"holds 4 train and 3 val scenes where 20,210 train and 2,000 val"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    ["../out.jpg", "/etc/out.jpg", "ADEChallengeData2016/other.bin", "ADE20K_2016_07_26/images/a_seg.png"],
)
def test_an_archive_with_other_names_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(name, b"x")
    with pytest.raises(NotReadyError, match=r"outside the folder|right archive"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_secrets_damage_and_twins_in_a_zip_are_refused(root: Path, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("ADEChallengeData2016/objectInfo150.txt")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as file:
        file.writestr(link, "/etc/passwd")
    with pytest.raises(NotReadyError, match="is a link or a device"):
        unpack(tmp_path / "link.zip", tmp_path / "out")
    archive = zip_set(root, tmp_path / "whole.zip")
    data = bytearray(archive.read_bytes())
    at = data.find(b"\xff\xd8\xff")
    data[at + 400] ^= 0xFF
    (tmp_path / "bad.zip").write_bytes(data)
    with pytest.raises(NotReadyError, match="fetch it again"):
        unpack(tmp_path / "bad.zip", tmp_path / "out")
    (tmp_path / "cut.zip").write_bytes(data[:1000])
    with pytest.raises(NotReadyError, match="no zip archive, or it is cut short"):
        unpack(tmp_path / "cut.zip", tmp_path / "out")
    newer = bytearray(archive.read_bytes())
    newer[newer.find(b"PK\1\2") + 6] = 255  # the version that the first member needs
    (tmp_path / "newer.zip").write_bytes(newer)
    with pytest.raises(NotReadyError, match=r"zip file version 25\.5"):
        unpack(tmp_path / "newer.zip", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "twins.zip", "w") as file, pytest.warns(UserWarning, match="Duplicate name"):
        for _ in range(2):
            file.writestr("ADEChallengeData2016/objectInfo150.txt", b"x")
    with pytest.raises(NotReadyError, match="occurs twice"):
        unpack(tmp_path / "twins.zip", tmp_path / "out")


# Cutting


def a_scene(width: int = 90, height: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    pixels = np.asarray(Image.fromarray(rng.integers(0, 256, (6, 9, 3), np.uint8)).resize((width, height))).copy()
    labels = np.asarray(Image.fromarray(rng.integers(0, 4, (5, 7), np.uint8)).resize((width, height), 0)).copy()
    labels[:2] = IGNORED
    return pixels, labels


def cut(settings: ViewSettings, *key: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    size = settings.size
    out = np.full((size, size, 3), 9, np.uint8), np.full((size, size), 9, np.uint8)
    extent = views.random_view(*a_scene(), CounterRng(*key), settings, out)
    return *out, extent


def test_a_view_is_a_function_of_seed_epoch_and_sample() -> None:
    settings = ViewSettings(size=48)
    first, again, other = cut(settings, 1, 2, 3), cut(settings, 1, 2, 3), cut(settings, 1, 3, 3)
    assert all(np.array_equal(a, b) for a, b in zip(first[:2], again[:2], strict=True))
    assert not np.array_equal(first[0], other[0])


def test_image_and_mask_are_cut_alike() -> None:
    """An image whose red says its own class stays so, whatever the scale, the crop and the flip."""
    _, labels = a_scene()
    pixels = np.repeat((labels % 5 * 50)[..., None], 3, 2).astype(np.uint8)
    settings = ViewSettings(size=48, distorts=False)
    agreeing, flips = [], set()
    for number in range(30):
        out = np.zeros((48, 48, 3), np.uint8), np.zeros((48, 48), np.uint8)
        rows, columns = views.random_view(pixels, labels, CounterRng(7, number), settings, out)
        inside = out[0][:rows, :columns, 0], out[1][:rows, :columns]
        agreeing.append(float((np.abs(inside[0].astype(int) - inside[1] % 5 * 50) < 26).mean()))
        assert (out[1][rows:] == IGNORED).all() and (out[1][:, columns:] == IGNORED).all()
        flips.add(bool(out[1][:rows, 0].sum() > out[1][:rows, columns - 1].sum()))
    assert np.mean(agreeing) > 0.9 and flips == {True, False}


def test_sizes_keep_the_proportion_and_the_limit_of_four_to_one() -> None:
    assert views.fit_size(683, 512, 512) == (683, 512)
    assert views.fit_size(1000, 500, 512, 0.5) == (512, 256)
    assert views.fit_size(8000, 500, 512) == (2048, 128), "a panorama by its length"
    assert views.window_starts(683, 512, 480) == [0, 171]
    assert views.window_starts(512, 512, 480) == [0] == views.window_starts(300, 512, 480)
    assert views.window_starts(1500, 512, 480) == [0, 480, 960, 988]


def test_crops_of_one_class_are_drawn_again() -> None:
    varied = np.zeros((40, 40), np.uint8)
    varied[:, :11] = 1
    assert views.is_varied(varied) and not views.is_varied(varied[:, 5:])
    varied[:, 11:] = IGNORED
    assert not views.is_varied(varied), "what is not judged is no class"
    labels = np.zeros((100, 400), np.uint8)
    labels[:, 340:] = 1
    settings = ViewSettings(size=100, least_scale=1.0, most_scale=1.0, distorts=False)
    mixed = 0
    for number in range(40):
        out = np.zeros((100, 100, 3), np.uint8), np.zeros((100, 100), np.uint8)
        views.random_view(np.zeros((100, 400, 3), np.uint8), labels, CounterRng(number), settings, out)
        mixed += views.is_varied(out[1])
    # a draw is varied in 35 of 301 places; of ten draws one is in 71 % of crops
    assert 20 <= mixed <= 37


def test_the_nearest_class_and_the_nearest_four_pixels_are_taken() -> None:
    pixels, labels = a_scene()
    wanted = F.interpolate(torch.from_numpy(labels)[None, None].float(), (41, 77), mode="nearest")[0, 0].numpy()
    rows, columns = (views._nearest(*pair) for pair in ((60, 41), (90, 77)))
    assert np.array_equal(labels[rows][:, columns], wanted)
    smooth = F.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None].double(), (41, 77), mode="bilinear", align_corners=False
    )
    assert np.abs(views.resize(pixels, 77, 41) - smooth[0].permute(1, 2, 0).numpy()).max() <= 1


# Light and colours


def opencv_hsv(red: int, green: int, blue: int) -> tuple[int, int, int]:
    """OpenCV's 8-bit conversion, a pixel at a time."""
    value, spread = max(red, green, blue), max(red, green, blue) - min(red, green, blue)
    by_value = round((255 << 12) / value) if value else 0
    by_spread = round((180 << 12) / (6 * spread)) if spread else 0
    sixths = green - blue if value == red else blue - red + 2 * spread if value == green else red - green + 4 * spread
    hue = (sixths * by_spread + 2048) >> 12
    return hue + 180 * (hue < 0), (spread * by_value + 2048) >> 12, value


def opencv_rgb(hue: int, saturation: int, value: int) -> tuple[int, ...]:
    single = np.float32
    place, s, v = single(hue) * single(6 / 180), single(saturation) * single(1 / 255), single(value) * single(1 / 255)
    sector = int(place)
    h = single(place - sector)
    table = (v, v * (1 - s), v * (1 - s * h), v * (1 - s * (1 - h)))
    blue_green_red = ((1, 3, 0), (1, 0, 2), (3, 0, 1), (0, 2, 1), (0, 1, 3), (2, 1, 0))[sector]
    return tuple(int(np.rint(table[which] * single(255))) for which in reversed(blue_green_red))


NOTHING = Distortion(brightness=None, contrast=None, contrast_first=False, saturation=None, hue=0)


@pytest.mark.parametrize("hue", [0, 17, -18])
def test_hue_and_saturation_are_opencvs_to_the_bit(hue: int) -> None:
    from dataclasses import replace

    rng = np.random.default_rng(0)
    before = np.concatenate([rng.integers(0, 256, (250, 1, 3)), np.zeros((1, 1, 3)), np.full((1, 1, 3), 255)])
    pixels = before.astype(np.uint8)
    views.distort(pixels, replace(NOTHING, hue=hue) if hue else replace(NOTHING, saturation=1.37))
    for (red, green, blue), found in zip(before.astype(int)[:, 0], pixels[:, 0], strict=True):
        h, s, v = opencv_hsv(red, green, blue)
        s = s if hue else int(np.clip(np.float32(s) * np.float32(1.37), 0, 255))
        assert tuple(found.tolist()) == opencv_rgb((h + hue) % 180, s, v)


def test_brightness_and_contrast_cut_off_fractions_and_what_is_beyond() -> None:
    from dataclasses import replace

    pixels = np.array([[[0, 100, 250]]], np.uint8)
    views.distort(pixels, replace(NOTHING, brightness=10.6, contrast=1.5, contrast_first=True))
    assert pixels.tolist() == [[[15, 165, 255]]], "110.6 becomes 110 before it is 165"


def test_every_step_is_taken_half_the_time_and_the_order_of_contrast_is_a_coin() -> None:
    drawn = [Distortion.random(CounterRng(3, number)) for number in range(400)]
    for taken in (
        [one.brightness is not None for one in drawn],
        [one.contrast is not None for one in drawn],
        [one.contrast_first for one in drawn],
        [one.saturation is not None for one in drawn],
        [one.hue != 0 for one in drawn],
    ):
        assert 150 < sum(taken) < 250
    assert {one.hue for one in drawn} <= set(range(-18, 18))
    assert all(0.5 <= one.contrast < 1.5 for one in drawn if one.contrast is not None)
    assert all(abs(one.brightness) <= 32 for one in drawn if one.brightness is not None)
