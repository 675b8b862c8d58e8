"""Renders a verify for a terminal: the verdict, what differs, what is not deterministic, what the sensors saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmark.features.verify.parity import Parity
from trainmark.features.verify.verdict import line
from trainmark.record.checks import format_count
from trainmark.record.events import DeviceReading, RoundVerified
from trainmark.record.verify import VerifyDocument
from trainmark.view.terminal import TerminalWriter

MAX_LINES = 12
STYLES = {"equal": "bold green", "agrees": "bold green", "wrong": "bold red", "differs": "bold red"}
UNDECIDED = "bold yellow"


def render(
    document: VerifyDocument, parity: Parity | None, *, width: int = 100, color: bool = False, encoding: str = "utf-8"
) -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    writer.put(writer.text(document.sentence, STYLES.get(document.verdict, UNDECIDED)))
    for difference in document.differences[:MAX_LINES]:
        writer.put(line(difference, document.hosts), indent=2)
    if (more := len(document.differences) - MAX_LINES) > 0:
        writer.put(f"and {format_count(more, 'difference')} more, which its file names", indent=2)
    for sentence in notes(document):
        writer.put(sentence, indent=2)
    if parity is not None:
        writer.put(writer.text(parity.sentence, STYLES.get(parity.verdict, UNDECIDED)))
        writer.put(f"{parity.own} beside {parity.other}", indent=2)
    return writer.getvalue()


def notes(document: VerifyDocument) -> Iterator[str]:
    """What a reader has to know beside the verdict."""
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
        yield f"operators were not looked at one by one: {operators.unavailable}"
    if document.switches:
        values = ", ".join(f"{name}={value}" for name, value in document.switches.items())
        yield f"the platform's libraries were made deterministic by {values}"
    if document.draws:
        yield "the step draws random numbers, which were left out: every chip is to make the same step"
    if document.hashed_on_host:
        yield f"bits were hashed on the host, as the device could not: {document.hashed_on_host}"
    if seen := _sensed(document):
        yield f"while it computed: {seen}"


def round_line(event: RoundVerified, found: int, readings: Sequence[DeviceReading]) -> str:
    """One round in a line, with what the hottest device shows now."""
    said = format_count(found, "difference") if found else "alike" if event.settled else "not settled yet"
    parts = [f"round {event.round}: {format_count(event.steps, 'step')} in {event.seconds:.1f} s, {said}"]
    parts += _shown(
        max((each.temperature_c for each in readings if each.temperature_c is not None), default=None),
        min((each.clock_mhz for each in readings if each.clock_mhz is not None), default=None),
        max((each.power_w for each in readings if each.power_w is not None), default=None),
    )
    return "  ".join(parts)


def _sensed(document: VerifyDocument) -> str:
    seen = document.telemetry
    parts = _shown(seen.temperature_c, seen.least_clock_mhz, seen.power_w)
    if seen.throttled:
        parts.append(f"slowed by {', '.join(seen.throttled)}")
    if seen.ecc_errors:
        parts.append(f"{seen.ecc_errors:.0f} memory errors corrected")
    return ", ".join(parts)


def _shown(temperature_c: float | None, clock_mhz: float | None, power_w: float | None) -> list[str]:
    values = ((temperature_c, "°C"), (clock_mhz, "MHz"), (power_w, "W"))
    return [f"{value:.0f} {unit}" for value, unit in values if value is not None]
