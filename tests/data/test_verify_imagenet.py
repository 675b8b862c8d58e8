"""Sets with every kind of damage, and what is said of them."""

from __future__ import annotations

import io
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from trainmark.data.image_sets import IMAGENET_1K, Counts, expected_counts
from trainmark.data.imagenet import prepare as verify_module
from trainmark.data.imagenet.prepare import verify
from trainmark.data.jpeg import BadImage, JpegDecoder, eval_crop
from trainmark.data.verification import Decode, Report
from trainmark.record.errors import NotReadyError

SIZE = Counts(classes=3, train=12, val=6)


def pixels(seed: int = 0, side: int = 48) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def jpeg(seed: int = 0, side: int = 48) -> bytes:
    return bytes(simplejpeg.encode_jpeg(pixels(seed, side), quality=90))


def save(mode: str = "RGB", form: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels()).convert(mode).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes of four train and two val images."""
    for split, count in (("train", 4), ("val", 2)):
        for name in ("n01", "n02", "n03"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.JPEG").write_bytes(jpeg(i))
    return tmp_path


def check(root: Path, decode: Decode = "header") -> Report:
    return verify(root, decode=decode)


@pytest.mark.parametrize("decode", ["none", "header", "full"])
def test_a_good_set_is_counted_and_nothing_is_found(root: Path, decode: Decode) -> None:
    report = check(root, decode)
    assert (report.found, report.expected, report.problems, report.notes) == (SIZE, None, [], [])
    assert report.ok
    assert report.sentence() == "3 classes, 12 train and 6 val files"


def test_several_processes_say_the_same_as_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "val/n02/0.JPEG").write_bytes(jpeg()[:200])
    alone = check(root, "full")
    monkeypatch.setattr(verify_module, "_WORTH_PROCESSES", 2)
    assert check(root, "full") == alone


DAMAGE: list[tuple[str, bytes, str, Decode]] = [
    ("empty", b"", "is empty", "none"),
    ("cut in the image", jpeg()[:1500], "truncated", "header"),
    ("cut at the very end", jpeg()[:-2], "truncated", "header"),
    ("cut in the header", jpeg()[:200], "", "header"),
    ("cut after two bytes", jpeg()[:2], "does not begin like a JPEG", "header"),
    ("zeros", bytes(3000), "does not begin like a JPEG", "header"),
    ("a page", b"<html>not found</html>", "does not begin like a JPEG", "header"),
    ("zeros behind the start", jpeg()[:2] + bytes(3000), "", "header"),
    ("no frame", b"\xff\xd8\xff\xda" + bytes(500) + b"\xff\xd9", "", "header"),
    ("a broken PNG", save(form="PNG")[:500], "cannot be decoded", "header"),
]


@pytest.mark.parametrize(("content", "text", "needs"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_a_damaged_file_is_named_with_what_is_wrong(root: Path, content: bytes, text: str, needs: Decode) -> None:
    (root / "train/n02/2.JPEG").write_bytes(content)
    levels: list[Decode] = ["none", "header", "full"]
    for decode in levels[levels.index(needs) :]:
        report = check(root, decode)
        assert [finding.subject for finding in report.problems] == ["train/n02/2.JPEG"]
        assert text in report.problems[0].sentence
        assert not report.ok
        assert report.found == SIZE
        assert "the first: train/n02/2.JPEG: " in report.sentence()


def test_a_thumbnails_end_mark_is_not_taken_for_the_images(root: Path) -> None:
    thumbnail = jpeg(1, side=16)
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    whole = jpeg()[:2] + segment + jpeg()[2:]
    path = root / "train/n02/2.JPEG"
    path.write_bytes(whole)
    assert check(root, "full").ok
    path.write_bytes(whole[:-500])
    assert "truncated" in check(root).problems[0].sentence


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(save("L"), id="grey"),
        pytest.param(save("CMYK"), id="four colours"),
        pytest.param(save(progressive=True), id="progressive"),
        pytest.param(save(icc_profile=bytes(150_000)), id="a header longer than is read at first"),
        pytest.param(jpeg() + b"stray bytes behind the end" * 1000, id="stray bytes behind the end"),
        pytest.param(jpeg(side=400), id="a large file"),
        pytest.param(b"\xff\xd8\xff\xff\xff" + jpeg()[3:], id="fill bytes before a marker"),
    ],
)
@pytest.mark.parametrize("decode", ["header", "full"])
def test_unusual_jpeg_files_are_good_files(root: Path, content: bytes, decode: Decode) -> None:
    (root / "train/n02/2.JPEG").write_bytes(content)
    report = check(root, decode)
    assert report.ok
    assert report.notes == []


@pytest.mark.parametrize("decode", ["header", "full"])
def test_a_png_named_jpeg_as_imagenet_has_one_is_noted_and_no_problem(root: Path, decode: Decode) -> None:
    (root / "train/n02/2.JPEG").write_bytes(save(form="PNG"))
    report = check(root, decode)
    assert report.ok
    assert [str(note) for note in report.notes] == ["train/n02/2.JPEG: is a PNG file, not a JPEG"]


@pytest.mark.parametrize("decode", ["header", "full"])
@pytest.mark.parametrize("form", ["GIF", "BMP", "WEBP", "TIFF"])
def test_a_file_of_a_format_that_no_run_reads_is_a_problem(root: Path, form: str, decode: Decode) -> None:
    (root / "train/n02/2.JPEG").write_bytes(save(form=form))
    (problem,) = check(root, decode).problems
    assert str(problem).startswith(f"train/n02/2.JPEG: is a {form} file, which a run does not read")


CONTENTS = {
    **{name: content for name, content, _, _ in DAMAGE if content},
    **{form: save(form=form) for form in ("GIF", "BMP", "WEBP", "TIFF", "PNG")},
    "grey": save("L"),
    "four colours": save("CMYK"),
    "sixteen bits": save("I;16", form="PNG"),
    "flipped bytes": jpeg()[:1200] + bytes(60) + jpeg()[1260:],
    "flipped bytes and no end": jpeg()[:1200] + bytes(60) + jpeg()[1260:-2],
    "stray bytes": jpeg() + b"stray",
    "a claim to be giant": b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + jpeg()[-400:],
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_full_look_refuses_what_a_run_would_refuse_and_nothing_else(root: Path, content: bytes) -> None:
    (root / "train/n02/2.JPEG").write_bytes(content)
    refused = False
    try:
        JpegDecoder().decode(content, partial(eval_crop, size=32, resize_to=32), np.zeros((32, 32, 3), np.uint8))
    except BadImage:
        refused = True
    assert bool(check(root, "full").problems) == refused


def test_flipped_bytes_in_the_image_are_noted_by_a_full_decode_only(root: Path) -> None:
    data = jpeg()
    (root / "train/n02/2.JPEG").write_bytes(data[:1200] + bytes(60) + data[1260:])
    assert check(root, "header").notes == []
    (note,) = check(root, "full").notes
    assert "complaint" in note.sentence


def test_files_of_another_name_hidden_files_and_folders(root: Path) -> None:
    (root / "train/n02/Thumbs.db").write_bytes(b"x")
    (root / "train/n02/.0.JPEG.part").write_bytes(b"")
    (root / "train/.cache").mkdir()
    (root / "train/n03/deep.JPEG").mkdir()
    report = check(root)
    assert [str(note) for note in report.notes] == ["train/n02/Thumbs.db: is not named .JPEG and was left out"]
    assert [str(problem) for problem in report.problems] == ["train/n03/deep.JPEG: cannot be read: Is a directory"]


def test_a_name_with_control_characters_is_shown_harmlessly(root: Path) -> None:
    (root / "train/n02/\x1b[2J.JPEG").write_bytes(b"")
    assert check(root).sentence().isprintable()


def test_links_to_files_are_followed_and_broken_ones_named(root: Path, tmp_path: Path) -> None:
    (root / "train/n02/linked.JPEG").symlink_to(root / "train/n01/0.JPEG")
    assert check(root).ok
    (root / "train/n02/broken.JPEG").symlink_to(tmp_path / "absent")
    (problem,) = check(root).problems
    assert str(problem) == "train/n02/broken.JPEG: cannot be read: No such file or directory"


def test_classes_in_one_split_only_and_classes_without_files_are_named(root: Path) -> None:
    (root / "train/n04").mkdir()
    (root / "val/n05").mkdir()
    (root / "val/n05/0.JPEG").write_bytes(jpeg())
    report = check(root)
    assert [str(problem) for problem in report.problems] == [
        "train/n04: this class is in train and not in val",
        "val/n05: this class is in val and not in train",
        "train/n04: the class has no files",
    ]
    assert report.found == Counts(classes=4, train=12, val=7)


def test_a_made_set_is_held_to_its_manifest(root: Path) -> None:
    manifest = root / "trainmark-set.json"
    manifest.write_text(json.dumps({"classes": 3, "train": 12, "val": 6, "seed": 1}))
    assert check(root).expected == SIZE
    assert check(root).ok
    (root / "train/n01/0.JPEG").unlink()
    report = check(root)
    assert not report.ok
    assert report.sentence() == (
        "3 classes, 11 train and 6 val files where 3 classes, 12 train and 6 val files were expected"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"classes": 3}', '{"classes": 3, "train": "12", "val": 6}', "\udcff"])
def test_a_manifest_that_cannot_be_read_is_an_error(root: Path, text: str) -> None:
    (root / "trainmark-set.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(NotReadyError, match=r"trainmark-set\.json"):
        check(root)


@pytest.mark.parametrize(("count", "expected"), [(995, IMAGENET_1K), (100, None), (1001, None)])
def test_imagenet_is_known_by_its_classes_even_if_some_are_missing(
    tmp_path: Path, count: int, expected: Counts | None
) -> None:
    names = [f"n{i:08d}" for i in range(count)]
    assert expected_counts(tmp_path, names) == expected
    assert expected_counts(tmp_path, [*names[:-1], "dog"]) is None


def test_a_folder_that_is_no_image_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(NotReadyError, match="has no folder 'val'"):
        check(tmp_path)


def die(_: object) -> None:
    """What a crash in the decoder does."""
    os._exit(1)


@pytest.mark.slow
def test_a_process_that_dies_is_said_in_a_sentence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "_check_folder", die)
    monkeypatch.setattr(verify_module, "_WORTH_PROCESSES", 2)
    with pytest.raises(NotReadyError, match="a process died"):
        check(root)
