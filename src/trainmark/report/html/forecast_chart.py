"""The chart of a forecast: the sizes that were measured, the range of those that were not, and the ideal line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainmark.analysis.forecast import rates
from trainmark.analysis.forecast.further import beyond
from trainmark.analysis.forecast.rates import RateForecast
from trainmark.analysis.forecast.whole import WholeForecast
from trainmark.report.html import axis, line_chart
from trainmark.report.html.element import Child, Markup, el
from trainmark.spec.errors import UsageError
from trainmark.spec.format import NOTHING, number
from trainmark.spec.intervals import Bounds, around
from trainmark.spec.language import Say
from trainmark.spec.record import Record
from trainmark.spec.retold import retold
from trainmark.workloads import title

_WIDE = (1000, 300)


def draw_next_sizes(records: Sequence[Record], say: Say) -> Markup | None:
    """What runs of several sizes say of the next ones; nothing where they carry no forecast."""
    try:
        return draw(beyond(records), say)
    except UsageError:
        return None


def draw(found: WholeForecast, say: Say, *, wide: bool = False) -> Markup | None:
    """What one device does as more are added, so that the ideal is level; nothing where nothing could be forecast."""
    expected = sorted(
        ((rate, rate.interval) for rate, _ in found.sizes if rate.interval and rate.kind != rates.MEASURED),
        key=lambda pair: pair[0].topology.devices,
    )
    if not expected:
        return None
    known = found.known
    measured = [(float(size.topology.devices), size.rate / size.topology.devices) for size in known.sizes]
    spread = [around(rate, 2 * size.error) for (_, rate), size in zip(measured, known.sizes, strict=True)]
    area = [_start(measured, expected), *(_ends(rate, interval) for rate, interval in expected)]
    devices = [int(count) for count, _ in measured] + [rate.topology.devices for rate, _ in expected]
    ideal = [(float(count), measured[0][1]) for count in (min(devices), max(devices))]
    last, interval = expected[-1]
    said = say("{topology}: {rate} {unit} forecast, nine of ten outcomes between {low} and {high}.").format(
        topology=last.topology,
        rate=NOTHING if last.rate is None else number(last.rate),
        unit=known.unit,
        low=number(interval[0]),
        high=number(interval[1]),
    )
    notes: list[Child] = [said, " ", el("span", retold(found.basis, say))]
    return line_chart.draw(
        line_chart.Chart(
            title=say("Forecast: {subject}").format(subject=title(known.subject[0])),
            said=said,
            x=replace(axis.doubling(devices), high=max(devices) * 1.7),  # the last point's label stands behind it
            y=axis.linear([value for _, *ends in area for value in ends] + [end for pair in spread for end in pair]),
            x_name=say("devices"),
            y_name=say("{metric} of one device, {unit}").format(metric=known.metric, unit=known.unit),
            y_unit=known.unit,
            areas=[line_chart.Area(name=say("90 % range"), ends=area, color=1)],
            lines=[
                line_chart.Line(name=say("ideal"), points=ideal, color=5),
                *_middle(measured, expected, say),
                line_chart.Line(name=say("measured"), points=measured, dots=True, spread=spread),
            ],
            data=line_chart.Data(
                heads=[
                    say("topology"),
                    say("devices"),
                    known.metric,
                    say("90 % range"),
                    say("efficiency"),
                    say("kind"),
                ],
                rows=[_row(rate, say) for rate, _ in found.sizes],
            ),
            note=notes,
            whole_x=True,
            size=_WIDE if wide else line_chart.SIZE,
        ),
        say,
    )


def _ends(rate: RateForecast, interval: Bounds) -> tuple[float, float, float]:
    devices = rate.topology.devices
    return float(devices), interval[0] / devices, interval[1] / devices


def _start(
    measured: Sequence[tuple[float, float]], expected: Sequence[tuple[RateForecast, Bounds]]
) -> tuple[float, float, float]:
    """The range opens at the largest size that was measured below it."""
    first = expected[0][0].topology.devices
    count, value = max((point for point in measured if point[0] <= first), default=measured[0])
    return count, value, value


def _middle(
    measured: Sequence[tuple[float, float]], expected: Sequence[tuple[RateForecast, Bounds]], say: Say
) -> list[line_chart.Line]:
    """The forecasts themselves, with what they keep of the ideal; none where only a range is known."""
    told = [
        (float(rate.topology.devices), rate.rate / rate.topology.devices, rate.efficiency)
        for rate, _ in expected
        if rate.rate is not None
    ]
    if not told:
        return []
    count, value, _ = _start(measured, expected)
    shares = ["" if kept is None else f"{100 * kept:.0f} %" for *_, kept in told]
    points = [(count, value), *((devices, middle) for devices, middle, _ in told)]
    return [line_chart.Line(name=say("forecast"), points=points, color=1, labels=["", *shares])]


def kind_word(kind: str, say: Say) -> str:
    words = {
        rates.MEASURED: say("measured"),
        rates.FORECAST: say("forecast"),
        rates.ROUGH: say("order of magnitude"),
        rates.RANGE: say("usual range"),
        rates.REFUSED: say("refused"),
    }
    return words.get(kind, kind)


def shown_range(interval: Bounds | None) -> str:
    return NOTHING if interval is None else f"{number(interval[0])} – {number(interval[1])}"


def _row(rate: RateForecast, say: Say) -> list[str]:
    return [
        str(rate.topology),
        str(rate.topology.devices),
        NOTHING if rate.rate is None else number(rate.rate),
        shown_range(rate.interval),
        NOTHING if rate.efficiency is None else f"{100 * rate.efficiency:.1f} %",
        kind_word(rate.kind, say),
    ]
