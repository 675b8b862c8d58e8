"""Parses durations such as `90s`, `1h30m`, `2d`, and points in time by a date or by how long ago."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from trainmark.record.errors import UsageError

UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
LONGEST_S = 366 * 24 * 3600.0


def parse_seconds(text: str, *, option: str) -> float:
    """Seconds of a duration; a bare number is seconds. UsageError names the option."""
    found = re.fullmatch(
        r"(?:([\d.]{1,12})d)?(?:([\d.]{1,12})h)?(?:([\d.]{1,12})m(?:in)?)?(?:([\d.]{1,12})s?)?", text.strip().lower()
    )
    try:
        parts = [float(part) if part else 0.0 for part in found.groups()] if found and text.strip() else []
    except ValueError:
        parts = []
    seconds = sum(part * unit_s for part, unit_s in zip(parts, UNITS_S.values(), strict=False))
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{option} {text[:40]!r} is not a duration; try '90s', '3m' or '1h'")
    return seconds


def parse_since(text: str, *, option: str, now: datetime) -> datetime:
    """The time of a date, or so long ago; without a zone it is UTC. UsageError names the option."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        try:
            return now - timedelta(seconds=parse_seconds(text, option=option))
        except UsageError:
            raise UsageError(
                f"{option} {text[:40]!r} is neither a date nor a duration; try '2d', '36h' or '2026-11-15'"
            ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def format_seconds(seconds: float) -> str:
    """`90 s`, `3 min`, `1.5 h`."""
    for unit, size_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size_s and seconds % (size_s / 2) == 0:
            return f"{seconds / size_s:g} {unit}"
    return f"{seconds:.3g} s"
