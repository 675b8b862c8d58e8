"""How `trainmark explain` looks: one word in full or all in short, in English or Chinese."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainmark.cli.explain import Meaning
    from trainmark.report.terminal import Paper


class Talk(NamedTuple):
    """What `explain` itself says around the definitions."""

    headings: dict[str, str]
    """By kind of entry."""
    kinds: dict[str, str]
    unit: str
    items: str
    formula: str
    sentence_end: str
    one_in_full: str
    fact: str = "{name}: {text}"
    with_unit: str = "{sentence} ({unit})"


TALK = {
    "en": Talk(
        headings={
            "metric": "Metrics",
            "phase": "Phases: they never overlap and sum to e2e_time",
            "word": "Words",
            "doubt": "Doubts",
        },
        kinds={},
        unit="unit",
        items="images/s, mel frames/s: what the workload counts",
        formula="formula",
        sentence_end=". ",
        one_in_full="One of them in full: trainmark explain p_core",
    ),
    "zh": Talk(
        headings={"metric": "指标", "phase": "阶段：互不重叠，总和等于 e2e_time", "word": "词语", "doubt": "疑点"},
        kinds={"phase": "阶段", "word": "词语", "doubt": "疑点"},
        unit="单位",
        items="images/s、mel frames/s：以该负载的计数单位为准",
        formula="公式",
        sentence_end="。",
        one_in_full="查看完整解释：trainmark explain p_core",
        fact="{name}：{text}",
        with_unit="{sentence}（{unit}）",
    ),
}


def draw_one(paper: Paper, entry: Meaning, language: str) -> None:
    talk = TALK[language]
    names = [name for name in (entry.title, entry.name) if name] or [talk.kinds.get(entry.kind, entry.kind)]
    paper.put(paper.text(f"{entry.word}  ({', '.join(names)})", "bold"))
    unit = talk.items if entry.unit == "items/s" else entry.unit
    facts = ((talk.unit, unit), (talk.formula, entry.formula))
    paper.put(*(talk.fact.format(name=name, text=text) for name, text in facts if text), indent=2)
    for paragraph in entry.definition.split("\n\n"):
        paper.put("", " ".join(paragraph.split()))


def draw_all(paper: Paper, entries: list[Meaning], language: str) -> None:
    talk = TALK[language]
    longest = max(len(entry.word) for entry in entries)
    for kind, heading in talk.headings.items():
        drawn = paper.table(heads=False)
        drawn.add_column(width=longest)
        drawn.add_column(overflow="fold")
        for entry in entries:
            if entry.kind == kind:
                drawn.add_row(paper.text(entry.word), paper.text(_in_short(entry, talk)))
        paper.put(paper.text(heading, "bold"))
        paper.put(drawn, indent=2)
        paper.put("")
    paper.put(talk.one_in_full)


def _in_short(entry: Meaning, talk: Talk) -> str:
    """The first sentence of a definition, with the Chinese name before it and the unit behind."""
    end = talk.sentence_end.strip()
    sentence = " ".join(entry.definition.split("\n\n")[0].split()).split(talk.sentence_end)[0].rstrip(end) + end
    named = talk.fact.format(name=entry.title, text=sentence) if entry.title else sentence
    return talk.with_unit.format(sentence=named, unit=entry.unit) if entry.unit else named
