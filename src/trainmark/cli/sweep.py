"""What is shown after a sweep: how well the training scales, and what that says of sizes that were not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.cli.terminal import console, look, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record


def show(records: Sequence[Record]) -> None:
    """How well the topologies scale, and what that says of larger ones; or why it says nothing."""
    from trainmark.analysis.scaling import scaling
    from trainmark.features.forecast import table as forecast_table
    from trainmark.features.forecast.forecast import Assumptions, forecast_next_sizes
    from trainmark.features.scaling import table as scaling_table
    from trainmark.record import site
    from trainmark.record.errors import UsageError

    screen = console()
    try:
        screen.file.write("\n" + scaling_table.render([scaling(records)], **look(screen)))
    except UsageError as error:
        say(f"no scaling: {error}")
        return
    try:
        found = forecast_next_sizes(records, Assumptions(price=site.load().price))
        screen.file.write("\n" + forecast_table.render([found], **look(screen)))
    except UsageError as error:
        say(f"no forecast: {error}")
