"""Draws a comparison for a terminal: both sides, the verdict in a sentence, what differs, and the doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.analysis.judge import MAX_REPEATS
from trainmark.record.format import NOTHING, TOO_NOISY_WORDS, device_name, number
from trainmark.record.language import _
from trainmark.view.headline import format_times
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table, interval_pieces

if TYPE_CHECKING:
    from trainmark.analysis.comparison import Comparison, Difference, Party

WORTH_TIMES = 1.5
"""Below that, a ratio says more than a number of times."""

STYLES = {"faster": "bold green", "better": "bold green", "slower": "bold red", "worse": "bold red", "same": "bold"}


def render(found: Comparison, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    draw_table(writer, _table_model(found))
    headline = format_headline(found)
    if found.knob is not None:
        headline = f"{_(found.knob.name)} {_(found.knob.a)} → {_(found.knob.b)}. {headline}"
    writer.put("", writer.text(headline, STYLES.get(found.verdict, "bold yellow")))
    writer.put(*explain_verdict(found))
    for title, unlike in ((_("Not alike"), True), (_("Differs"), False)):
        shown = [one for one in found.differences if one.unlike is unlike and one != found.knob]
        if said := [_difference(difference) for difference in shown]:
            listed = _("{title}: {said}.").format(title=title, said=_("; ").join(said))
            writer.put("", writer.text(listed, "yellow" if unlike else ""))
    if doubts := found.doubts_in(_):
        writer.put("", writer.numbered_list(doubts))
    return writer.getvalue()


def _difference(found: Difference) -> str:
    return _("{name} {a} and {b}").format(name=_(found.name), a=_(found.a), b=_(found.b))


def format_headline(found: Comparison) -> str:
    """The verdict in one sentence."""
    judgement = found.judgement
    verdict = _(found.verdict).capitalize()
    ratio = _("B's {name} is {ratio} times A's").format(name=found.compared.name, ratio=_ratio(judgement.ratio))
    if found.unless_off_by is not None:
        off = number(float(f"{found.unless_off_by:.1g}"), 2 if found.unless_off_by < 100 else 3)
        return _("{verdict}: {ratio}{times}, unless the published figure is off by {off} times.").format(
            verdict=verdict, ratio=ratio, times=_times(found), off=off
        )
    if found.hidden_by_load is not None:
        return _("Cannot tell: {ratio}, and others used {percent} % of the machine, which may be why.").format(
            ratio=ratio, percent=f"{100 * found.hidden_by_load:.0f}"
        )
    if judgement.interval is None:
        return _("Inconclusive: {ratio}, and {basis}.").format(ratio=ratio, basis=judgement.basis_in(_))
    if judgement.is_too_noisy and found.is_inconclusive:
        return _(
            "Inconclusive: {ratio}, and the runs are too noisy to say: the ratio is not even known to ±50 %."
        ).format(ratio=ratio)
    low, high = judgement.interval
    where = {"same": _("within"), "inconclusive": _("across")}.get(found.verdict, _("beyond"))
    threshold = (
        _("the threshold of {percent} %").format(percent=f"{100 * found.threshold:g}") if found.threshold else "1"
    )
    beside = _("95 % interval {low} to {high}, {where} {threshold}").format(
        low=_ratio(low), high=_ratio(high), where=where, threshold=threshold
    )
    return _("{verdict}: {ratio}{times} ({beside}).").format(
        verdict=verdict, ratio=ratio, times=_times(found), beside=beside
    )


def _times(found: Comparison) -> str:
    """How many times faster or slower, where the two are that far apart; of what is no speed, how many times A's is."""
    ratio = found.judgement.ratio
    if 1 / WORTH_TIMES < ratio < WORTH_TIMES or found.verdict in ("same", "inconclusive"):
        return ""
    times = format_times(ratio, 1.0)
    if found.verdict in ("faster", "slower"):
        return _(", {times} times {verdict}").format(times=times, verdict=_(found.verdict))
    return "" if ratio > 1 else _(", or A's is {times} times B's").format(times=times)


def explain_verdict(found: Comparison) -> list[str]:
    """What makes the verdict believable, and what would settle it where it is open."""
    judgement = found.judgement
    lines = []
    if judgement.interval is not None:
        lines.append(_("The interval rests on {basis}.").format(basis=judgement.basis_in(_)))
        if judgement.smallest_difference is not None:
            lines[-1] += _(
                " These data would show a true difference of {percent} % or more at least four times in five."
            ).format(percent=number(100 * judgement.smallest_difference, 2))
        low, high = judgement.interval
        if found.threshold and not low <= 1 <= high and found.verdict in ("same", "inconclusive"):
            more = _("is less") if found.verdict == "same" else _("may or may not be more")
            lines.append(_("That the two differ is significant, but it {more} than the threshold.").format(more=more))
    if found.a.side.published or found.b.side.published:
        return [*lines, *_explain_published(found)]
    if found.hidden_by_load is not None:
        return [_("Other programs can slow a run by much more than their share: repeat it on a quiet machine.")]
    if not found.is_inconclusive:
        return lines
    more_needed = judgement.more
    if more_needed is None and judgement.is_too_noisy:
        text = _("The runs vary so much that {repeats} repeats of each would not decide; a quieter machine would help.")
        lines.append(text.format(repeats=MAX_REPEATS))
    elif more_needed is None:
        text = _(
            "The ratio is so near the threshold that {repeats} repeats of each would not decide; choose another "
            "--threshold."
        )
        lines.append(text.format(repeats=MAX_REPEATS))
    elif more_needed.steps is not None:
        text = _("About {steps} more steps in each run would decide, or repeats of both.")
        lines.append(text.format(steps=more_needed.steps))
    else:
        text = _("About {repeats} repeats of each would decide: --repeat {repeats}.")
        lines.append(text.format(repeats=more_needed.repeats))
    return lines


def _explain_published(found: Comparison) -> list[str]:
    """What can be said all the same: how far our own side alone leaves the ratio open."""
    if found.b.interval is not None:
        low, high = (bound / found.a.side.mean for bound in found.b.interval)
    elif found.a.interval is not None:
        high, low = (found.b.side.mean / bound for bound in found.a.interval)
    else:
        return []
    text = _("Were the published figure exact, the ratio would lie between {low} and {high}.")
    return [text.format(low=_ratio(low), high=_ratio(high))]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else number(value)


def _table_model(found: Comparison) -> TableModel:
    columns = [
        Column(title="", right=False, label=True),
        Column(title=_("result"), right=False, label=True),
        Column(title=_("configuration"), right=False),
        Column(title=_("runs")),
        Column(title=_("steps")),
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
        Cell(pieces=(number(party.side.mean, 4), *interval_pieces(party.interval, _(TOO_NOISY_WORDS))), style="bold"),
    ]
