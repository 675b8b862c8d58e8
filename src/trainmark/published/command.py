"""The command that runs a plan again, as a page of results gives it to its readers."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.spec.plan import Plan

DATA = "DATA"
"""Stands for the reader's own folder of the data."""
_PLAIN = re.compile(r"[\w.,=+/-]{1,60}", re.ASCII)


def command(plan: Plan, *, repeat: int = 1) -> str:
    """In words of the reference recipe, so that whatever differs from it stands there."""
    return " ".join(shlex.quote(word) for word in _words(plan, repeat))


def _words(plan: Plan, repeat: int) -> Iterator[str]:
    yield from ("trainmark", "run", plan.workload, "--recipe", "reference")
    for deviation in plan.deviations:
        setting = f"{deviation.name}={_value(deviation.actual)}"
        if _PLAIN.fullmatch(setting):
            yield from ("--set", setting)
    yield from ("--topology", plan.topology, "--precision", plan.precision, "--platform", plan.platform_word)
    if not plan.data.synthetic:
        yield from ("--data", DATA)
    for name in ("steps", "seconds", "epochs", "items"):
        if (limit := getattr(plan.limits, name)) is not None:
            yield from (f"--{name}", f"{limit:g}" if isinstance(limit, float) else str(limit))
    if repeat > 1:
        yield from ("--repeat", str(repeat))


def _value(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
