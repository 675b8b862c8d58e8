"""Encodes and decodes a set's tokens, by a word list or a tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trainmark.data.text import language
from trainmark.data.text.token_files import MAX_VOCABULARY, TOKENIZER, WORDS
from trainmark.record.errors import NotReadyError, UsageError, nearest

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
