"""Normalises text to plain lower-case English words, as LJSpeech has them.

Latin letters lose their accents, Greek and Cyrillic are transliterated, typographic signs become ASCII. Letters of
other scripts are refused: dropping them would speak another text.
"""

from __future__ import annotations

import re
import string
import unicodedata

from trainmark.record.errors import UsageError
from trainmark.workloads.tacotron2.text_numbers import CURRENCY_SIGNS, spell_numbers, spell_units

PUNCTUATION = "-!'(),.:;? "
"""What is kept besides letters, in the order of the symbol ids."""

# input cannot contain these: control characters become white space
_PART = "\x1f"
"""Separates two words, and vanishes beside white space and punctuation."""
_DROPPED = "\x1e"
"""A silent character, which separates numbers but not words: 1/2 is not twelve."""

_KEPT = frozenset(string.ascii_lowercase + string.digits + PUNCTUATION + CURRENCY_SIGNS)

_SIGNS = {
    **dict.fromkeys("‘’‚‛ʻʼʹ´′", "'"),
    **dict.fromkeys("‐‑‒–−", "-"),
    **dict.fromkeys("—―", "--"),
    **dict.fromkeys("、،", ","),
    "。": ".",
    "؟": "?",
    "؛": ";",
}

_SPOKEN_SIGNS = {
    "%": "percent",
    "&": "and",
    "+": "plus",
    "@": "at",
    "=": "equals",
    "°": "degrees",
    "×": "times",
    "½": "one half",
    "¼": "one quarter",
    "¾": "three quarters",
}

_LATIN = {"ß": "ss", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d", "ŋ": "ng", "ı": "i", "ĸ": "k", "ə": "e"}

_OTHER_ALPHABETS = """
    α a  β b  γ g  δ d  ε e  ζ z  η e  θ th  ι i  κ k  λ l  μ m  ν n  ξ x  ο o  π p  ρ r  σ s  ς s  τ t  υ y  φ ph
    χ ch  ψ ps  ω o
    а a  б b  в v  г g  д d  е e  ё yo  ж zh  з z  и i  й y  к k  л l  м m  н n  о o  п p  р r  с s  т t  у u  ф f
    х kh  ц ts  ч ch  ш sh  щ shch  ы y  э e  ю yu  я ya
    і i  ї yi  є ye  ґ g  ђ dj  ј j  љ lj  њ nj  ћ ch  џ dzh  ѕ dz
"""
_OTHER_LETTERS: dict[str, str] = dict(re.findall(r"(\w) (\w+)", _OTHER_ALPHABETS))

_TABLE = {
    **_SIGNS,
    **{sign: f"{_PART}{words}{_PART}" for sign, words in _SPOKEN_SIGNS.items()},
    **_LATIN,
    **_OTHER_LETTERS,
    **dict.fromkeys("ъь", ""),
}

_SCRIPTS = {
    "CJK": ("Chinese", "pinyin"),
    "HIRAGANA": ("Japanese", "romaji"),
    "KATAKANA": ("Japanese", "romaji"),
    "HANGUL": ("Korean", "romaja"),
}
"""Prefix of Unicode names to the script's name and its usual romanisation."""

_ABBREVIATIONS = {
    "mrs": "misess",
    "mr": "mister",
    "dr": "doctor",
    "st": "saint",
    "co": "company",
    "jr": "junior",
    "maj": "major",
    "gen": "general",
    "drs": "doctors",
    "rev": "reverend",
    "lt": "lieutenant",
    "hon": "honorable",
    "sgt": "sergeant",
    "capt": "captain",
    "esq": "esquire",
    "ltd": "limited",
    "col": "colonel",
    "ft": "fort",
}
"""As the public voices were trained on them, odd spellings included."""

_ACCENTED = re.compile(r"[а-яіА-ЯІ][\u0306\u0308]")
_DROPPED_IN_NUMBER = re.compile(rf"(?<=[0-9]){_DROPPED}+(?=[0-9])")
_PARTING = re.compile(rf"(?<=[^ (\-'{_PART}]){_PART}+(?=[^ ),.:;!?\-'{_PART}])")
_ABBREVIATION = re.compile(rf"\b({'|'.join(_ABBREVIATIONS)})\.")
_LATIN_NAME = re.compile(r"LATIN SMALL LETTER ([A-Z]) WITH ")
_SHOWN_CHARACTERS = 12


def clean_plain(text: str) -> str:
    """Only lower-case letters and `PUNCTUATION`; perhaps nothing."""
    text = spell_numbers(_transliterate(spell_units(text)))
    text = _ABBREVIATION.sub(lambda found: _ABBREVIATIONS[found[1]], text)
    return re.sub(" +", " ", text)


def _transliterate(text: str) -> str:
    # й and ё have their own sounds also when decomposed; other accents are dropped
    text = _ACCENTED.sub(lambda found: unicodedata.normalize("NFC", found[0]), text)
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
    if named := _LATIN_NAME.match(unicodedata.name(character, "")):
        return named[1].lower()
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
    script, latin_writing = _SCRIPTS.get(block, (block.capitalize(), ""))
    example = f", e.g. {latin_writing}," if latin_writing else ""
    return (
        f"the text has characters this voice cannot read: '{shown}{more}' ({script}); "
        f"write it in Latin letters a to z{example} or give phonemes in braces"
    )
