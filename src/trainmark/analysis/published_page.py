"""A parsed published page: its rows, and its other statements, to check them against."""

from __future__ import annotations

from dataclasses import dataclass

from trainmark.record.published_row import PublishedRow


@dataclass(frozen=True, kw_only=True)
class PageStatement:
    """One statement of a page about a quantity, in its own words."""

    place: str
    """Where on the page: `table 2, line 41`."""
    quantity: str
    """What it is about: `quality`, `throughput`, `memory`, `power`, `scalability`, `stability`, `convergence`; of a
    `configuration` only what its words and its bracket say differently."""
    word: str
    """What the page calls it there: `val_loss`, `final_acc1`, `FPS`, `Performance`."""
    unit: str | None = None
    """As the page gives it; None where it gives none."""
    value: float | None = None
    """None where only the word stands there."""


@dataclass(frozen=True, kw_only=True)
class PublishedPage:
    """What a page holds, by our words."""

    title: str
    rows: tuple[PublishedRow, ...]
    said: tuple[PageStatement, ...] = ()
    unread: tuple[str, ...] = ()
    """What could not be read: a sentence each, with the line."""
    devices: tuple[str, ...] = ()
    """The page's own, as its lists of machines give them."""
    data_sets: tuple[str, ...] = ()
    """As the page calls them."""
    was_read: bool = False
    """False where only rows are known, and not the page around them."""


@dataclass(frozen=True, kw_only=True)
class FoundPage:
    name: str
    """As the user reaches it."""
    page: PublishedPage
    content: bytes
    """What tells it from other pages."""
