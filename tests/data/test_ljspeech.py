"""What an LJSpeech folder says, how it is split, and the sentences for what is wrong with it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trainmark.data.ljspeech import reader
from trainmark.data.ljspeech.reader import Clip, expected_clips, open_splits, read_metadata
from trainmark.record.errors import NotReadyError


def speech_folder(root: Path, lines: list[str], wavs: list[str] | None = None) -> Path:
    """A set whose sound files are empty: nothing here looks into them."""
    (root / "wavs").mkdir(parents=True)
    (root / "metadata.csv").write_bytes("".join(f"{line}\n" for line in lines).encode())
    for name in wavs if wavs is not None else [line.partition("|")[0] for line in lines]:
        (root / "wavs" / f"{name}.wav").touch()
    return root


def names(count: int) -> list[str]:
    return [f"LJ{number // 500 + 1:03}-{number % 500 + 1:04}" for number in range(count)]


def make_set(root: Path, count: int) -> Path:
    return speech_folder(root, [f"{name}|Text 1.|text one of {name}" for name in names(count)])


def ids(split: tuple[Clip, ...]) -> list[str]:
    return [clip.name for clip in split]


def test_quotes_accents_and_odd_separators_stay_in_the_text(tmp_path: Path) -> None:
    speech_folder(
        tmp_path,
        [
            'LJ001-0001|He said "no|he said "no',
            'LJ001-0002|"Très\u2028bien", 3 £|"très\u2028bien", three pounds\x85',
            "LJ001-0003|It's 5|",
            "LJ001-0004|only two columns",
            "",
            "LJ001-0005|with a return|ends here\r",
        ],
        ["LJ001-0001", "LJ001-0002", "LJ001-0003", "LJ001-0004", "LJ001-0005"],
    )
    found = read_metadata(tmp_path)
    assert [clip.text for clip in found] == [
        'he said "no',
        '"très\u2028bien", three pounds',
        "It's 5",
        "only two columns",
        "ends here",
    ]
    assert found[0] == Clip(name="LJ001-0001", text='he said "no', path=tmp_path / "wavs/LJ001-0001.wav")


def test_the_folder_around_the_published_one_does_as_well(tmp_path: Path) -> None:
    inner = make_set(tmp_path / "LJSpeech-1.1", 9)
    assert read_metadata(tmp_path) == read_metadata(inner)
    assert open_splits(tmp_path) == open_splits(inner)


def test_a_byte_order_mark_is_no_part_of_the_first_id(tmp_path: Path) -> None:
    make_set(tmp_path, 2)
    path = tmp_path / "metadata.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_metadata(tmp_path)[0].name == "LJ001-0001"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("LJ001-0002", "line 2: 1 columns; expected"),
        ("LJ001-0002|a|b|c", "line 2: 4 columns; expected"),
        ("../secret|a|a", r"line 2: '\.\./secret' is no id of a clip"),
        ("a/b|a|a", "line 2: 'a/b' is no id of a clip"),
        ("a\\b|a|a", "line 2: .* is no id of a clip"),
        ("a..b|a|a", r"line 2: 'a\.\.b' is no id of a clip"),
        (".hidden|a|a", r"line 2: '\.hidden' is no id of a clip"),
        ("|a|a", "line 2: '' is no id of a clip"),
        ("\x1b[2J|a|a", r"line 2: '\\x1b\[2J' is no id of a clip"),
        ("LJ001-0001|a|a", "line 2: duplicate clip 'LJ001-0001'"),
        ("LJ001-0002| |", "line 2: the clip 'LJ001-0002' has no text"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: str, complaint: str) -> None:
    speech_folder(tmp_path, ["LJ001-0001|a|a", line], ["LJ001-0001"])
    with pytest.raises(NotReadyError, match=f"metadata.csv, {complaint}"):
        read_metadata(tmp_path)


def test_missing_sound_files_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    make_set(tmp_path, 1200)
    for name in ("LJ001-0007", "LJ002-0001"):
        (tmp_path / "wavs" / f"{name}.wav").unlink()
    with pytest.raises(NotReadyError, match=r"lacks 2 of the 1,200 clips in metadata\.csv, .*'LJ001-0007\.wav'"):
        read_metadata(tmp_path)


def test_a_folder_that_is_no_speech_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"has no metadata\.csv; an LJSpeech folder holds"):
        read_metadata(tmp_path)
    (tmp_path / "metadata.csv").write_text("\n")
    with pytest.raises(NotReadyError, match="names no clips"):
        read_metadata(tmp_path)
    (tmp_path / "metadata.csv").write_text("LJ001-0001|a|a\n")
    with pytest.raises(NotReadyError, match="wavs cannot be listed"):
        read_metadata(tmp_path)
    (tmp_path / "metadata.csv").write_bytes(b"LJ001-0001|caf\xe9|caf\xe9\n")
    with pytest.raises(NotReadyError, match=r"no UTF-8 text \(at byte 14\)"):
        read_metadata(tmp_path)


def test_the_published_number_of_clips_is_split_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{name}|a|text {name}" for name in names(13_100)]
    speech_folder(tmp_path, lines, [])
    monkeypatch.setattr(reader, "sound_files", lambda _: {f"{name}.wav" for name in names(13_100)})
    splits = open_splits(tmp_path)
    by_hash = sorted(names(13_100), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    # in the order of metadata.csv, and the first 500 are left alone
    assert ids(splits.val) == sorted(by_hash[500:600])
    assert ids(splits.train) == sorted(by_hash[600:])
    assert expected_clips(tmp_path) == 13_100


def test_the_order_of_the_lines_does_not_change_who_is_in_which_split(tmp_path: Path) -> None:
    lines = [f"{name}|a|a" for name in names(40)]
    forward = open_splits(speech_folder(tmp_path / "forward", lines))
    backward = open_splits(speech_folder(tmp_path / "backward", lines[::-1]))
    assert ids(forward.val) == ids(backward.val)[::-1]
    assert len(forward.val) == 5


def test_too_few_clips_to_validate_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="holds 2 clips; at least 3"):
        open_splits(make_set(tmp_path / "two", 2))
    with pytest.raises(NotReadyError, match="no validation clips in a set of 7 clips"):
        open_splits(make_set(tmp_path / "seven", 7))
    assert [len(split) for split in vars(open_splits(make_set(tmp_path / "eight", 8))).values()] == [6, 1]


def lists(folder: Path, **files: str) -> str:
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return str(folder)


def test_lists_of_ones_own_decide_splits_order_and_texts(tmp_path: Path) -> None:
    root = make_set(tmp_path / "set", 6)
    folder = lists(
        tmp_path / "lists",
        train__txt="/data/wavs/LJ001-0003.wav|Très “bien”.\nLJ001-0001\nwavs/LJ001-0002.wav|\n",
        val__txt="LJ001-0004.pt|four\n",
        README__md="train",
    )
    splits = open_splits(root, folder)
    assert [(clip.name, clip.text) for clip in splits.train] == [
        ("LJ001-0003", "Très “bien”."),
        ("LJ001-0001", "text one of LJ001-0001"),
        ("LJ001-0002", "text one of LJ001-0002"),
    ]
    assert ids(splits.val) == ["LJ001-0004"]
    assert splits.val[0].path == root / "wavs/LJ001-0004.wav"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (
            {"train__txt": "LJ001-0001", "val__txt": "\nLJ009-0009"},
            r"val\.txt, line 2: the set has no clip 'LJ009-0009'",
        ),
        ({"train__txt": "LJ001-0001", "val__txt": "../../etc/passwd|x"}, "the set has no clip 'passwd'"),
        (
            {"train__txt": "LJ001-0001", "val__txt": "LJ001-0001"},
            r"val\.txt, line 1: the clip 'LJ001-0001' is in train\.txt already",
        ),
        ({"train__txt": "LJ001-0001\nLJ001-0001", "val__txt": "LJ001-0002"}, r"is in train\.txt already"),
        ({"train__txt": "LJ001-0001|a|7", "val__txt": "LJ001-0002"}, r"train\.txt, line 1: 3 columns"),
        ({"train__txt": "LJ001-0001"}, r"cannot read .*val\.txt: No such file"),
        ({"val__txt": "LJ001-0001"}, r"cannot read .*train\.txt"),
        ({"train__txt": "", "val__txt": "LJ001-0001"}, "no training clips in .*lists"),
        ({"train__txt": "LJ001-0001", "val__txt": ""}, "no validation clips in .*lists"),
    ],
)
def test_lists_that_do_not_fit_the_set_are_refused(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    root = make_set(tmp_path / "set", 4)
    with pytest.raises(NotReadyError, match=complaint):
        open_splits(root, lists(tmp_path / "lists", **files))


def test_a_made_set_is_held_to_its_manifest_and_others_to_nothing(tmp_path: Path) -> None:
    make_set(tmp_path, 9)
    assert expected_clips(tmp_path) is None
    (tmp_path / "trainmark-set.json").write_text(json.dumps({"clips": 10}))
    assert expected_clips(tmp_path) == 10


@pytest.mark.parametrize(("count", "whole"), [(12_001, 13_100), (13_101, 13_100), (12_000, None)])
def test_ljspeech_is_known_by_its_ids_even_if_some_are_missing(tmp_path: Path, count: int, whole: int | None) -> None:
    lines = [f"{name}|a|a" for name in names(count)]
    assert expected_clips(speech_folder(tmp_path / "like", lines, [])) == whole
    assert expected_clips(speech_folder(tmp_path / "other", [*lines[:-1], "dog|a|a"], [])) is None
