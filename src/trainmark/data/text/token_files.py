"""Memory-mapped token files and their index; contents are validated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from trainmark.data.text import language
from trainmark.record.errors import NotReadyError, UsageError, describe_misfit, nearest
from trainmark.record.numbers import Finite

MAX_FILE_BYTES = 256 << 20


class Vocabulary(Protocol):
    size: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


def open_vocabulary(folder: Path) -> Vocabulary | None:
    """A set's vocabulary; None if its folder holds tokens alone."""
    if (folder / TOKENIZER).is_file():
        return Tokenizer(folder / TOKENIZER)
    return WordList(folder / WORDS) if (folder / WORDS).is_file() else None


class WordList:
    """Words and signs."""

    def __init__(self, path: Path) -> None:
        words = _read_json(path)
        if (
            not isinstance(words, list)
            or not all(isinstance(word, str) and word for word in words)
            or len(set(words)) != len(words)
        ):
            raise NotReadyError(f"{path} is no list of words; make the set again")
        self._words: list[str] = words
        self._ids = {word: number for number, word in enumerate(words)}
        self.size = len(words)

    def encode(self, text: str) -> list[int]:
        """UsageError for the first unknown word."""
        found = []
        for word in language.split_text(text):
            if word not in self._ids:
                raise UsageError(f"the word {word!r} is not in this set's vocabulary; {nearest(word, self._words)}")
            found.append(self._ids[word])
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return language.join_tokens([self._words[token] if token < self.size else "?" for token in tokens])


class Tokenizer:
    """A tokenizer.json, read by the package `tokenizers`."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Reader
        except ImportError as error:
            raise NotReadyError(f"{path.name} needs the package tokenizers: pip install 'trainmark[text]'") from error
        _read_json(path)  # validates size and form before native code parses it
        try:
            self._reader = Reader.from_file(str(path))
        except Exception as error:  # the package raises a bare Exception
            raise NotReadyError(f"{path} is no tokenizer.json: {error}") from error
        self.size = int(self._reader.get_vocab_size(with_added_tokens=True))
        if not 0 < self.size <= MAX_VOCABULARY:
            raise NotReadyError(f"{path} has {self.size:,} tokens; that is no vocabulary")

    def encode(self, text: str) -> list[int]:
        return list(self._reader.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._reader.decode([token for token in tokens if token < self.size], skip_special_tokens=False))

    def end_of_text(self) -> int | None:
        """The separator of documents, by its names in public tokenizers."""
        for name in ("<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "</s>", "[SEP]"):
            if (found := self._reader.token_to_id(name)) is not None:
                return int(found)
        return None


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise NotReadyError(f"{path} is larger than any vocabulary; is it the right file?")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NotReadyError(f"{path} is no JSON; is it the right file?") from error


INDEX = "text.json"
"""At the root of a set: its files and their sizes."""
TOKENIZER, WORDS = "tokenizer.json", "words.json"
"""The set's vocabulary, if it has one: Hugging Face's file, or a word list."""
MAX_VOCABULARY = 1 << 24

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = ("train", "val")
Tokens = npt.NDArray[np.int64]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class TokenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of one width, after a header that is skipped."""

    name: str
    """A plain file name beside the index."""
    tokens: Positive
    dtype: Literal["uint16", "int32"]
    offset: NotNegative = 0
    """Header size in bytes."""

    def __post_init__(self) -> None:
        if PurePath(self.name).name != self.name or self.name in (".", "..") or "\0" in self.name:
            raise ValueError(f"the file name {self.name!r} leads somewhere else")

    @property
    def bytes(self) -> int:
        return self.offset + self.tokens * np.dtype(self.dtype).itemsize


class TokenSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    files: Annotated[tuple[TokenFile, ...], msgspec.Meta(min_length=1)]
    largest: NotNegative
    """The largest token."""
    text_bytes: NotNegative = 0
    """UTF-8 size of the decoded text; 0 if unknown."""
    nats: Finite = 0.0
    """Exact information in the text, the lower bound of a model's total loss; 0 if unknown."""

    @property
    def tokens(self) -> int:
        return sum(file.tokens for file in self.files)

    @property
    def bytes_per_token(self) -> float | None:
        return self.text_bytes / self.tokens if self.text_bytes else None

    @property
    def loss_floor(self) -> float | None:
        """In nats per token."""
        return self.nats / self.tokens if self.nats else None


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    splits: dict[SplitName, TokenSplit]
    source: str
    """Original format: `llm.c`, `megatron`, `tokenizer`, `synthetic`."""
    schema: Literal[1] = 1

    def __post_init__(self) -> None:
        if set(self.splits) != set(SPLITS):
            raise ValueError("it needs the splits train and val")

    def to_json(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self), indent=1).encode() + b"\n"


def read_index(folder: Path) -> Index:
    """The index of a folder; NotReadyError if missing or invalid."""
    path = folder / INDEX
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotReadyError(
            f"{folder} is no prepared set of text: {INDEX} cannot be read ({error.strerror}); "
            "'trainmark data prepare text --help' says how one is made"
        ) from error
    try:
        return msgspec.json.decode(data, type=Index)
    except msgspec.ValidationError as error:
        raise NotReadyError(f"{path} is damaged: {describe_misfit(error)}; prepare the set again") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotReadyError(f"{path} is damaged: it is no JSON; prepare the set again") from error


def find_damage(folder: Path, file: TokenFile) -> str | None:
    """Quick check of a file: a fault if it is missing or of the wrong size, else empty."""
    path = folder / file.name
    try:
        status = path.stat()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if status.st_size != file.bytes:
        return f"has {status.st_size:,} bytes and should have {file.bytes:,}"
    return None


def map_tokens(folder: Path, file: TokenFile) -> npt.NDArray[Any]:
    """A file's memory-mapped tokens; NotReadyError if the file was changed."""
    if reason := find_damage(folder, file):
        raise NotReadyError(f"{folder / file.name} {reason}; prepare the set again")
    dtype = np.dtype(file.dtype).newbyteorder("<")
    return np.memmap(folder / file.name, dtype=dtype, mode="r", offset=file.offset, shape=(file.tokens,))


class TokenStream:
    """The tokens of a split as one sequence."""

    def __init__(self, folder: Path, split: TokenSplit) -> None:
        self.split = split
        self._parts = [map_tokens(folder, file) for file in split.files]
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, count: int) -> Tokens:
        """`count` tokens from `start` on, across files."""
        if not 0 <= start <= start + count <= len(self):
            raise ValueError(f"tokens {start} to {start + count} were requested, and there are {len(self)}")
        found = np.concatenate([np.asarray(part, np.int64) for part in self._slices(start, count)])
        # an out-of-range token would make a device fail without naming file or position
        if count and not 0 <= found.min() <= found.max() <= self.split.largest:
            raise NotReadyError(
                f"the set of text has a token outside 0 to {self.split.largest} between {start} and {start + count}; "
                "'trainmark data verify text' names the file"
            )
        return found

    def _slices(self, start: int, count: int) -> Iterator[npt.NDArray[Any]]:
        number = int(np.searchsorted(self._ends, start, side="right"))
        while True:
            first = start - (int(self._ends[number - 1]) if number else 0)
            part = self._parts[number][first : first + count]
            yield part
            start, count, number = start + len(part), count - len(part), number + 1
            if not count:
                return


@dataclass(frozen=True)
class Windows:
    """Tokens cut into windows of one length, each with the token that follows it."""

    stream: TokenStream
    length: int

    @cached_property
    def count(self) -> int:
        return (len(self.stream) - 1) // self.length

    def read(self, number: int) -> Tokens:
        return self.stream.read(number * self.length, self.length + 1)


def describe(index: Index) -> Mapping[str, float]:
    """Facts about the set for a record."""
    val = index.splits["val"]
    found = {
        "train_tokens": float(index.splits["train"].tokens),
        "val_tokens": float(val.tokens),
        "loss_floor": val.loss_floor,
        "bytes_per_token": val.bytes_per_token,
    }
    return {name: value for name, value in found.items() if value is not None}
