"""Draws `trainmark explain`: one term in full, or all in brief."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainmark.record.language import Say, translator
from trainmark.view.glossary import Meaning
from trainmark.view.terminal import TerminalWriter


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
