"""What a run did beside the forecast that earlier runs of other sizes allow."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.features.forecast.outcome import ForecastOutcome, outcomes
from trainmark.record.format import NOTHING, number
from trainmark.record.language import Say
from trainmark.record.record import Record
from trainmark.record.store import Store
from trainmark.view.sections import FactSection


def sections(records: Sequence[Record], store: Store, say: Say) -> dict[str, FactSection]:
    """By run id; of runs that no earlier ones say anything of, none."""
    return {run_id: _section(found, say) for run_id, found in outcomes(records, store).items()}


def _section(found: ForecastOutcome, say: Say) -> FactSection:
    """What the run did beside what earlier runs of other sizes would have said of it."""
    places = {
        "inside the range": say("inside the range"),
        "below the range": say("below the range"),
        "above the range": say("above the range"),
    }
    low, high = (number(end) for end in found.interval)
    middle = NOTHING if found.forecast.rate is None else number(found.forecast.rate)
    off = "" if found.off is None else f"{100 * found.off:+.1f} %"
    return FactSection(
        title=say("Forecast and outcome"),
        remark=say("as runs of {sizes} before it would have told").format(
            sizes=", ".join(str(size) for size in found.known)
        ),
        heads=(found.metric, say("outcome"), say("forecast"), say("90 % range"), say("from its middle"), say("place")),
        rows=[(found.unit, number(found.did), middle, f"{low} – {high}", off, places[found.place])],
        left=frozenset({0, 5}),
    )
