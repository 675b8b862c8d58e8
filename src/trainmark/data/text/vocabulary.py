"""Turns text into the tokens of a set and back, by its list of words or by a tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trainmark.data.text import language
from trainmark.data.text.token_files import LARGEST_VOCABULARY, TOKENIZER, WORDS
from trainmark.record.errors import NotReadyError, UsageError, nearest

LARGEST_FILE = 256 << 20


class Vocabulary(Protocol):
    size: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


def of_folder(folder: Path) -> Vocabulary | None:
    """What a set's text is written with; None where its folder holds tokens alone."""
    if (folder / TOKENIZER).is_file():
        return Tokenizer(folder / TOKENIZER)
    return WordList(folder / WORDS) if (folder / WORDS).is_file() else None


class WordList:
    """Whole words and signs."""

    def __init__(self, path: Path) -> None:
        words = _json(path)
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
        """UsageError with the first word that the language does not have."""
        found = []
        for word in language.split_text(text):
            if word not in self._ids:
                raise UsageError(f"the word {word!r} is not in this set's vocabulary; {nearest(word, self._words)}")
            found.append(self._ids[word])
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        return language.text_of([self._words[token] if token < self.size else "?" for token in tokens])


class Tokenizer:
    """A tokenizer.json, read by the package `tokenizers`."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Reader
        except ImportError as error:
            raise NotReadyError(f"{path.name} needs the package tokenizers: pip install 'trainmark[text]'") from error
        _json(path)  # its size and form, before another language's code looks at it
        try:
            self._reader = Reader.from_file(str(path))
        except Exception as error:  # the package raises a bare Exception
            raise NotReadyError(f"{path} is no tokenizer.json: {error}") from error
        self.size = int(self._reader.get_vocab_size(with_added_tokens=True))
        if not 0 < self.size <= LARGEST_VOCABULARY:
            raise NotReadyError(f"{path} has {self.size:,} tokens; that is no vocabulary")

    def encode(self, text: str) -> list[int]:
        return list(self._reader.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._reader.decode([token for token in tokens if token < self.size], skip_special_tokens=False))

    def end_of_text(self) -> int | None:
        """What parts one document from the next, by the names that public tokenizers have for it."""
        for name in ("<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "</s>", "[SEP]"):
            if (found := self._reader.token_to_id(name)) is not None:
                return int(found)
        return None


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise NotReadyError(f"{path} is larger than any vocabulary; is it the right file?")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NotReadyError(f"{path} is no JSON; is it the right file?") from error
