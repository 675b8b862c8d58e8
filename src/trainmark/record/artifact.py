"""A file a trained model left beside its record, to be looked at or listened to."""

from __future__ import annotations

from msgspec import Struct


class Artifact(Struct, frozen=True, kw_only=True):
    file: str
    """Relative to the run's folder."""
    caption: str
