"""Definitions of all metrics, phases, terms and doubts, for `explain`, the page and docs/metrics.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from trainmark.record.errors import UsageError, nearest
from trainmark.record.language import LANGUAGES, Say, catalogue, translator
from trainmark.record.metrics import METRICS, PRICED
from trainmark.view.terminal import TerminalWriter

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLES: Mapping[str, Mapping[str, str]] = tomllib.loads(
    files("trainmark.view").joinpath("glossary.toml").read_text(encoding="utf-8")
)
PHASES_EXPLAINED, WORDS, DOUBTS, ALSO = (_TABLES[name] for name in ("phases", "words", "doubts", "also"))


class Meaning(NamedTuple):
    kind: str
    """metric, phase, word or doubt."""
    word: str
    definition: str
    name: str = ""
    """The name in code, where the word of the tables is another."""
    unit: str = ""
    formula: str = ""
    title: str = ""
    """What Chinese tables call it; empty in English, and where they keep the word."""
    language: str = "en"


def list_meanings(language: str = "en") -> Iterator[Meaning]:
    """Everything that can be explained, metrics first."""
    for metric in (*METRICS.values(), *PRICED.values()):
        unit = metric.general_unit
        yield _translate(
            language, Meaning("metric", metric.alias, metric.definition, metric.name, unit, metric.formula)
        )
    for kind, entries in (("phase", PHASES_EXPLAINED), ("word", WORDS), ("doubt", DOUBTS)):
        for word, definition in entries.items():
            yield _translate(language, Meaning(kind, word, definition))


def _translate(language: str, entry: Meaning) -> Meaning:
    """The same in another language; what is younger than its translation stays English."""
    say = translator(language)
    definition = say(entry.definition)
    if definition == entry.definition:
        return entry
    title = say(entry.name) if entry.name else ""
    return entry._replace(title=title, formula=say(entry.formula), definition=definition, language=language)


def find_meaning(word: str, language: str = "en") -> Meaning:
    """What a word means, by either name of a metric, a translated one, and by the words people use for it."""
    plain = word.strip().lower()
    known = list(list_meanings(language))
    named = find_by_translated_name(plain)
    for asked in (plain, plain.replace("-", "_"), plain.replace("_", "-"), ALSO.get(plain, plain), named and named[0]):
        for entry in known:
            if asked and asked in (entry.word, entry.name):
                return entry
    names = [name for entry in known for name in (entry.word, entry.name) if name]
    close = nearest(word, [*names, *ALSO], otherwise="'trainmark explain' lists them")
    raise UsageError(f"word {word!r} is not known; {close}")


def find_by_translated_name(name: str) -> tuple[str, str] | None:
    """The word that tables of another language call so, or a metric whose name there begins so, and the language."""
    asked, known = name.strip().lower(), list(list_meanings())
    if not asked or asked.isascii():
        return None
    for language in LANGUAGES[1:]:
        for sentence, translation in catalogue(language).items():
            # the heads of our own tables, and of those in another's form
            word = re.sub(r"[\s-]+", "_", sentence.rpartition("\x04")[2].lower())
            for entry in known:
                begins = entry.kind == "metric" and sentence == entry.name and translation.startswith(asked)
                if begins or (translation.lower() == asked and word in (entry.word, entry.name)):
                    return entry.word, language
            if translation.lower() == asked and word in ALSO:
                return ALSO[word], language
    return None


# On a terminal: one term in full, or all in brief


def draw_one(writer: TerminalWriter, entry: Meaning, language: str) -> None:
    say = translator(language)
    kind = {"phase": say("phase"), "word": say("word"), "doubt": say("doubt")}.get(entry.kind, entry.kind)
    names = [name for name in (entry.title, entry.name) if name] or [kind]
    writer.put(writer.text(f"{entry.word}  ({', '.join(names)})", "bold"))
    unit = say("images/s, mel frames/s: what the workload counts") if entry.unit == "items/s" else entry.unit
    facts = ((say("unit"), unit), (say("formula"), entry.formula))
    writer.put(*(say("{name}: {text}").format(name=name, text=text) for name, text in facts if text), indent=2)
    for paragraph in entry.definition.split("\n\n"):
        writer.put("", " ".join(paragraph.split()))


def draw_all(writer: TerminalWriter, entries: Sequence[Meaning], language: str) -> None:
    say = translator(language)
    headings = {
        "metric": say("Metrics"),
        "phase": say("Phases: they never overlap and sum to e2e_time"),
        "word": say("Words"),
        "doubt": say("Doubts"),
    }
    longest = max(len(entry.word) for entry in entries)
    for kind, heading in headings.items():
        drawn = writer.table(heads=False)
        drawn.add_column(width=longest)
        drawn.add_column(overflow="fold")
        for entry in entries:
            if entry.kind == kind:
                drawn.add_row(writer.text(entry.word), writer.text(_shorten(entry, say)))
        writer.put(writer.text(heading, "bold"))
        writer.put(drawn, indent=2)
        writer.put("")
    writer.put(say("One of them in full: trainmark explain p_core"))


def _shorten(entry: Meaning, say: Say) -> str:
    """The first sentence of a definition, with the translated name before it and the unit behind."""
    end = (say(". ") if entry.language != "en" else ". ").strip()
    whole = " ".join(entry.definition.split("\n\n")[0].split())
    # three dots, as in amp-..., end nothing
    first = re.split(rf"(?<!\.){re.escape(end)}(?:\s|$)" if end == "." else re.escape(end), whole)[0]
    sentence = first + end if first else ""
    named = say("{name}: {text}").format(name=entry.title, text=sentence) if entry.title else sentence
    return say("{sentence} ({unit})").format(sentence=named, unit=entry.unit) if entry.unit else named
