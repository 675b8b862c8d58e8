"""Charts of what the samplers saw: power, heat, memory and use over time, and what no sensor could say."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.report import telemetry_text
from trainmark.report.html import axis, line_chart
from trainmark.report.html.axis import Point
from trainmark.report.html.element import Child, Markup, el
from trainmark.spec.format import number
from trainmark.spec.language import Say
from trainmark.spec.record import Record
from trainmark.spec.telemetry import MachineTelemetry, Series

_MOST_MACHINES = 4
_SIZE = (320, 170)


def draw(record: Record, say: Say, columns: int) -> Markup | None:
    machines = record.telemetry.machines
    if not machines:
        return None
    shown: list[Child] = [el("h3", say("Machine"))]
    for machine in machines[:_MOST_MACHINES]:
        remark = say("{host}: {samples} samples, one every {every} s").format(
            host=machine.host, samples=machine.samples, every=number(machine.every_s)
        )
        if machine.ended_early:
            remark += say("; the sampler ended early")
        shown.append(el("p", remark, class_="note"))
        shown.append(el("div", _charts(machine, say, columns), class_="charts three"))
        shown.append(_unavailable(machine, say))
    if len(machines) > _MOST_MACHINES:
        left = say("{count} more machines were sampled.").format(count=len(machines) - _MOST_MACHINES)
        shown.append(el("p", left, class_="note"))
    return el("section", shown, class_="machine")


def _charts(machine: MachineTelemetry, say: Say, columns: int) -> list[Markup]:
    devices = machine.devices[: telemetry_text.MOST_DEVICES]
    words = _words(say)
    found = []
    for name, (_, unit, size) in telemetry_text.DEVICE_SERIES.items():
        drawn = []
        for index, device in enumerate(devices):
            if points := _points(device.series.get(name), size):
                label = say("device {number}").format(number=device.device)
                drawn.append(line_chart.Line(name=label, points=points, color=index))
        if drawn:
            found.append(_chart(words[name], unit, drawn, machine, say, columns))
    for name, (_, unit, size) in telemetry_text.HOST_SERIES.items():
        # what is left of shared memory is for the terminal: on a page it is one chart too many
        if name != "shm_free_bytes" and (points := _points(machine.host_series.get(name), size)):
            line = line_chart.Line(name="", points=points, color=1)
            found.append(_chart(words[f"host {name}"], unit, [line], machine, say, columns))
    return found


def _words(say: Say) -> dict[str, str]:
    return {
        "power_w": say("Power"),
        "temperature_c": say("Temperature"),
        "memory_used_bytes": say("Device memory"),
        "utilisation_percent": say("Device use"),
        "clock_mhz": say("Clock"),
        "host cpu_percent": say("Host processors"),
        "host foreign_percent": say("Other programs"),
        "host memory_used_bytes": say("Host memory"),
        "host load": say("Load average"),
    }


def _chart(
    title: str, unit: str, drawn: Sequence[line_chart.Line], machine: MachineTelemetry, say: Say, columns: int
) -> Markup:
    values = [value for line in drawn for _, value in line.points]
    last = max(point[0] for line in drawn for point in line.points)
    mean, low, high = (number(value) for value in (sum(values) / len(values), min(values), max(values)))
    said = say("Mean {mean}, from {low} to {high} {unit}").format(mean=mean, low=low, high=high, unit=unit).rstrip()
    bands = []
    if len(machine.training_s) == 2:
        start, end = machine.training_s
        bands.append(line_chart.Band(name=say("training"), start=start, end=end))
    rows = []
    for line in drawn:
        of_line = [value for _, value in line.points]
        ends = (sum(of_line) / len(of_line), min(of_line), max(of_line))
        rows.append([line.name or title, *(number(value) for value in ends)])
    return line_chart.draw(
        line_chart.Chart(
            title=title,
            said=said,
            x=axis.exact(0.0, last, count=4),
            y=axis.linear([*values, *((0.0, 100.0) if unit == "%" else ())], zero=unit != "°C", count=4),
            x_name=say("seconds"),
            y_name=unit,
            y_unit=unit,
            lines=drawn,
            bands=bands,
            data=line_chart.Data(heads=["", say("mean"), say("lowest"), say("highest")], rows=rows),
            note=said,
            size=_SIZE,
            columns=max(40, min(columns, 120) // len(drawn)),
        ),
        say,
    )


def _points(series: Series | None, size: float) -> list[Point]:
    if not series:
        return []
    return [(at_s, value / size) for at_s, value in zip(series.at_s, series.values, strict=False)]


def _unavailable(machine: MachineTelemetry, say: Say) -> Markup | None:
    missing: dict[str, list[str]] = {}
    words = _words(say) | {
        "energy_j": say("Energy"),
        "memory_total_bytes": say("Memory capacity"),
        "throttled": say("Throttling"),
        "ecc_errors": say("Memory errors"),
    }
    for name, reason in machine.unavailable.items():
        missing.setdefault(reason, []).append(words.get(name, name))
    if not missing:
        return None
    return el(
        "p",
        el("b", say("Unavailable")),
        [[" ", ", ".join(names), ": ", el("span", reason), "."] for reason, names in missing.items()],
        class_="note unavailable",
    )
