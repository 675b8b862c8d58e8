"""Charts forecasts of the next sizes on the page of runs."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.analysis.scaling import find_scalings
from trainmark.record.language import Say
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.view.element import Markup, el

ORDER = 3


def draw(records: Sequence[Record], rows: Sequence[PublishedRow], say: Say) -> Markup | None:
    """One chart per group of runs that differ in topology alone, if they allow a forecast."""
    if not (found := find_scalings(records)):
        return None
    from trainmark.features.forecast.page import draw_next_sizes  # a run of one size needs no forecast

    by_id = {record.run_id: record for record in records}
    groups = ([by_id[run_id] for point in group.points for run_id in point.runs] for group in found)
    charts = [chart for group in groups if (chart := draw_next_sizes(group, say))]
    return el("section", el("div", charts, class_="charts"), class_="growth") if charts else None
