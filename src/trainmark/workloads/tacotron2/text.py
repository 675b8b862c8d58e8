"""Encodes text as Tacotron2's 148 symbol ids, numbered as in the public checkpoints."""

from __future__ import annotations

import re
import string

from trainmark.record.errors import UsageError, nearest
from trainmark.workloads.tacotron2.text_cleaning import PUNCTUATION, clean_plain

_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
PHONEMES = tuple(
    sorted([*_CONSONANTS.split(), *(vowel + stress for vowel in _VOWELS.split() for stress in ("", *"012"))])
)
"""ARPAbet; the digit after a vowel is its stress."""

SYMBOLS: tuple[str, ...] = (
    "_",  # padding; never occurs in a text
    *PUNCTUATION,
    *string.ascii_uppercase,
    *string.ascii_lowercase,
    *(f"@{phoneme}" for phoneme in PHONEMES),
)
"""A symbol's id is its position."""

_IDS = {symbol: position for position, symbol in enumerate(SYMBOLS)}
_KNOWN_PHONEMES = frozenset(PHONEMES)
_IN_BRACES = re.compile(r"\{([^{}]*)\}")
_HOW = "write phonemes as {HH AW1 S}"


def clean(text: str) -> str:
    """Cleaned text: lower-case letters and plain punctuation; phonemes stay in their braces."""
    return "".join(part if isinstance(part, str) else f"{{{' '.join(part)}}}" for part in _read(text))


def to_ids(text: str) -> list[int]:
    """One id per character or phoneme of the cleaned text."""
    ids: list[int] = []
    for part in _read(text):
        ids += [_IDS[symbol] for symbol in (part if isinstance(part, str) else [f"@{phoneme}" for phoneme in part])]
    return ids


def _read(text: str) -> list[str | tuple[str, ...]]:
    """Cleaned text and groups of phonemes, alternating."""
    parts: list[str | tuple[str, ...]] = []
    for place, part in enumerate(_IN_BRACES.split(text)):
        parts.append(_parse_phonemes(part) if place % 2 else _clean_plain(part))
    if not any(isinstance(part, tuple) or any(map(str.isalpha, part)) for part in parts):
        raise UsageError(f"there is nothing to speak in {_quote(text)}; give at least one word")
    return parts


def _clean_plain(text: str) -> str:
    if stray := re.search("[{}]", text):
        if stray[0] == "{":
            raise UsageError(f"the text has a brace that is not closed: {_quote(text[stray.start() :])}; {_HOW}")
        raise UsageError(f"the text closes a brace that was not opened: {_quote(text[: stray.end()])}; {_HOW}")
    return clean_plain(text)


def _parse_phonemes(group: str) -> tuple[str, ...]:
    phonemes = tuple(group.split())
    if not phonemes:
        raise UsageError(f"the text has braces with nothing in them; {_HOW}")
    for phoneme in phonemes:
        if phoneme not in _KNOWN_PHONEMES:
            raise UsageError(f"{_quote(phoneme)} in braces is not an ARPAbet phoneme; {nearest(phoneme, PHONEMES)}")
    return phonemes


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
