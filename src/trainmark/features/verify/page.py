"""Renders a verify: its verdict for a terminal, and a page that compares it with another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmark import __version__
from trainmark.features.verify.document import VerifyDocument
from trainmark.features.verify.parity import LEFT_OUT_STEPS, Parity
from trainmark.features.verify.verdict import describe_difference
from trainmark.record.checks import format_count
from trainmark.record.events import DeviceReading, RoundVerified
from trainmark.record.format import number
from trainmark.record.language import Say, translator
from trainmark.view import chart
from trainmark.view.chart import Point
from trainmark.view.element import Markup, el
from trainmark.view.frame import build_page, page_footer, page_header
from trainmark.view.terminal import TerminalWriter

MAX_LINES = 12
STYLES = {"equal": "bold green", "agrees": "bold green", "wrong": "bold red", "differs": "bold red"}
UNDECIDED = "bold yellow"


def render_text(
    document: VerifyDocument, parity: Parity | None, *, width: int = 100, color: bool = False, encoding: str = "utf-8"
) -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    writer.put(writer.text(document.sentence, STYLES.get(document.verdict, UNDECIDED)))
    for difference in document.differences[:MAX_LINES]:
        writer.put(describe_difference(difference, document.hosts), indent=2)
    if (more := len(document.differences) - MAX_LINES) > 0:
        writer.put(f"and {format_count(more, 'difference')} more, listed in its file", indent=2)
    for sentence in describe_notes(document):
        writer.put(sentence, indent=2)
    if parity is not None:
        writer.put(writer.text(parity.sentence, STYLES.get(parity.verdict, UNDECIDED)))
        writer.put(f"{parity.own} beside {parity.other}", indent=2)
    return writer.getvalue()


def describe_notes(document: VerifyDocument) -> Iterator[str]:
    """Describes what to know besides the verdict."""
    operators = document.operators
    if operators.steadied:
        names = ", ".join(operators.steadied)
        yield f"not deterministic by themselves: {names}; torch.use_deterministic_algorithms(True) made them so here"
    if operators.unsteady:
        names = ", ".join(operators.unsteady)
        yield f"not deterministic even with torch.use_deterministic_algorithms(True): {names}"
    if operators.warned:
        names = ", ".join(operators.warned)
        yield f"torch has no deterministic implementation here of {names}"
    if operators.unavailable:
        yield f"operators were not checked one by one: {operators.unavailable}"
    if document.switches:
        values = ", ".join(f"{name}={value}" for name, value in document.switches.items())
        yield f"the platform's libraries were made deterministic by {values}"
    if document.draws:
        yield "the step uses random numbers, which were replaced by fixed ones: every chip has to compute the same step"
    if document.hashed_on_host:
        yield f"bits were hashed on the host, not on the device: {document.hashed_on_host}"
    if seen := _describe_sensors(document):
        yield f"while it computed: {seen}"


def describe_round(event: RoundVerified, found: int, readings: Sequence[DeviceReading]) -> str:
    """One round in a line, with the current readings of the hottest device."""
    result = format_count(found, "difference") if found else "alike" if event.settled else "not settled yet"
    parts = [f"round {event.round}: {format_count(event.steps, 'step')} in {event.seconds:.1f} s, {result}"]
    parts += _format_readings(
        max((each.temperature_c for each in readings if each.temperature_c is not None), default=None),
        min((each.clock_mhz for each in readings if each.clock_mhz is not None), default=None),
        max((each.power_w for each in readings if each.power_w is not None), default=None),
    )
    return "  ".join(parts)


def _describe_sensors(document: VerifyDocument) -> str:
    seen = document.telemetry
    parts = _format_readings(seen.temperature_c, seen.least_clock_mhz, seen.power_w)
    if seen.throttled:
        parts.append(f"slowed by {', '.join(seen.throttled)}")
    if seen.ecc_errors:
        parts.append(f"{seen.ecc_errors:.0f} memory errors corrected")
    return ", ".join(parts)


def _format_readings(temperature_c: float | None, clock_mhz: float | None, power_w: float | None) -> list[str]:
    values = ((temperature_c, "°C"), (clock_mhz, "MHz"), (power_w, "W"))
    return [f"{value:.0f} {unit}" for value, unit in values if value is not None]


def render_page(document: VerifyDocument, parity: Parity, *, language: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = translator(language)
    title = say("{workload}: two chips, the same steps").format(workload=str(document.plan.get("workload", "")))
    lines = [document.sentence, *describe_notes(document)]
    body = [
        page_header(title, (), say),
        el(
            "main",
            el(
                "section",
                el("h2", parity.sentence),
                el("p", [el("span", name) for name in (parity.own, parity.other)], class_="facts"),
                el("div", _losses(parity, say), class_="charts"),
                el("ul", [el("li", line) for line in lines]),
                class_="run",
            ),
        ),
        page_footer(__version__, say),
    ]
    return build_page(f"{title} · trainmark", body, language=language, trainmark=__version__)


def _losses(parity: Parity, say: Say) -> Markup | None:
    own, other = _points(parity.own_loss), _points(parity.other_loss)
    if not own or not other:
        return None
    steps = max(len(parity.own_loss), len(parity.other_loss))
    bands = []
    if steps > LEFT_OUT_STEPS:
        bands.append(chart.Band(name=say("left out by the rule of 2 %"), start=0.5, end=LEFT_OUT_STEPS + 0.5))
    rules = []
    vertical = chart.linear_axis([value for _, value in (*own, *other)])
    if parity.first is not None:
        at = float(parity.first.step)
        rules.append(chart.Rule(name=say("where they part"), points=((at, vertical.low), (at, vertical.high))))
    said = say("From {first} to {last}.").format(first=number(own[0][1], 4), last=number(own[-1][1], 4))
    rows = [
        [f"{step}", *("-" if value is None else number(value, 6) for value in values)]
        for step, *values in zip(range(1, steps + 1), parity.own_loss, parity.other_loss, strict=True)
    ]
    return chart.draw_chart(
        say("Training loss"),
        said,
        say,
        x=chart.exact_axis(0, steps + 1),
        y=vertical,
        x_name=say("step"),
        y_name=say("mean over all ranks"),
        y_unit="",
        lines=[
            chart.Line(name=parity.other, points=other, color=0),
            chart.Line(name=parity.own, points=own, color=3),
        ],
        bands=bands,
        rules=rules,
        heads=[say("step"), parity.own, parity.other],
        rows=rows,
        counts_x=True,
        size=(980, 300),
    )


def _points(losses: Sequence[float | None]) -> list[Point]:
    return [(step, value) for step, value in enumerate(losses, 1) if value is not None]
