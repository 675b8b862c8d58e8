"""Collects one section of a page: its model, devices, rows, and what could not be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainmark import workloads
from trainmark.analysis import device_names as names
from trainmark.analysis.device_names import DeviceName, fold_key, tidy
from trainmark.analysis.published_library import PageStatement
from trainmark.features.published.cells import (
    VOCABULARY,
    Figure,
    is_blank,
    is_precision,
    normalize_precision,
    parse_item,
)
from trainmark.features.published.heads import (
    QUALITIES,
    QUANTITIES,
    Head,
    find_direction,
    find_quality_name,
    parse_head,
)
from trainmark.features.published.markdown import MarkdownRow, Table
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.plan import Topology
from trainmark.record.published_row import SYNTHETIC, PublishedDetail, PublishedRow, Source

MAX_DEVICES = 50

_UNIT = re.compile(r"(?:单位[为是:]?|units?[:=]|\bin)\s*([A-Za-z%][A-Za-z /%]*)(?=[;,.()]|$)", re.IGNORECASE)
_COUNTED = re.compile(r"图片|images|样本|samples|序列|sequences")
_GOAL = re.compile(r"(>=|≥|>|<=|≤|<)\s*([0-9]+(?:\.[0-9]+)?)")
BOTH = re.compile(r"实际/目标|actual/target", re.IGNORECASE)
"""Says that cells hold result and target."""
SAYS_SYNTHETIC = re.compile(r"\bsynthetic(?: data\b|, not|: `)|合成数据", re.IGNORECASE)
_UNTITLED = Source(title="", address="", date=None)
"""Until the whole page has been read."""


@dataclass(kw_only=True)
class TableRun:
    """One run, filled from its cells."""

    line: int
    device: str = ""
    vendor: str = ""
    model: str = ""
    topology: Topology | None = None
    precision: str = ""
    half: bool | None = None
    """The FP16 column."""
    fix_hp: str | None = None
    batch: int | None = None
    e2e_time_s: float | None = None
    throughputs: dict[str, float] = field(default_factory=dict)
    item: str | None = None
    qualities: list[tuple[PublishedDetail, bool]] = field(default_factory=list)
    """As the page calls them, and whether a general word such as acc certainly names the model's target quality."""
    judged_by: str = ""
    """What the table calls its quality, whether or not the row gives one."""
    criterion: str = ""
    """Name of the quality beside the value to reach."""
    target: tuple[float | None, str | None] = (None, None)
    """The value to reach, and which direction is better where given."""
    targets: dict[str, float] = field(default_factory=dict)
    """The same by the quality's name, where there are several."""
    memory: tuple[float | None, float | None] = (None, None)
    memory_total: float | None = None
    """Of one device, as the configuration gives it."""
    details: list[PublishedDetail] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def has_measures(self) -> bool:
        values = (self.e2e_time_s, *self.throughputs.values(), *self.memory)
        return bool(self.qualities or self.details) or any(value is not None for value in values)

    def add_detail(self, name: str, text: str, found: Figure | None = None) -> None:
        value, unit = (found.value, found.unit or None) if found else (None, None)
        self.details.append(PublishedDetail(name=tidy(name), text=tidy(text), value=value, unit=unit))

    def add_quality(self, name: str, found: Figure, text: str, *, unit: str | None, sure: bool = False) -> None:
        quality = PublishedDetail(name=name, text=tidy(text), value=found.value, unit=found.unit or unit)
        self.qualities.append((quality, sure))


@dataclass(kw_only=True)
class Section:
    """Filled while the page is read from top to bottom."""

    page: str
    """Its path, which may name the model where nothing else does."""
    model: str | None = None
    """As the table of metrics names it, which overrides the rest of the page."""
    title: str | None = None
    heading: str | None = None
    latest: str = ""
    """The heading above, of whatever level."""
    devices: list[str] = field(default_factory=list)
    """Full names, as lists and tables of the environment give them."""
    abbreviations: list[str] = field(default_factory=list)
    """`nvidia A100`: vendor and the word the rows use."""
    vendors: dict[str, str] = field(default_factory=dict)
    """By device, where a table has a column for them."""
    units: dict[str, str] = field(default_factory=dict)
    """By kind of column, where the table of metrics gives them."""
    precision: str = ""
    """Of all its rows, where the table of metrics gives it."""
    framework: str | None = None
    data_set: str = ""
    synthetic: bool = False
    """Whether the page says that the data set is not the real one."""
    quality_word: str | None = None
    quality_means: str | None = None
    """The name records use for it, where a note gives it: top-1 accuracy."""
    gives_target: bool = False
    """Whether a note says that cells hold result and target."""
    target: tuple[float | None, str | None] = (None, None)
    speeds: list[TableRun] = field(default_factory=list)
    wholes: list[TableRun] = field(default_factory=list)
    """Runs of tables whose configuration describes them in free text."""
    results: int = 0
    """Tables of results so far."""
    rows: list[PublishedRow] = field(default_factory=list)
    said: list[PageStatement] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def workload(self) -> str:
        if self.model:
            return names.find_workload(self.model) or self.model
        for text in (self.title, self.heading):
            if text and (known := names.find_workload(text)):
                return known
        of_path = names.find_workload_in_path(self.page)
        return of_path or self.title or names.find_model_in_path(self.page) or names.UNKNOWN

    # What the page says

    def add_device(self, name: str) -> None:
        if name not in self.devices and len(self.devices) < MAX_DEVICES:
            self.devices.append(name)

    def note(self, table: Table, head: Head, *, line: int | None = None, figure: Figure | None = None) -> None:
        """Notes how the page names a quantity, and a figure of it."""
        if quantity := QUANTITIES.get(head.kind or ""):
            unit = (figure.unit if figure else "") or head.unit or self.units.get(head.kind or "") or None
            self.add_statement(
                table, line or table.heads.number, quantity, head.word, unit, figure.value if figure else None
            )

    def add_statement(
        self, table: Table, line: int, quantity: str, word: str, unit: str | None, value: float | None = None
    ) -> None:
        place = f"table {table.index}, line {line}"
        self.said.append(PageStatement(place=place, quantity=quantity, word=word, unit=unit, value=value))

    def add_unread(self, line: int, text: str) -> None:
        self.unread.append(f"line {line}: {text}")

    def learn_metric(self, table: Table, columns: Sequence[Head], line: MarkdownRow) -> None:
        """Reads one row of the table of metrics: name, column and unit."""
        cells = dict(zip([head.kind for head in columns], line.cells, strict=False))
        name, value = cells.get("metric", ""), tidy(cells.get("value", ""))
        note = unicodedata.normalize("NFKC", cells.get("note", ""))
        kind, word = parse_head(name).kind or "", tidy(value.split(",")[0])
        if is_blank(value) and kind != "quality":
            pass
        elif kind == "model":
            self.model = value
        elif kind == "device":
            self.abbreviations = [*self.abbreviations, value][:MAX_DEVICES]
        elif fold_key(name) in VOCABULARY["facts"]["data_set"]:
            self.data_set = value
            self.synthetic = bool(SAYS_SYNTHETIC.search(note))
        elif kind == "precision" and is_precision(value):
            self.precision = normalize_precision(value)
        elif kind == "quality" and self.quality_word is None:
            self.quality_word, self.quality_means = word or None, _find_meant_quality(note)
            self.gives_target = bool(BOTH.search(note))
            if match := _GOAL.search(note):
                self.target = float(match[2]), "higher" if match[1] in (">=", "≥", ">") else "lower"
        if kind in QUANTITIES:
            if unit := _find_unit(note):
                self.units[kind] = unit
                # all three count the same items, and pages name the unit only once
                self.units.update({alias: self.units.get(alias, unit) for alias in THROUGHPUTS if kind in THROUGHPUTS})
            self.note(table, Head(kind=kind, word=word or tidy(name)), line=line.number)

    # Which device a row means

    def find_device(self, word: str, memory_gib: float | None = None) -> DeviceName:
        """By its full name where the page gives one, with the vendor the page names.

        A row that gives its device's memory does not mean one of another size.
        """
        if not word and len({fold_key(name) for name in self.devices}) == 1:
            word = self.devices[0]
        full = self._find_full_name(word)
        size = re.search(r"([0-9]{1,4}) ?gi?b?\b", full, re.IGNORECASE)
        if memory_gib is not None and size and float(size[1]) != memory_gib:
            full = word
        ending = (f" {word}", f"_{word}")
        vendors = [text[: -len(word)].strip(" _") for text in self.abbreviations if word and text.endswith(ending)]
        if vendors:
            return DeviceName(vendor=names.find_vendor(min(vendors, key=len)), name=full)
        found = names.parse_device(full)
        vendor = self.vendors.get(word, self.vendors.get(full, found.vendor))
        return DeviceName(vendor=names.find_vendor(vendor), name=found.name) if word else found

    def _find_full_name(self, word: str) -> str:
        """The one name among the page's devices that the word is short for, without its vendor; else the word."""
        found: set[str] = set()
        begun: set[str] = set()
        for name in self.devices:
            known = names.parse_device(name).name
            if word in (name, known):
                return word
            tails = (known, re.split(r"[\s_]+", known, maxsplit=1)[-1])
            found.update(tail for tail in tails if fold_key(names.short_device(tail)) == fold_key(word))
            if word and known.casefold().startswith((f"{word.casefold()}-", f"{word.casefold()} ")):
                begun.add(known)
        found = found or begun
        return found.pop() if len(found) == 1 else word

    def knows_device(self, word: str) -> bool:
        """Whether the page names such a device, or its vendor is known."""
        own = {fold_key(names.short_device(names.parse_device(name).name)) for name in self.devices}
        return fold_key(names.short_device(word)) in own or bool(names.parse_device(word).vendor)

    def _describe_foreign(self, device: DeviceName) -> list[str]:
        """A remark where a row names another vendor's card than its page."""
        own = {names.parse_device(name).vendor: name for name in self.devices if names.parse_device(name).vendor}
        if not device.vendor or not own or device.vendor in own:
            return []
        return [f"the row names {device.name}, and the page's own device is {', '.join(own.values())}"]

    # Rows

    def add_row(self, run: TableRun) -> None:
        """One more row, completed by what the library knows."""
        device = self.find_device(run.device, run.memory_total)
        workload = (names.find_workload(run.model) or run.model) if run.model else self.workload
        first, others = self._pick_qualities(run, workload)
        known = names.find_quality(workload, first.name) if first else None
        goal, better = self._find_goal(run, first, known) if first else (None, None)
        remarks = (*run.remarks, *self._describe_foreign(device), *([SYNTHETIC] if self.synthetic else []))
        half = "" if run.half is None else "fp16" if run.half else "fp32"
        self.rows.append(
            PublishedRow(
                name="",
                source=_UNTITLED,
                vendor=names.find_vendor(run.vendor) or device.vendor or names.find_vendor_in_path(self.page),
                device=device.name or names.UNKNOWN,
                workload=workload,
                topology=str(run.topology) if run.topology else names.UNKNOWN,
                precision=run.precision or half or self.precision or names.UNKNOWN,
                fix_hp=run.fix_hp,
                batch_per_device=run.batch,
                item=self._find_item(run, workload),
                e2e_time_s=run.e2e_time_s,
                p_whole=run.throughputs.get("p_whole"),
                p_train=run.throughputs.get("p_train"),
                p_core=run.throughputs.get("p_core"),
                quality_name=first.name if first else None,
                quality_unit=(first.unit or (known.unit if known else None) or "-") if first else None,
                quality=first.value if first else None,
                target=goal,
                better=better,
                mem_used_gib=run.memory[0],
                mem_total_gib=run.memory[1] if run.memory[1] is not None else run.memory_total,
                remark=", ".join(remarks) or None,
                line=run.line,
                framework=self.framework,
                details=(*others, *run.details),
            )
        )

    def _find_item(self, run: TableRun, workload: str) -> str | None:
        """What its throughputs count; what a page calls samples may be what the workload's rate counts."""
        item = run.item or next((found for alias in THROUGHPUTS if (found := parse_item(self.units.get(alias)))), None)
        if item is None and not run.throughputs:
            return None
        return item if item not in (None, "samples") else names.find_item(workload) or item

    def _pick_qualities(self, run: TableRun, workload: str) -> tuple[PublishedDetail | None, list[PublishedDetail]]:
        """The row's target quality, and all other qualities."""
        found = [self._name_quality(quality, workload, sure=sure) for quality, sure in run.qualities]
        if not found:
            name = run.criterion or run.judged_by or self.quality_word
            return (self._name_quality(PublishedDetail(name=name, text=""), workload, sure=True) if name else None), []
        known = workloads.facts(workload)
        aims = [quality for quality in found if known and known.find_quality(quality.name)]
        scores = [quality for quality in found if find_direction(quality.name) != "lower"]
        first = (*aims, *scores, *found)[0]
        goals = [
            PublishedDetail(name=f"target of {name}", text=f"{goal:g}", value=goal)
            for name, goal in run.targets.items()
            if fold_key(name) != fold_key(first.name)
        ]
        return first, [*(quality for quality in found if quality is not first), *goals]

    def _name_quality(self, quality: PublishedDetail, workload: str, *, sure: bool) -> PublishedDetail:
        """By the name records use; an accuracy of 0.755 without a unit is a share, which others write as 75.5 %."""
        name = find_quality_name(quality.name, workload, sure=sure)
        if self.quality_means and self.quality_word and fold_key(quality.name) == fold_key(self.quality_word):
            name = self.quality_means
        value, unit = quality.value, quality.unit
        if unit is None and value is not None and _is_share(name):
            value, unit = round(100 * value, 10) if 0 < value <= 1 else value, "%"
        return replace(quality, name=name, value=value, unit=unit)

    def _find_goal(
        self, run: TableRun, first: PublishedDetail, known: names.PublishedQuality | None
    ) -> tuple[float | None, str | None]:
        goal, better = run.target if run.target[0] is not None else self.target
        goal = next((value for name, value in run.targets.items() if fold_key(name) == fold_key(first.name)), goal)
        if goal is not None and 0 < goal <= 1 and first.unit == "%" and _is_share(first.name):
            goal = round(100 * goal, 10)
        if goal is None and known and self.model:  # another page's training may have had another aim
            goal, better = known.target, known.better
        return goal, better or (known.better if known else None) or find_direction(first.name)


def _is_share(name: str) -> bool:
    """Whether values of a quality are percentages of samples, as records know it."""
    return any(quality.counted for quality in workloads.qualities() if quality.name == name)


def _find_meant_quality(note: str) -> str | None:
    """The name records use for the quality a note mentions: `top1`, `acc1`."""
    for name, words in QUALITIES.items():
        exact = [re.escape(word) for word in words if any(map(str.isdigit, word))]
        if exact and re.search(rf"(?<![a-z0-9])(?:{'|'.join(exact)})(?![a-z0-9])", note.casefold()):
            return name
    return None


def _find_unit(note: str) -> str | None:
    if match := _UNIT.search(note):
        return match[1].strip()
    counted = _COUNTED.search(note.casefold())
    return f"{parse_item(f'{counted[0]}/s')}/s" if counted else None


def quote(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else text[: most - 1] + "…")
