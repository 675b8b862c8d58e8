"""What is shown after a sweep: how well the training scales, and what that says of sizes that were not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark import features
from trainmark.cli.terminal import console, look, say
from trainmark.record.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record


def show(records: Sequence[Record]) -> None:
    """What each feature makes of runs of several topologies, or why it makes nothing of them."""
    screen = console()
    for feature in features.offers("after_sweep"):
        try:
            screen.file.write("\n" + feature.render(records, **look(screen)))
        except UsageError as error:
            say(f"no {feature.NAME}: {error}")
