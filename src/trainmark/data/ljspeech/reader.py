"""Reads an LJSpeech folder: clips, texts and splits."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from trainmark.data import read_counts
from trainmark.data.audio import BadAudioError
from trainmark.data.mel import MelCache
from trainmark.record.errors import NotReadyError

METADATA, WAVS = "metadata.csv", "wavs"
PUBLISHED_FOLDER = "LJSpeech-1.1"
"""Top folder of the published archive; the set may be in it."""

LJSPEECH_CLIPS = 13_100
LJSPEECH_TEST, LJSPEECH_VAL = 500, 100

_LAYOUT = f"an LJSpeech folder holds {METADATA} and {WAVS}/*.wav"
_MIN_LJSPEECH_CLIPS = 12_000


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One recording and its text."""

    name: str
    text: str
    """The normalised text, with numbers and abbreviations spelled out, if the set has one."""
    path: Path


@dataclass(frozen=True, kw_only=True)
class Splits:
    """No clip is in two of them."""

    train: tuple[Clip, ...]
    val: tuple[Clip, ...]


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Contents of metadata.csv, whether or not the audio files exist."""

    folder: Path
    """Where metadata.csv and wavs/ are: the root, or the archive's top folder in it."""
    clips: tuple[Clip, ...]
    faults: tuple[str, ...]
    """One message per invalid line, with its number."""


@dataclass(frozen=True, kw_only=True)
class SpeechSize:
    """Size of a set; equality compares clips alone."""

    clips: int
    seconds: float | None = field(default=None, compare=False)
    """None where files were not read."""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.clips} clips"
        minutes, seconds = divmod(round(self.seconds), 60)
        return f"{self.clips} clips, {minutes // 60}:{minutes % 60:02}:{seconds:02} of audio"


def read_metadata(root: Path) -> tuple[Clip, ...]:
    """Every clip in the order of metadata.csv; NotReadyError for an invalid line or a missing audio file."""
    metadata = parse_metadata(root)
    path = metadata.folder / METADATA
    if metadata.faults:
        raise NotReadyError(f"{path}, {metadata.faults[0]}")
    if not metadata.clips:
        raise NotReadyError(f"{path} names no clips; expected lines 'LJ001-0001|text|normalised text'")
    files = sound_files(metadata.folder)
    missing = [clip.path.name for clip in metadata.clips if clip.path.name not in files]
    if missing:
        raise NotReadyError(
            f"{metadata.folder / WAVS} lacks {len(missing):,} of the {len(metadata.clips):,} clips in {METADATA}, "
            f"the first is {missing[0]!r}; unpack the set again"
        )
    return metadata.clips


def open_splits(root: Path, lists: str = "") -> Splits:
    """The clips to train, validate and test on; the same clips give the same splits.

    Clips are ordered by the SHA-256 of their id: the first are a test split, which is left alone, the next validation,
    the rest training. LJSpeech's 13,100 clips become 500, 100 and 12,500; another number keeps that proportion, with at
    least an eighth of the clips or 16 in either small split. Each split is then in the order of metadata.csv.

    `lists` names a folder of file lists instead: train.txt and val.txt, with an id or `path|text` on each line. A text
    replaces the set's, and a split is in the order of its list.
    """
    clips = read_metadata(root)
    if len(clips) < 3:
        raise NotReadyError(f"{root} holds {len(clips)} clips; at least 3 are needed to train and validate on")
    splits = _read_lists(clips, Path(lists).expanduser()) if lists else _split_by_hash(clips)
    for name, split in (("training", splits.train), ("validation", splits.val)):
        if not split:
            raise NotReadyError(f"no {name} clips in {lists or f'a set of {len(clips)} clips, {root}'}; give more")
    return splits


def validation_clips(root: Path, lists: str, count: int) -> list[Clip]:
    """`count` clips, spread evenly over the validation split."""
    clips = open_splits(root, lists).val
    count = min(count, len(clips))
    return [clips[len(clips) * place // count] for place in range(count)]


def split_sizes(clips: int) -> tuple[int, int]:
    """Number of clips for testing and for validation."""
    least = min(16, clips // 8)
    test, val = (max(round(part * clips / LJSPEECH_CLIPS), least) for part in (LJSPEECH_TEST, LJSPEECH_VAL))
    return test, val


def expected_clips(root: Path) -> int | None:
    """Number of clips of the complete set, by its manifest or its ids; None if unknown."""
    metadata = parse_metadata(root)
    if made := read_counts(metadata.folder, "clips"):
        return made["clips"]
    # slightly below 13,100 means that some clips are missing; far below is a subset
    like_ljspeech = all(re.fullmatch(r"LJ[0-9]{3}-[0-9]{4}", clip.name) for clip in metadata.clips)
    return LJSPEECH_CLIPS if like_ljspeech and len(metadata.clips) > _MIN_LJSPEECH_CLIPS else None


def check_whole(root: Path) -> None:
    """NotReadyError if clips are known to be missing."""
    wanted, found = expected_clips(root), len(read_metadata(root))
    if wanted not in (None, found):
        raise NotReadyError(
            f"{root} is incomplete: expected {wanted:,} clips, found {found:,}; `trainmark data verify ljspeech` "
            "lists them, --set whole_set=false trains on it as it is"
        )


def parse_metadata(root: Path) -> Metadata:
    """Reads metadata.csv: columns separated by bars, unquoted, because texts contain quotation marks."""
    folder = _folder(root)
    wavs = folder / WAVS
    clips: dict[str, Clip] = {}
    faults: list[str] = []
    for number, line in _read_lines(folder / METADATA):
        name, *texts = line.split("|")
        text = next((text.strip() for text in reversed(texts) if text.strip()), "")
        if fault := _find_fault(name, texts, text, clips):
            faults.append(f"line {number}: {fault}")
        else:
            clips[name] = Clip(name=name, text=text, path=wavs / f"{name}.wav")
    return Metadata(folder=folder, clips=tuple(clips.values()), faults=tuple(faults))


def sound_files(folder: Path) -> set[str]:
    """The names in wavs/, from one listing: a stat per file would cost seconds on a network file system."""
    try:
        with os.scandir(folder / WAVS) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".")}
    except OSError as error:
        raise NotReadyError(f"{folder / WAVS} cannot be listed ({error.strerror}); {_LAYOUT}") from error


def _folder(root: Path) -> Path:
    for folder in (root, root / PUBLISHED_FOLDER):
        if (folder / METADATA).is_file():
            return folder
    raise NotReadyError(f"{root} has no {METADATA}; {_LAYOUT}")


def _find_fault(name: str, texts: list[str], text: str, clips: dict[str, Clip]) -> str:
    if len(texts) not in (1, 2):
        return f"{len(texts) + 1} columns; expected 'LJ001-0001|text|normalised text'"
    if not name or not name.isprintable() or "/" in name or "\\" in name or ".." in name or name.startswith("."):
        return f"{name[:80]!r} is no id of a clip; expected a plain name like 'LJ001-0001'"
    if name in clips:
        return f"duplicate clip {name!r}"
    if not text:
        return f"the clip {name!r} has no text"
    return ""


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """Non-empty lines with their numbers."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotReadyError(f"{path} is no UTF-8 text (at byte {error.start}); fetch it again") from error
    except OSError as error:
        raise NotReadyError(f"cannot read {path}: {error.strerror}") from error
    # not splitlines(), which also splits at characters that may occur in a text
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _split_by_hash(clips: tuple[Clip, ...]) -> Splits:
    test, val = split_sizes(len(clips))
    order = sorted(range(len(clips)), key=lambda place: hashlib.sha256(clips[place].name.encode()).digest())

    def choose(places: Sequence[int]) -> tuple[Clip, ...]:
        return tuple(clips[place] for place in sorted(places))

    return Splits(val=choose(order[test : test + val]), train=choose(order[test + val :]))


def _read_lists(clips: tuple[Clip, ...], folder: Path) -> Splits:
    known = {clip.name: clip for clip in clips}
    taken: dict[str, str] = {}
    splits: dict[str, list[Clip]] = {"train": [], "val": []}
    for split in splits:
        path = folder / f"{split}.txt"
        for number, line in _read_lines(path):
            where = f"{path}, line {number}"
            source, *texts = line.split("|")
            if len(texts) > 1:
                raise NotReadyError(f"{where}: {len(texts) + 1} columns; expected an id or 'path|text'")
            source = source.strip()
            name = source if source in known else PurePosixPath(source).stem
            if name not in known:
                raise NotReadyError(f"{where}: the set has no clip {name[:80]!r}")
            if name in taken:
                raise NotReadyError(f"{where}: the clip {name!r} is in {taken[name]} already")
            taken[name] = path.name
            text = texts[0].strip() if texts else ""
            splits[split].append(replace(known[name], text=text or known[name].text))
    return Splits(train=tuple(splits["train"]), val=tuple(splits["val"]))


def analyse(
    splits: Sequence[Sequence[Clip]], cache: MelCache, skip_bad: int, *, first: float = 0.0
) -> tuple[list[list[Clip]], list[tuple[str, str]]]:
    """The readable clips of each split, and up to `skip_bad` unreadable ones with the reason.

    All ranks find the same ones, because each checks every clip; they divide the work of filling the cache by starting
    at different positions: `first`, as a share of the clips.
    """
    readable: list[list[Clip]] = []
    skipped: list[tuple[str, str]] = []
    for clips in splits:
        start = int(len(clips) * first)
        bad = dict(cache.fill([clip.path for clip in (*clips[start:], *clips[:start])]))
        for clip in clips:
            if clip.path in bad:
                skipped.append((str(clip.path), bad[clip.path]))
                if len(skipped) > skip_bad:
                    allowed = f" (--skip-bad allows {skip_bad}, and all are used up)" if skip_bad else ""
                    raise BadAudioError(clip.path, bad[clip.path] + allowed)
        readable.append([clip for clip in clips if clip.path not in bad])
    return readable, skipped
