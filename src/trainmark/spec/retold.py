"""Says sentences that were written in English, with figures in them, in the reader's language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trainmark.spec.language import LANGUAGES, Say, catalogue, chosen, speaker

if TYPE_CHECKING:
    from trainmark.spec.record import Doubt

MOST_LETTERS = 4000
"""A longer text is none of ours."""
DEEPEST = 6
"""So many sentences may stand in one another."""
CODE = "words"
"""The name of a place that holds words of code, which are the same in every language."""
EITHER, ENDINGS = "either", ("", "s", "es")
"""Begins the name of a place that holds one of two endings, and what these are behind a word."""
FEWEST_LETTERS, FEWEST_AT_FIRST = 6, 3
"""A template with fewer of its own, or fewer before its first value, would fit whatever there is."""
FEW_WORDS = ((8, 4), (12, 12))
"""Where a template that begins with a value has fewer letters of its own than the first figure, none of its values has
more words than the second: it may fit by chance."""
SEVERAL_WORDS = 3
"""So many are a sentence, and not a name."""
MOST_PARTS = 8
"""Of a text that joins more, each is looked at by itself."""
LEADING = ("; ", ", ")
"""What some sentences begin with that follow others."""
BETWEEN = (
    *(("\n", "\n"), (". ", "。"), ("; ", "；"), (": ", "："), ("  ", "  "), (", ", "，")),
    *((" · ", " · "), (" and ", " 和 "), (" or ", " 或 ")),
)
"""What joins sentences, weakest last, and what does so in Chinese."""
BETWEEN_SENTENCES = ("\n", "; ", ": ", "  ")
"""Of these, what stands on either side may be somebody else's words."""

_WORDS = re.compile(r"[A-Za-z]{2}")
_PLACE = re.compile(r"\{(\w+)\}")
_COUNTED = re.compile(r"([0-9][0-9 .,]*) ([a-z]+)")
"""`2 threads`, as `spec.checks.count` says it."""
_NUMBER_OF = re.compile(r"([0-9][0-9 ]*) of ([0-9][0-9 ]*)")
_PAIR = re.compile(r"([a-z]+) ((?:\S+ ?){1,4}) and ((?:\S+ ?){1,4})")
"""`topology 1x8 and 1x1`: in what two results differ."""
_SENTENCES = re.compile(r"(?<=\.) (?=[A-Z])")
_NEXT = re.compile(r"\. [A-Z]")
"""Where another sentence begins."""
_FIGURE = re.compile("[0-9]")
_ONE_WORD = re.compile(r"[\w./-]+")
_NAMED = re.compile(r"(\w+) (\S+)")

Tell = Callable[[str], str]


class _Template(NamedTuple):
    english: str
    pieces: tuple[str, ...]
    """What stands between the values, first and last included."""
    names: tuple[str, ...]
    letters: int
    """Of its own."""

    def endings(self, values: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Values that stand right behind a letter, with their names: a plural's s."""
        for piece, name, value in zip(self.pieces, self.names, values, strict=False):
            if piece[-1:].isalpha():
                yield name, value

    @property
    def most_words(self) -> int | None:
        """Of one value; None where it may have any number."""
        if sum(sign.isalpha() for sign in self.pieces[0]) > FEWEST_AT_FIRST:
            return None
        if len(self.names) == 1 and self.letters < FEWEST_LETTERS:
            return 1
        return next((words for letters, words in FEW_WORDS if self.letters < letters), None)


def told(text: str) -> str:
    """In the language that was chosen for this process."""
    return text if chosen() == LANGUAGES[0] else retold(text, speaker(chosen()))


@lru_cache(maxsize=4096)
def retold(text: str, say: Say) -> str:
    """The sentence in the language of `say`, its figures as they are; what nobody has translated stays as it is."""
    if say is speaker(LANGUAGES[0]) or len(text) > MOST_LETTERS:
        return text
    return _retold(text, say, DEEPEST)


def told_doubt(doubt: Doubt, say: Say, meanings: Mapping[str, str]) -> str:
    """A doubt once: its own words in the reader's language, else what its code means there, else as it stands."""
    found = retold(doubt.text, say)
    return meanings.get(doubt.code, found) if found == doubt.text else found


def _retold(text: str, say: Say, deep: int) -> str:
    core = text.strip()
    if deep < 0 or not _WORDS.search(text):
        return text
    if core != text:
        return text.replace(core, _retold(core, say, deep), 1)

    def tell(part: str) -> str:
        return _retold(part, say, deep - 1)

    if (pair := _PAIR.fullmatch(text)) and (known := say(pair[1])) != pair[1]:
        return f"{known} {tell(pair[2])} 与 {tell(pair[3])}"
    for form in dict.fromkeys((text, text[:1].lower() + text[1:])):
        if (found := _whole(form, say, tell)) is not None:
            return found
    for leading in LEADING:
        if (found := _whole(leading + text, say, tell, leading)) is not None:
            return found.lstrip("；，")
    return _plain(text, say) or _apart(text, tell, lambda part: _whole(part, say, tell))


def _whole(text: str, say: Say, tell: Tell, leading: str = "") -> str | None:
    """A sentence of ours, with whatever stands in its places; None where it is none."""
    if (known := say(text)) != text:
        return known
    for template in _templates():
        values = _fitted(template, text) if template.pieces[0].startswith(leading) else None
        if values is None:
            continue
        first = next(filter(None, values.values()), "")
        if not template.pieces[0] and _whole(first, say, tell) is None and (several := _several(first, text, tell)):
            return several
        filled = {name: value if name == CODE else tell(value) for name, value in values.items()}
        return say(template.english).format(**filled)
    return None


def _plain(text: str, say: Say) -> str | None:
    """`2 threads`, `3 of 8`, `topology 1x8`: a word of ours and a figure."""
    if counted := _COUNTED.fullmatch(text):
        for thing in (counted[2], counted[2].removesuffix("s"), counted[2].removesuffix("es")):
            if (known := say(thing)) != thing:
                return f"{counted[1]} 个{known}"
    if share := _NUMBER_OF.fullmatch(text):
        return f"{share[1]}/{share[2]}"
    if (named := _NAMED.fullmatch(text)) and (known := say(named[1])) != named[1]:
        return f"{known} {named[2]}"
    return None


def _apart(text: str, tell: Tell, whole: Callable[[str], str | None]) -> str:
    """The parts of a text that is no sentence of ours as a whole, each by itself."""
    if len(sentences := _SENTENCES.split(text)) > 1:
        return "".join(map(tell, sentences))
    if text.endswith(".") and (found := tell(text[:-1])) != text[:-1]:
        return f"{found}。"
    if text.startswith("(") and text.endswith(")") and (found := tell(text[1:-1])) != text[1:-1]:
        return f"（{found}）"
    if text.endswith(")") and " (" in text:
        before, _, inside = text[:-1].rpartition(" (")
        found, within = tell(before), tell(inside)
        if (found, within) != (before, inside):
            return f"{found}（{within}）"
    for between, joined in BETWEEN:
        if between in text:
            parts = list(_longest(text.split(between), between, whole))
            said = [tell(part) for part in parts]
            left = [part for part, one in zip(parts, said, strict=True) if part == one]
            known = between in BETWEEN_SENTENCES or not any(len(part.split()) >= SEVERAL_WORDS for part in left)
            if len(left) < len(parts) and known:
                return joined.join(said)
    return text


def _longest(parts: list[str], between: str, whole: Callable[[str], str | None]) -> Iterator[str]:
    """The parts, but for those that are one sentence of ours together."""
    while parts:
        most = len(parts) if len(parts) <= MOST_PARTS else 1
        together = (between.join(parts[:count]) for count in range(most, 1, -1))
        count, found = next(
            ((most - index, text) for index, text in enumerate(together) if whole(text) is not None), (1, parts[0])
        )
        yield found
        parts = parts[count:]


def _several(first: str, text: str, tell: Tell) -> str | None:
    """The text as several sentences, where the first value of a template would hold the end of one."""
    for between in BETWEEN_SENTENCES:
        if between in first:
            before, _, after = text.partition(between)
            if (found := tell(after)) != after:
                return f"{tell(before)}{dict(BETWEEN)[between]}{found}"
    return _listed(text, tell) if ", " in first else None


def _listed(text: str, tell: Tell) -> str | None:
    """Sentences that commas part; None where one of them is not known by itself."""
    parts = text.split(", ")
    found = [tell(part) for part in parts]
    return None if any(part == one for part, one in zip(parts, found, strict=True)) else "，".join(found)


def _fitted(template: _Template, text: str) -> dict[str, str] | None:
    """The values by which a template makes the text, each as short as can be; None where it does not."""
    first, last = template.pieces[0], template.pieces[-1]
    at, end = len(first), len(text) - len(last)
    if end < at or not text.startswith(first) or not text.endswith(last):
        return None
    if not last and text.endswith("."):
        return None  # without its full stop it may be a sentence that says more
    values = []
    for piece in template.pieces[1:-1]:
        found = text.find(piece, at, end)
        if found < 0:
            return None
        values.append(text[at:found])
        at = found + len(piece)
    values.append(text[at:end])
    most = template.most_words
    following = zip(values, template.pieces[1:], strict=True)
    if any(value.endswith((":", ",", ";")) and not piece.startswith("'") for value, piece in following):
        return None  # a shorter sentence begins there
    if any(_NEXT.search(value) for value in values) or (most and any(len(value.split()) > most for value in values)):
        return None
    if any(name.startswith(EITHER) and value not in ENDINGS for name, value in template.endings(values)):
        return None
    if most == 1 and not _ONE_WORD.fullmatch(values[0]):
        return None
    few = template.letters < (FEWEST_LETTERS if template.pieces[0] else FEW_WORDS[1][0] - 2)
    value = next(filter(None, values), "")
    if most and few and not template.pieces[0].startswith("no ") and " " in value and not _FIGURE.search(value):
        return None
    return dict(zip(template.names, values, strict=True))


@cache
def _templates() -> tuple[_Template, ...]:
    """Every sentence of the catalogues with places for values, those with most words of their own first."""
    return tuple(sorted(_all_templates(), key=lambda one: -one.letters - 8 * bool(one.pieces[0])))


def _all_templates() -> Iterator[_Template]:
    for english in dict.fromkeys(key for language in LANGUAGES[1:] for key in catalogue(language)):
        parts = _PLACE.split(english)
        letters = [sum(sign.isalpha() for sign in piece) for piece in parts[::2]]
        enough = sum(letters) >= FEWEST_LETTERS - 1 or letters[0] >= FEWEST_AT_FIRST or letters[-1] > FEWEST_AT_FIRST
        opens = parts[0].startswith("no ") and len(parts) > FEWEST_AT_FIRST
        if len(parts) > 1 and (enough or opens) and "\x04" not in english:
            yield _Template(english, tuple(parts[::2]), tuple(parts[1::2]), sum(letters))
