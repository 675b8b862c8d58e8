"""Reads the runs of a results table, cell by cell, by the kind of each column and the names inside the cell."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainmark.analysis.device_names import fold_key, tidy
from trainmark.features.published.cells import (
    LONGEST,
    VOCABULARY,
    Figure,
    is_blank,
    is_half,
    is_unit,
    normalize_precision,
    parse_batch,
    parse_each,
    parse_figure,
    parse_figures,
    parse_item,
    parse_measured,
    parse_memory_gib,
    parse_place,
    parse_seconds,
)
from trainmark.features.published.heads import MEASURES, QUANTITIES, SPREAD, WORDS, Head, is_quality, parse_head
from trainmark.features.published.markdown import MarkdownRow, Table
from trainmark.features.published.section import BOTH, Section, TableRun, quote
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.plan import Topology
from trainmark.record.precision import PRECISIONS

WHOLE_MARKS = {"convergence", "power", "scalability", "stability"}
"""A table with a configuration and one of these describes one run in free text: `SDK V2.2,bs:128,8x,AMP`."""
IDENTITY = {"configuration", "device", "config_file", "num_devices", "model"}
"""One of these identifies the run of a row."""
ALIKE = 1e-3
"""Figures of two tables that differ by a larger share are not of one run."""
UNREAD = {
    "e2e_time": "a time",
    "mem": "memory as used/total",
    "convergence": "a value to reach",
    "num_devices": "a number of devices",
}

_YES, _NO = VOCABULARY["cells"]["yes"], VOCABULARY["cells"]["no"]
_IN_SECONDS = {fold_key(word) for word in VOCABULARY["cells"]["in_seconds"]}
_RATES = {fold_key(word) for word in (*WORDS["fps"], *WORDS["performance"])}
_BETTER = {">": "higher", "≥": "higher", ">=": "higher", "<": "lower", "≤": "lower", "<=": "lower"}
_CONFIG_FILE = re.compile(r"config_([A-Za-z0-9-]{1,30}?)x([0-9]{1,4}x[0-9]{1,4})(?:\.py)?")
_CRITERION = re.compile(r"([^:=<>≥≤0-9][^:=<>≥≤]{0,60}?)\s?(:|=|>=|≥|>|<=|≤|<|\s)\s?([0-9.][^:=<>≥≤\s]{0,20}\s?%?)")
_WRAPPED = re.compile(r"(?:score|accuracy|得分|评分) ?\(([^()]{1,40})\)", re.IGNORECASE)
_EACH = re.compile(r"per|单卡|local|each", re.IGNORECASE)
_PRECISION_SETTING = re.compile(r"(?:数据精度|precision|dtype)\s?[:=]\s?([A-Za-z0-9-]{2,9})", re.IGNORECASE)
_SOFTWARE = re.compile(r"sdk|driver|v?[0-9]+\.[0-9]", re.IGNORECASE)
_PIECE = re.compile(r"[:=]|[,;]|[^\s:=,;]+")
_ENDS, _GIVES = (",", ";"), (":", "=")


def is_results(columns: Sequence[Head], rows: Sequence[MarkdownRow], *, under_results: bool) -> bool:
    """Whether a table holds results; without a known column its heading must say so."""
    kinds = {head.kind for head in columns}
    if kinds & (IDENTITY - {"model"}) and kinds & MEASURES:
        return True
    if not under_results or not (kinds & IDENTITY or any(head.place for head in columns)):
        return False
    cells = [cell for line in rows for head, cell in zip(columns, line.cells, strict=False) if _may_hold(head)]
    return any(parse_figure(cell) or parse_pairs(cell) for cell in cells)


def _may_hold(head: Head) -> bool:
    return head.kind in (*MEASURES, "setting", "target", None)


@dataclass(kw_only=True)
class TableReader:
    """Reads one table into the runs of its section."""

    section: Section
    table: Table
    columns: list[Head]
    whole: bool = field(init=False)
    """Whether a configuration describes its run in free text."""
    configured: bool = field(init=False)
    """Whether its rows have a configuration of nodes and devices."""

    def __post_init__(self) -> None:
        kinds = {head.kind for head in self.columns}
        self.whole = "configuration" in kinds and bool(kinds & WHOLE_MARKS)
        self.configured = "configuration" in kinds and not self.whole
        for index, head in enumerate(self.columns):
            cells = [row.cells[index] for row in self.table.rows if index < len(row.cells)]
            # FP16 holds yes or no, or results; Precision a type, or a percentage
            if head.kind == "fp16" and not all(is_blank(cell) or fold_key(cell) in (*_YES, *_NO) for cell in cells):
                self.columns[index] = replace(head, kind="precision_results")
            elif head.kind == "precision" and any(parse_figure(cell) for cell in cells):
                self.columns[index] = replace(head, kind="quality", name=head.word)

    def read(self) -> list[TableRun]:
        """Every run of the table; how the page names its columns is noted on the section."""
        for head in self.columns if self.configured else ():
            self.section.note(self.table, head)
        found, label = [], ""
        for row in self.table.rows:
            if name := self._find_label(row):
                label = name
            else:
                found += self._read_line(row, label)
        self._list_unread(found)
        return found

    def _list_unread(self, found: Sequence[TableRun]) -> None:
        unknown = list(dict.fromkeys(head.word for head in self.columns if head.kind is None and head.word))
        if unknown and found:
            names = ", ".join(quote(word, 30) for word in unknown[:20]) + (" ..." if len(unknown) > 20 else "")
            known = "column {} is not known and kept as it stands"
            if len(unknown) > 1:
                known = "columns {} are not known and kept as they stand"
            self.section.add_unread(self.table.heads.number, known.format(names))
        for row in self.table.rows:
            if any(not is_blank(cell) for cell in row.cells[len(self.columns) :]):
                self.section.add_unread(row.number, f"it has {len(row.cells)} cells for {len(self.columns)} columns")

    def _find_label(self, row: MarkdownRow) -> str:
        """`GPT3-13B | ---- | ----`: the model that the lines below are of."""
        first, *rest = (*row.cells, "")
        alone = not is_blank(first) and all(is_blank(cell) for cell in rest) and any(rest)
        leads = self.columns[0].kind in ("configuration", "device", "model")
        return tidy(first) if alone and leads and parse_place(first).topology is None else ""

    def _read_line(self, row: MarkdownRow, label: str) -> list[TableRun]:
        cells = list(zip(self.columns, row.cells, strict=False))
        filled = [(head, text) for head, text in cells if not is_blank(text)]
        base = TableRun(line=row.number, model=label)
        rates = (head for head in self.columns if QUANTITIES.get(head.kind or "") == "throughput")
        base.item = next((item for head in rates if (item := parse_item(head.unit))), None)
        named = ((*head.parts, head.name or "")[0] for head in self.columns if head.kind == "quality")
        base.judged_by = next(filter(None, named), "")
        if any(self._is_misplaced(head, text) for head, text in filled):
            shown = " | ".join(tidy(text) for _, text in filled)
            self.section.add_unread(row.number, f"its cells do not stand under their heads: {quote(shown, 120)}")
            return []
        for head, text in cells:
            if head.kind == "fix_hp" and tidy(text):
                base.fix_hp = "/" if is_blank(text) else tidy(text)
        for head, text in filled:
            self._identify(base, head, text)
        spread = [(head, text) for head, text in filled if head.kind in SPREAD]
        runs = [copy.deepcopy(base) for _ in spread] if len(spread) > 1 else [base]
        for run, (head, text) in zip(runs, spread, strict=False):
            if head.kind == "precision_results":
                run.precision = normalize_precision(head.word)
            else:
                run.topology = Topology(nodes=1, devices_per_node=head.count or 1)
            self._read_cell(run, head, text)
        for head, text in sorted(filled, key=lambda cell: cell[0].kind != "convergence"):  # which names the quality
            if _may_hold(head) and head.kind not in SPREAD:
                self._read_cell(base, head, text)
        if len(runs) > 1 and base.has_measures:
            runs.append(base)
        configured = next((text for head, text in filled if head.kind == "configuration"), None)
        if configured is not None and base.topology is None and not self.whole:
            shown = quote(configured)
            self.section.add_unread(row.number, f"its configuration {shown} gives no nodes and devices, such as (1x8)")
        return [run for run in runs if run.topology is not None or run.has_measures]

    def _is_misplaced(self, head: Head, text: str) -> bool:
        """A device where figures belong: the row has a cell too few or too many."""
        where = parse_place(text)
        named = head.kind in (*MEASURES, None) and where.topology is not None and bool(where.device)
        return named and self.section.knows_device(where.device)

    def _identify(self, run: TableRun, head: Head, text: str) -> None:
        count = parse_figure(text)
        counted = int(count.value) if count and not count.unit and count.value in range(1, 10**5) else None
        if head.kind == "configuration" and self.whole:
            _configure(run, text)
        elif head.kind in ("configuration", "device"):
            where = parse_place(text)
            if counted:  # a column Cards may count them
                where = replace(where, device="", topology=Topology(nodes=1, devices_per_node=counted))
            run.device, run.topology, run.memory_total = where.device, where.topology or run.topology, where.memory_gib
            run.remarks += [where.remark] if where.remark else []
            if where.worded is not None:  # text and bracket give different numbers of devices
                both = f"{where.worded}, {where.topology}"
                self.section.add_statement(self.table, run.line, "configuration", tidy(text), both)
        elif head.kind == "config_file":
            match = _CONFIG_FILE.fullmatch(tidy(text))
            if match and not run.device:
                run.device, run.topology = match[1], run.topology or Topology.parse(match[2])
            run.add_detail(head.word, text)
        elif head.kind == "model":
            run.model = tidy(text)
        elif head.kind == "vendor":
            run.vendor = tidy(text)
        elif head.kind == "fp16":
            run.half = fold_key(text) in _YES
        elif head.kind == "precision":
            run.precision = normalize_precision(text)
        elif head.kind == "fix_hp":
            run.batch, _ = parse_batch(text) or (None, False)
            if match := _PRECISION_SETTING.search(tidy(text)):
                run.precision = run.precision or normalize_precision(match[1])
        elif head.kind == "software":
            run.add_detail(head.word, text)
        elif head.kind == "num_devices" and counted and run.topology is None:
            run.topology = Topology(nodes=1, devices_per_node=counted)
        elif head.kind == "num_devices" and not counted:
            self._keep_unread(run, head, text)
        elif head.kind == "num_devices" and run.topology and run.topology.devices != counted:
            run.add_detail(head.word, text, count)
        if head.place:
            where = parse_place(head.place)
            run.device, run.topology = run.device or where.device, run.topology or where.topology

    def _read_cell(self, run: TableRun, head: Head, text: str) -> None:
        """Reads the measures of a cell: one of its column's kind, several by the header's names, or by their own."""
        if head.kind == "num_devices":
            return
        if head.parts and (several := parse_figures(text, len(head.parts), head.separator)):
            for name, one in zip(head.parts, several, strict=True):
                self._add_part(run, head, name, one)
            return
        if self._read_measure(run, head, text):
            return
        named = head.kind not in ("convergence", "target", "setting") and (head.kind or re.search("[:=：]", text))
        pairs = parse_pairs(text) if named else None
        if pairs is None:
            self._keep_unread(run, head, text)
        for name, shown in pairs or ():
            inner = parse_head(name)
            kind = inner.kind if inner.kind in MEASURES and inner.kind not in SPREAD else None
            kind = kind or ("quality" if head.kind == "quality" else "figure")
            inner = Head(kind=kind, word=name, name=name, unit=head.unit if kind == "quality" else inner.unit)
            if not self._read_measure(run, inner, shown):
                run.add_detail(name, shown, parse_figure(shown))

    def _add_part(self, run: TableRun, head: Head, name: str, one: Figure) -> None:
        if head.kind == "target":
            run.targets[name] = one.value
        elif head.kind == "quality" or is_quality(name):
            run.add_quality(name, one, f"{one.value:g}", unit=head.unit)
        else:
            run.add_detail(name, f"{one.value:g}{one.unit}", one)

    def _keep_unread(self, run: TableRun, head: Head, text: str) -> None:
        """Keeps the text, and reports it as unread where its column is known."""
        if head.kind not in (None, "setting"):
            what = UNREAD.get(head.kind, "a number")
            self.section.add_unread(run.line, f"{head.word} {quote(text)} is not {what}")
        run.add_detail(head.word, text)

    def _read_measure(self, run: TableRun, head: Head, text: str) -> bool:
        """Adds the cell to the run if it is one figure of its column's kind; returns whether it is."""
        kind = head.kind or ""
        unit = head.unit or self.section.units.get(kind) or ""
        found = parse_measured(text)
        if kind == "e2e_time":
            time, found = parse_seconds(text, unit), parse_figure(text)
            if time is None or run.e2e_time_s is not None:
                return False
            if found and not found.unit and not unit and fold_key(head.word) not in _IN_SECONDS:
                run.add_detail(head.word, text, found)
                return True
            run.e2e_time_s, found = time, found or Figure(value=time, unit="s")
        elif kind == "mem":
            memory, found = parse_memory_gib(text, unit), parse_each(text.split("/")[0])
            if memory is None:
                return False
            run.memory = memory
        elif kind in ("power", "scalability", "stability"):
            if (found := parse_each(text)) is None:
                return False
            run.add_detail(head.word, text, replace(found, unit=found.unit or head.unit or ""))
        elif kind == "convergence":
            return self._read_criterion(run, head, text)
        elif found is None or (found.unit and not is_unit(found.unit)):
            return kind == "quality" and self._read_result_and_target(run, head, text)
        elif not self._add_figure(run, head, found, text, unit):
            return False
        if found is not None and (found.unit or not self.configured):  # else the row itself holds it
            self.section.note(self.table, head, line=run.line, figure=found)
        return True

    def _add_figure(self, run: TableRun, head: Head, found: Figure, text: str, unit: str) -> bool:
        kind = head.kind or ""
        if kind in THROUGHPUTS:
            if found.remark or kind in run.throughputs:
                return False
            run.throughputs[kind], run.item = found.value, run.item or parse_item(found.unit or unit)
        elif kind in ("fps", "performance") or (kind in SPREAD and parse_item(found.unit)):
            # a rate of items is a throughput; anything else, and a second one, is kept as a detail
            item, alias = parse_item(found.unit or head.unit), head.alias or "p_train"
            if item is not None and alias not in run.throughputs and not found.remark:
                run.throughputs[alias], run.item = found.value, item
            else:
                run.add_detail(head.word, text, replace(found, unit=found.unit or head.unit or ""))
        elif kind == "quality":
            self._add_quality(run, head, found, text)
        elif kind == "target":
            run.target = found.value, None
        elif kind == "batch":
            if found.unit or found.value != int(found.value):
                return False
            run.fix_hp = run.fix_hp or f"bs={found.value:g}"
            run.batch = int(found.value) if _EACH.search(head.word) else run.batch
        else:
            run.add_detail(head.word, text, replace(found, unit=found.unit or (unit if kind == "steady" else "")))
        return True

    def _add_quality(self, run: TableRun, head: Head, found: Figure, text: str) -> None:
        name = head.name or run.criterion or self.section.quality_word or head.word
        sure = head.bracketed or bool(self.section.model) or bool(run.criterion)
        run.add_quality(name, found, text, unit=head.unit, sure=sure)
        run.remarks += [f"{name} {tidy(text)}"] if found.remark else []

    def _read_result_and_target(self, run: TableRun, head: Head, text: str) -> bool:
        """`0.657/0.655`, where the page says that a cell holds result and target."""
        both = parse_figures(text, 2, "/")
        if both is None or not (self.section.gives_target or BOTH.search(head.word)):
            return False
        if not self.configured:
            self.section.note(self.table, head, line=run.line, figure=both[0])
        self._add_quality(run, head, both[0], text.split("/")[0])
        run.target = both[1].value, None
        return True

    def _read_criterion(self, run: TableRun, head: Head, text: str) -> bool:
        """Name, value and direction of `score(MOS):4.460`, `acc ≥ 75.5%`, `top1 75.9%`; a bare value has no name."""
        match = _CRITERION.fullmatch(tidy(text))
        found = parse_figure(match[3]) if match else parse_figure(text)
        if found is None:
            return False
        self.section.note(self.table, head, line=run.line)
        if match:
            wrapped = _WRAPPED.fullmatch(match[1].strip())
            run.criterion = wrapped[1] if wrapped else match[1].strip()
        run.target = found.value, _BETTER.get(match[2]) if match else None
        return True


def _configure(run: TableRun, text: str) -> None:
    """`SDK V2.2,bs:128,8x,AMP`: what follows the number of devices is the precision, wherever the batch stands."""
    words = [word.strip() for word in re.split("[,;]", tidy(text))]
    rest: list[str] = []
    for word in words:
        found, where = parse_batch(word), parse_place(word)
        if found and run.fix_hp is None:
            run.fix_hp, run.batch = f"bs={found[0]}", found[0] if found[1] else None
        elif run.topology is None and where.topology is not None and not where.device:
            run.topology, rest = where.topology, []
        else:
            rest.append(word)
    known = (*PRECISIONS, "amp")
    if run.topology is not None and rest and words[-1] == rest[-1]:
        run.precision = normalize_precision(", ".join(rest))
    if run.precision not in known:
        run.precision = next((word.lower() for word in words if word.lower() in known), run.precision)
    if software := [word for word in words if _SOFTWARE.match(word)]:
        run.add_detail("SDK", ", ".join(software))


def parse_pairs(text: str) -> list[tuple[str, str]] | None:
    """Names and values of `Acc@1=76.02,FPS=330,Time=4d3h`; None where any part is not clearly a name and its value."""
    plain = re.sub(r" ?@ ?", "@", re.sub(r" ?/ ?", "/", tidy(text)))
    if len(plain) > LONGEST or plain[:1].isdigit():
        return None
    pieces: list[str] = _PIECE.findall(plain)
    found: list[tuple[str, str]] = []
    words: list[str] = []
    index = 0
    while index < len(pieces):
        piece, after = pieces[index], pieces[index + 1] if index + 1 < len(pieces) else ""
        index += 1
        if piece in _ENDS:
            if words:
                return None
        elif piece in _GIVES:
            if not words or not _is_value(after):
                return None
        elif words and after in _GIVES and pieces[index - 2] == ":" and _is_value(piece):
            words[-1] += f":{piece}"  # `mAP@0.5:0.95: 36.1`
        elif words and after not in _GIVES and _is_value(piece):
            unit = after if is_unit(after) and parse_figure(piece) and not parse_head(after).kind else ""
            index += bool(unit)
            found.append((" ".join(words).strip("'\"`"), f"{piece} {unit}".strip()))
            words = []
        else:
            words.append(piece)
    return found if found and not words else None


def _is_value(piece: str) -> bool:
    found = parse_figure(piece)
    return (found is not None and (not found.unit or is_unit(found.unit))) or parse_seconds(piece) is not None


# Tables of one section


def combine_tables(speeds: Sequence[TableRun], wholes: Sequence[TableRun]) -> list[TableRun]:
    """Every run once: rows of two tables are merged where both are specific and agree."""
    left, found = list(speeds), []
    named = {run.device for run in speeds}
    for whole in wholes:
        if alike := [speed for speed in left if _is_same_run(speed, whole)]:
            left.remove(alike[0])
            whole = _join(whole, alike[0])
        elif len(named) == 1:
            whole.device = whole.device or next(iter(named))
        found.append(whole)
    return sorted((*found, *left), key=lambda run: run.line)


def _is_same_run(speed: TableRun, whole: TableRun) -> bool:
    if speed.topology is None or speed.topology != whole.topology or speed.half is None or not whole.precision:
        return False
    if speed.half != is_half(whole.precision):
        return False
    pairs = [(one.value, other.value) for one, _ in speed.qualities for other, _ in whole.qualities]
    pairs.append((_find_rate(speed), _find_rate(whole)))
    return all(
        one is None or other is None or abs(one - other) <= ALIKE * max(abs(one), abs(other)) for one, other in pairs
    )


def _find_rate(run: TableRun) -> float | None:
    """The table's speed, where it does not name the throughput."""
    return next((entry.value for entry in run.details if fold_key(entry.name) in _RATES and entry.value), None)


def _join(whole: TableRun, speed: TableRun) -> TableRun:
    has_quality = any(quality.value is not None for quality, _ in whole.qualities)
    return replace(
        whole,
        device=whole.device or speed.device,
        throughputs={**speed.throughputs, **whole.throughputs},
        item=whole.item or speed.item,
        qualities=[*whole.qualities, *([] if has_quality else speed.qualities)],
        details=[*speed.details, *whole.details],
        remarks=[*speed.remarks, *whole.remarks],
    )
