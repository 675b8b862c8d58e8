"""Draws a comparison for a terminal: both sides, the verdict in a sentence, what differs, and the doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.analysis.compare.judge import MOST_REPEATS
from trainmark.report.headline import number_of_times
from trainmark.report.terminal import Cell, Column, TableModel, TerminalWriter, draw, interval_pieces
from trainmark.spec.format import NOTHING, TOO_NOISY_WORDS, device_name, number

if TYPE_CHECKING:
    from trainmark.analysis.compare.comparison import Comparison, Party

WORTH_TIMES = 1.5
"""Below that, a ratio says more than a number of times."""

STYLES = {"faster": "bold green", "better": "bold green", "slower": "bold red", "worse": "bold red", "same": "bold"}


def render(found: Comparison, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    draw(writer, _table_model(found))
    writer.put("", writer.text(headline(found), STYLES.get(found.verdict, "bold yellow")))
    writer.put(*sentences(found))
    for title, unlike in (("Not alike", True), ("Differs", False)):
        if said := [str(difference) for difference in found.differences if difference.unlike is unlike]:
            writer.put("", writer.text(f"{title}: {'; '.join(said)}.", "yellow" if unlike else ""))
    if found.doubts:
        writer.put("", writer.numbered(found.doubts))
    return writer.drawn()


def headline(found: Comparison) -> str:
    """The verdict in one sentence."""
    judgement = found.judgement
    ratio = f"B's {found.compared.name} is {_ratio(judgement.ratio)} times A's"
    threshold = f"the threshold of {100 * found.threshold:g} %" if found.threshold else "1"
    if found.unless_off_by is not None:
        off = number(float(f"{found.unless_off_by:.1g}"), 2 if found.unless_off_by < 100 else 3)
        return (
            f"{found.verdict.capitalize()}: {ratio}{_times(found)}, unless the published figure is off by {off} times."
        )
    if judgement.interval is None:
        return f"Inconclusive: {ratio}, and {judgement.basis}."
    if judgement.too_noisy and found.inconclusive:
        return f"Inconclusive: {ratio}, and the runs are {TOO_NOISY_WORDS}: the ratio is not even known to ±50 %."
    low, high = judgement.interval
    where = {"same": "within", "inconclusive": "across"}.get(found.verdict, "beyond")
    beside = f"95 % interval {_ratio(low)} to {_ratio(high)}, {where} {threshold}"
    return f"{found.verdict.capitalize()}: {ratio}{_times(found)} ({beside})."


def _times(found: Comparison) -> str:
    """How many times faster or slower, where the two are that far apart; of what is no speed, how many times A's is."""
    ratio = found.judgement.ratio
    if 1 / WORTH_TIMES < ratio < WORTH_TIMES or found.verdict in ("same", "inconclusive"):
        return ""
    if found.verdict in ("faster", "slower"):
        return f", {number_of_times(ratio, 1.0)} times {found.verdict}"
    return "" if ratio > 1 else f", or A's is {number_of_times(ratio, 1.0)} times B's"


def sentences(found: Comparison) -> list[str]:
    """What makes the verdict believable, and what would settle it where it is open."""
    judgement = found.judgement
    said = []
    if judgement.interval is not None:
        said.append(f"The interval rests on {judgement.basis}.")
        if judgement.smallest_difference is not None:
            said[-1] += (
                f" These data would show a true difference of {number(100 * judgement.smallest_difference, 2)} % or "
                "more at least four times in five."
            )
        low, high = judgement.interval
        if found.threshold and not low <= 1 <= high and found.verdict in ("same", "inconclusive"):
            more = "is less" if found.verdict == "same" else "may or may not be more"
            said.append(f"That the two differ is significant, but it {more} than the threshold.")
    if found.a.side.published or found.b.side.published:
        return [*said, *_beside_published(found)]
    if not found.inconclusive:
        return said
    more_needed = judgement.more
    if more_needed is None and judgement.too_noisy:
        said.append(
            f"The runs vary so much that {MOST_REPEATS} repeats of each would not decide; a quieter machine would help."
        )
    elif more_needed is None:
        said.append(
            f"The ratio is so near the threshold that {MOST_REPEATS} repeats of each would not decide; "
            "choose another --threshold."
        )
    elif more_needed.steps is not None:
        said.append(f"About {more_needed.steps} more steps in each run would decide, or repeats of both.")
    else:
        said.append(f"About {more_needed.repeats} repeats of each would decide: --repeat {more_needed.repeats}.")
    return said


def _beside_published(found: Comparison) -> list[str]:
    """What can be said all the same: how far our own side alone leaves the ratio open."""
    if found.b.interval is not None:
        low, high = (bound / found.a.side.mean for bound in found.b.interval)
    elif found.a.interval is not None:
        high, low = (found.b.side.mean / bound for bound in found.a.interval)
    else:
        return []
    return [f"Were the published figure exact, the ratio would lie between {_ratio(low)} and {_ratio(high)}."]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else number(value)


def _table_model(found: Comparison) -> TableModel:
    columns = [
        Column(title="", right=False, label=True),
        Column(title="result", right=False, label=True),
        Column(title="configuration", right=False),
        Column(title="runs"),
        Column(title="steps"),
        Column(title=found.compared.name, unit=tuple(found.a.unit.split())),
    ]
    return TableModel(columns=columns, rows=[_row(letter, party) for letter, party in (("A", found.a), ("B", found.b))])


def _row(letter: str, party: Party) -> list[Cell]:
    subject = party.subject
    if subject.row is not None:
        configuration = (*subject.row.device.split(), subject.row.topology, subject.row.precision)
        runs, steps = NOTHING, NOTHING
    else:
        first = subject.records[0]
        configuration = (*device_name(first).split(), first.plan.topology, *first.precision.split())
        runs = str(len(subject.records))
        steps = str(sum(record.timeline.steps - record.timeline.warmup_steps for record in subject.records))
    return [
        Cell(pieces=(letter,), style="bold"),
        Cell(pieces=tuple(subject.label.split())),
        Cell(pieces=configuration),
        Cell(pieces=(runs,)),
        Cell(pieces=(steps,)),
        Cell(pieces=(number(party.side.mean, 4), *interval_pieces(party.interval)), style="bold"),
    ]
