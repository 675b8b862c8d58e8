"""The numbers a document may hold: finite, and small enough that what is computed of them stays so."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Finite = Annotated[float, Meta(ge=-1e100, le=1e100)]
"""NaN and infinity lie outside too."""
Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**62)]
