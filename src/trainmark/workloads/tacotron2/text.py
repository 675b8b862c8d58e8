"""Encodes text as Tacotron2's 148 symbol ids, numbered as in the public checkpoints, after reading it as they do.

Text becomes plain lower-case English words, as LJSpeech has them: numbers, sums of money and abbreviations are spelled
out, Latin letters lose their accents, typographic signs become ASCII. Letters of other scripts are refused: dropping
them would speak another text.
"""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from pathlib import Path

from num2words import num2words

from trainmark.record.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PUNCTUATION = "-!'(),.:;? "
"""What is kept besides letters, in the order of the symbol ids."""
_WORDS = tomllib.loads(Path(__file__).with_name("text.toml").read_text(encoding="utf-8"))
_ABBREVIATIONS: dict[str, str] = _WORDS["abbreviations"]

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
    """Only lower-case letters and `PUNCTUATION`; perhaps nothing."""
    if stray := re.search("[{}]", text):
        if stray[0] == "{":
            raise UsageError(f"the text has a brace that is not closed: {_quote(text[stray.start() :])}; {_HOW}")
        raise UsageError(f"the text closes a brace that was not opened: {_quote(text[: stray.end()])}; {_HOW}")
    text = _spell_numbers(_transliterate(text))
    text = _ABBREVIATION.sub(lambda found: _ABBREVIATIONS[found[1]], text)
    return re.sub(" +", " ", text)


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


# Characters


# input cannot contain these: control characters become white space
_PART = "\x1f"
"""Separates two words, and vanishes beside white space and punctuation."""
_DROPPED = "\x1e"
"""A silent character, which separates numbers but not words: 1/2 is not twelve."""

_CURRENCY_SIGNS = "".join(_WORDS["currencies"])
_KEPT = frozenset(string.ascii_lowercase + string.digits + PUNCTUATION + _CURRENCY_SIGNS)
_TABLE: dict[str, str] = {
    **{sign: like for like, signs in _WORDS["signs"].items() for sign in signs},
    **{sign: f"{_PART}{words}{_PART}" for sign, words in _WORDS["spoken"].items()},
    **_WORDS["latin"],
}
_DROPPED_IN_NUMBER = re.compile(rf"(?<=[0-9]){_DROPPED}+(?=[0-9])")
_PARTING = re.compile(rf"(?<=[^ (\-'{_PART}]){_PART}+(?=[^ ),.:;!?\-'{_PART}])")
_ABBREVIATION = re.compile(rf"\b({'|'.join(_ABBREVIATIONS)})\.")
_SHOWN_CHARACTERS = 12


def _transliterate(text: str) -> str:
    likes = {character: _ascii_like(character) for character in set(text)}
    unreadable = {character for character, like in likes.items() if like is None}
    if unreadable:
        raise UsageError(_describe_unreadable(text, unreadable))
    text = text.translate({ord(character): like for character, like in likes.items()})
    text = _DROPPED_IN_NUMBER.sub(" ", text).replace(_DROPPED, "")
    return _PARTING.sub(" ", text).replace(_PART, "")


def _ascii_like(character: str) -> str | None:
    """Replacement of one character; None if it cannot be transliterated."""
    character = character.lower()
    if character in _KEPT:
        return character
    if character in _TABLE:
        return _TABLE[character]
    if len(character) > 1:
        return _all_like(character)
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category == "Cc" or category[0] == "Z":
        return " "
    if category == "Cf" or category[0] == "M":
        return ""
    if category[0] == "S" and not unicodedata.decomposition(character).startswith(("<wide>", "<small>")):
        return _DROPPED if character.isascii() else _PART
    plain = unicodedata.normalize("NFKD", character)
    if plain != character:
        like = _all_like(plain)
        # a raised or circled digit is a number of its own: 10² is not 102
        return f"{_PART}{like}{_PART}" if like is not None and category == "No" else like
    return None if category[0] in "LN" else _DROPPED


def _all_like(characters: str) -> str | None:
    likes = [_ascii_like(character) for character in characters]
    return None if None in likes else "".join(like for like in likes if like is not None)


def _describe_unreadable(text: str, unreadable: set[str]) -> str:
    start = next(place for place, character in enumerate(text) if character in unreadable)
    end = start
    while end < len(text) and text[end] in unreadable:
        end += 1
    shown = text[start : min(end, start + _SHOWN_CHARACTERS)]
    more = "..." if end - start > len(shown) else ""
    block = unicodedata.name(unicodedata.normalize("NFKD", shown)[0], "UNKNOWN").split()[0]
    script, latin_writing = _WORDS["scripts"].get(block, (block.capitalize(), ""))
    example = f", e.g. {latin_writing}," if latin_writing else ""
    return (
        f"the text has characters this voice cannot read: '{shown}{more}' ({script}); "
        f"write it in Latin letters a to z{example} or give phonemes in braces"
    )


# Numbers


_MAX_NAMED_DIGITS = 36
"""A longer number is read digit by digit."""
# each pattern may begin only where a run of digits begins, else a very long run would cost its length squared
_LISTED = re.compile(r"(?<![0-9])[0-9]+(?:,[0-9]+)+")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}")
_MONEY = re.compile(rf"([{_CURRENCY_SIGNS}])([0-9]*)((?:\.[0-9]+)*)")
_DECIMAL = re.compile(r"(?<![0-9])([0-9]+)\.([0-9]+)")
_ORDINAL = re.compile(r"(?<![0-9])([0-9]+)(?:st|nd|rd|th)(?![a-z])")
_NUMBER = re.compile(r"[0-9]+")


def _spell_numbers(text: str) -> str:
    """The text with digits and currency signs spelled out.

    Each rule leaves digits to the rules after it, which is why $1,234 is "twelve thirty-four dollars".
    """
    text = _LISTED.sub(_remove_commas, text)
    text = _MONEY.sub(_spell_money, text)
    text = _DECIMAL.sub(_spell_decimal, text)
    text = _ORDINAL.sub(lambda found: _spell(found[1], "ordinal"), text)
    return _NUMBER.sub(lambda found: _spell_number(found[0]), text)


def _remove_commas(found: re.Match[str]) -> str:
    # "1,234" and "12,34,567" are one number, "1,2,3" and "1999,2000" are several
    return found[0].replace(",", "") if _GROUPED.fullmatch(found[0]) else found[0]


def _spell_money(found: re.Match[str]) -> str:
    sign, whole, rest = found.groups()
    if not whole and not rest:
        return ""
    unit, units, part, parts = _WORDS["currencies"][sign]
    before = found.string[max(found.start() - 1, 0) : found.start()]
    apart = " " if before.isalnum() else ""
    if rest and not re.fullmatch(r"\.[0-9]{2}", rest):
        return f"{apart}{whole or '0'}{rest} {units}"
    count, cents = whole.lstrip("0"), rest[1:].lstrip("0")
    said = [f"{count} {unit if count == '1' else units}"] if count else []
    said += [f"{cents} {part if cents == '1' else parts}"] if cents else []
    return apart + (", ".join(said) or f"0 {units}")


def _spell_decimal(found: re.Match[str]) -> str:
    whole, fraction = found.groups()
    rest = fraction.lstrip("0")
    zeros = ["zero"] * (len(fraction) - len(rest))
    return " ".join([whole, "point", *zeros, *([rest] if rest else [])])


def _spell_number(digits: str) -> str:
    """A cardinal; 1001 to 2999 are read as years are, whatever they count."""
    if len(digits.lstrip("0")) != 4 or not 1000 < int(digits) < 3000:
        return _spell_cardinal(digits)
    if int(digits) < 1010:
        return f"ten oh {_spell_cardinal(digits[-1])}"
    return _spell(digits, "year").replace(" and ", " ").replace("oh-", "oh ")


def _spell_cardinal(digits: str) -> str:
    return _spell(digits, "cardinal").replace(" and ", " ")


def _spell(digits: str, how: str) -> str:
    digits = digits.lstrip("0") or "0"
    if len(digits) <= _MAX_NAMED_DIGITS:
        return str(num2words(int(digits), to=how))
    *first, last = (str(num2words(int(digit))) for digit in digits)
    return " ".join([*first, str(num2words(int(digits[-1]), to=how)) if how == "ordinal" else last])
