"""Collects what one section of a page says: about which model and devices, its rows, and what could not be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainmark.published import names
from trainmark.published.cells import Figure, is_blank, key, tidy
from trainmark.published.heads import QUANTITIES, Head, head, quality_name
from trainmark.published.markdown import MarkdownRow, Table
from trainmark.published.names import DeviceName
from trainmark.published.page import Said
from trainmark.spec.metrics import THROUGHPUTS
from trainmark.spec.published_row import PublishedRow, Source
from trainmark.spec.topology import Topology

MOST_DEVICES = 50

_UNIT = re.compile(r"(?:单位[为是:]?|units?[:=]|\bin)\s*([A-Za-z%][A-Za-z /%]*)(?=[;,.)]|$)", re.IGNORECASE)
_COUNTED = {"图片": "images/s", "images": "images/s", "样本": "samples/s", "samples": "samples/s"}
_UNTITLED = Source(title="", address="", date=None)
"""Until the whole page has been read."""
_GOAL = re.compile(r"(>=|≥|>|<=|≤|<)\s*([0-9][0-9.,e-]*)")


@dataclass(kw_only=True)
class Section:
    """Filled while the page is walked from top to bottom."""

    page: str
    """The file's name without its ending, which can tell the model where nothing else does."""
    model: str | None = None
    """What the table of metrics calls it: then it is this, whatever else the page speaks of."""
    title: str | None = None
    heading: str | None = None
    devices: list[str] = field(default_factory=list)
    """Full names, as lists and tables of the environment give them."""
    abbreviations: list[str] = field(default_factory=list)
    """`nvidia A100`: vendor and the word the rows use."""
    vendors: dict[str, str] = field(default_factory=dict)
    """By device, where a table has a column for them."""
    units: dict[str, str] = field(default_factory=dict)
    """By kind of column, where the table of metrics gives them."""
    quality_word: str | None = None
    target: float | None = None
    better: str | None = None
    rows: list[PublishedRow] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    results: int = 0
    """Tables of results so far."""

    @property
    def workload(self) -> str:
        if self.model:
            return names.workload(self.model) or self.model
        for text in (self.title, self.heading, self.page):
            if text and (known := names.workload(text)):
                return known
        return self.title or names.UNKNOWN

    def add_device(self, name: str) -> None:
        if name not in self.devices and len(self.devices) < MOST_DEVICES:
            self.devices.append(name)

    def device(self, word: str) -> DeviceName:
        """The device a row means: by its full name where the page gives one, with the vendor the page names."""
        if not word and len({key(name) for name in self.devices}) == 1:
            word = self.devices[0]
        vendors = [
            text[: -len(word)].strip(" _") for text in self.abbreviations if text.endswith((f" {word}", f"_{word}"))
        ]
        if word and vendors:
            return DeviceName(vendor=min(vendors, key=len), name=self._full(word))
        found = names.device(self._full(word))
        return DeviceName(vendor=self.vendors.get(word, found.vendor), name=found.name) if word else found

    def _full(self, word: str) -> str:
        """The one name among the page's devices that the word is short for, without its vendor; else the word."""
        found: set[str] = set()
        for name in self.devices:
            known = names.device(name).name
            if word in (name, known):
                return word
            tails = (known, re.split(r"[\s_]+", known, maxsplit=1)[-1])
            found.update(tail for tail in tails if key(names.short_device(tail)) == key(word))
        return found.pop() if len(found) == 1 else word

    def note(self, table: Table, head: Head, *, line: int | None = None, figure: Figure | None = None) -> None:
        """Remembers how the page speaks of a quantity."""
        quantity = QUANTITIES.get(head.kind or "")
        if quantity:
            unit = (figure.unit if figure else "") or head.unit or self.units.get(head.kind or "")
            self.said.append(
                Said(
                    place=f"table {table.index}, line {line or table.heads.number}",
                    quantity=quantity,
                    word=head.word,
                    unit=unit or None,
                    value=figure.value if figure else None,
                )
            )

    def complain(self, line: int, text: str) -> None:
        self.unread.append(f"line {line}: {text}")

    def learn(self, table: Table, columns: Sequence[Head], line: MarkdownRow) -> None:
        """One row of the table of metrics: what stands where, by which word, in which unit."""
        cells = dict(zip([head.kind for head in columns], line.cells, strict=False))
        name, value = cells.get("metric", ""), cells.get("value", "")
        note = unicodedata.normalize("NFKC", cells.get("note", ""))
        kind = _metric_kind(name)
        if kind == "model" and not is_blank(value):
            self.model = tidy(value)
        elif kind == "device" and not is_blank(value):
            self.abbreviations = [*self.abbreviations, tidy(value)][:MOST_DEVICES]
        elif kind == "quality":
            self.quality_word = tidy(re.split("[,，]", value)[0]) or None
            self._learn_target(note)
        if kind in QUANTITIES:
            word = tidy(re.split("[,，]", value)[0])
            if unit := _unit(note):
                self.units[kind] = unit
                # all three count the same items, and pages say which only once
                self.units.update({alias: self.units.get(alias, unit) for alias in THROUGHPUTS if kind in THROUGHPUTS})
            self.note(table, Head(kind=kind, word=word or tidy(name)), line=line.number)

    def _learn_target(self, note: str) -> None:
        if match := _GOAL.search(note):
            try:
                self.target = float(match[2].rstrip(".,"))
            except ValueError:
                return
            self.better = "higher" if match[1] in (">=", "≥", ">") else "lower"

    def row(
        self,
        *,
        device: DeviceName,
        topology: Topology,
        precision: str,
        fix_hp: str | None,
        batch_per_device: int | None,
        quality: tuple[str | None, str | None, float | None] = (None, None, None),
        target: tuple[float | None, str | None] = (None, None),
        throughputs: dict[str, float | None],
        item: str | None = None,
        e2e_time_s: float | None = None,
        memory: tuple[float | None, float | None] = (None, None),
        remark: str | None = None,
    ) -> None:
        """One more row, with what the library knows beside what the page says."""
        workload = self.workload
        name, unit, value = quality
        name = quality_name(name) if name else None
        known = names.quality(workload, name) if name else None
        goal, better = target if target[0] is not None else (self.target, self.better)
        if known and goal is None:
            goal, better = known.target, known.better
        self.rows.append(
            PublishedRow(
                name="",
                source=_UNTITLED,
                vendor=device.vendor,
                device=device.name or names.UNKNOWN,
                workload=workload,
                topology=str(topology),
                precision=precision or names.UNKNOWN,
                fix_hp=fix_hp,
                batch_per_device=batch_per_device,
                item=item if item not in (None, "samples") else names.item(workload) or item,
                e2e_time_s=e2e_time_s,
                p_whole=throughputs.get("p_whole"),
                p_train=throughputs.get("p_train"),
                p_core=throughputs.get("p_core"),
                quality_name=name,
                quality_unit=(unit or (known.unit if known else None) or "-") if name else None,
                quality=value,
                target=goal if name else None,
                better=(better or (known.better if known else None)) if name else None,
                mem_used_gib=memory[0],
                mem_total_gib=memory[1],
                remark=remark,
            )
        )


def item_of(unit: str | None) -> str | None:
    """`mel frames` of `mel frames/s`."""
    return unit.removesuffix("/s").strip() if unit and unit.endswith("/s") else None


def quoted(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else text[: most - 1] + "…")


def _metric_kind(name: str) -> str:
    return head(name).kind or ""


def _unit(note: str) -> str | None:
    if match := _UNIT.search(note):
        return match[1].strip()
    return next((unit for word, unit in _COUNTED.items() if word in note.casefold()), None)
