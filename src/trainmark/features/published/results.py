"""Reads the rows of a results table, cell by cell, by the kind of each column and the names inside the cell."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainmark.analysis.device_names import fold_key, tidy
from trainmark.features.published.cells import (
    LONGEST,
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
from trainmark.features.published.heads import MEASURES, Head, find_measure_kind, is_precision, is_quality
from trainmark.features.published.markdown import MarkdownRow, Table
from trainmark.features.published.section import PageQuality, Section, TableRun, quote
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.plan import Topology
from trainmark.record.precision import PRECISIONS

WHOLE_MARKS = {"convergence", "power", "scalability", "stability"}
"""A table with a configuration and one of these describes one run in free text: `SDK V2.2,bs:128,8x,AMP`."""
IDENTITY = {"configuration", "device", "config_file", "num_devices", "model"}
"""One of these identifies the run of a row."""
ALIKE = 1e-3
"""Figures of two tables that differ by a larger share are not of one run."""

_TRUTHS = {
    **dict.fromkeys(("true", "yes", "是", "1", "on"), True),
    **dict.fromkeys(("false", "no", "否", "0", "off"), False),
}
_SPREAD = ("precision_results", "count_results")
_CONFIG_FILE = re.compile(r"config_([A-Za-z0-9-]{1,30}?)x([0-9]{1,4})x([0-9]{1,4})(?:\.py)?")
_CRITERION = re.compile(r"([^:=<>≥≤0-9][^:=<>≥≤]{0,60}?)\s?(:|=|>=|≥|>|<=|≤|<|\s)\s?([0-9.][^:=<>≥≤\s]{0,20}\s?%?)")
_IN_SECONDS = {fold_key(word) for word in ("e2e_time", "e2e time", "端到端时间", "end-to-end time", "运行时长")}
"""Names of times that are in seconds, with or without a unit."""
_EACH = re.compile(r"per|单卡|local|each", re.IGNORECASE)
_PRECISION_SETTING = re.compile(r"(?:数据精度|precision|dtype)\s?[:=]\s?([A-Za-z0-9-]{2,9})", re.IGNORECASE)

_PIECE = re.compile(r"[:=]|[,;]|[^\s:=,;]+")
_ENDS, _GIVES = (",", ";"), (":", "=")


@dataclass(kw_only=True)
class _Line:
    """One line of a table while it is read."""

    section: Section
    table: Table
    number: int
    units: dict[str, str] = field(default_factory=dict)
    """Units given in its cells, by header."""

    def cannot_read(self, run: TableRun, head: Head, text: str, what: str) -> None:
        """Keeps the text, and reports it as unread."""
        self.section.add_unread(self.number, f"{head.word} {quote(text)} is not {what}")
        run.add_detail(head.word, text)


def is_results(columns: Sequence[Head], rows: Sequence[MarkdownRow], *, under_results: bool) -> bool:
    """Whether a table holds results; without a known column its heading must say so."""
    kinds = {head.kind for head in columns}
    tells_run = kinds & IDENTITY or any(head.place for head in columns)
    if kinds & (IDENTITY - {"model"}) and kinds & MEASURES:
        return True
    if not under_results or not tells_run:
        return False
    return any(
        parse_figure(cell) or parse_pairs(cell)
        for line in rows
        for head, cell in zip(columns, line.cells, strict=False)
        if _may_hold(head)
    )


def is_whole(columns: Sequence[Head]) -> bool:
    kinds = {head.kind for head in columns}
    return "configuration" in kinds and bool(kinds & WHOLE_MARKS)


def read_runs(section: Section, table: Table, columns: Sequence[Head]) -> list[TableRun]:
    """Reads every run of the table, and notes its column names on the section."""
    columns = _resolve_columns(table, columns)
    whole, found, label = is_whole(columns), [], ""
    given: dict[str, str] = {}
    for row in table.rows:
        if name := _find_label(columns, row):
            label = name
            continue
        line = _Line(section=section, table=table, number=row.number)
        runs = _read_line(line, columns, row, label=label, whole=whole)
        found += runs
        given.update(line.units)
    if "configuration" in {head.kind for head in columns} and not whole:
        for head in columns:
            section.note(table, head, unit=given.get(head.word))
    unknown = list(dict.fromkeys(head.word for head in columns if head.kind is None and head.word))
    if unknown and found:
        names = ", ".join(quote(word, 30) for word in unknown[:20]) + (" ..." if len(unknown) > 20 else "")
        one = (
            "column {} is not known and kept as it stands"
            if len(unknown) == 1
            else ("columns {} are not known and kept as they stand")
        )
        section.add_unread(table.heads.number, one.format(names))
    for row in table.rows:
        if any(not is_blank(cell) for cell in row.cells[len(columns) :]):
            section.add_unread(row.number, f"it has {len(row.cells)} cells for {len(columns)} columns")
    return found


def combine_tables(section: Section, speeds: Sequence[TableRun], wholes: Sequence[TableRun]) -> None:
    """Adds a row for each run: rows of two tables are merged where both are specific and agree."""
    left, found = list(speeds), []
    named = {run.device for run in speeds}
    for whole in wholes:
        alike = [speed for speed in left if _is_same_run(speed, whole)]
        if alike:
            left.remove(alike[0])
            whole = _join(whole, alike[0])
        elif len(named) == 1:
            whole.device = whole.device or next(iter(named))
        found.append(whole)
    for run in sorted((*found, *left), key=lambda run: run.line):
        section.add_row(run)


def _is_same_run(speed: TableRun, whole: TableRun) -> bool:
    if speed.topology is None or speed.topology != whole.topology or speed.half is None or not whole.precision:
        return False
    if speed.half != is_half(whole.precision):
        return False
    for one in speed.qualities:
        for other in whole.qualities:
            if one.value is not None and other.value is not None and not _is_close(one.value, other.value):
                return False
    rates = [run.rate for run in (speed, whole)]
    return None in rates or _is_close(rates[0] or 0, rates[1] or 0)


def _join(whole: TableRun, speed: TableRun) -> TableRun:
    names = {fold_key(quality.name) for quality in whole.qualities if quality.value is not None}
    more = [quality for quality in speed.qualities if not names or fold_key(quality.name) not in names]
    return replace(
        whole,
        device=whole.device or speed.device,
        throughputs={**speed.throughputs, **whole.throughputs},
        item=whole.item or speed.item,
        qualities=[*whole.qualities, *(more if not names else [])],
        details=[*speed.details, *whole.details],
        remarks=[*speed.remarks, *whole.remarks],
    )


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= ALIKE * max(abs(one), abs(other))


def _resolve_columns(table: Table, columns: Sequence[Head]) -> list[Head]:
    """Resolves columns by their cells: FP16 holds yes or no, or results; Precision a type, or a percentage."""
    found = []
    for index, head in enumerate(columns):
        cells = [row.cells[index] for row in table.rows if index < len(row.cells)]
        if head.kind == "fp16" and any(not is_blank(cell) and fold_key(cell) not in _TRUTHS for cell in cells):
            head = replace(head, kind="precision_results")
        elif head.kind == "precision" and any(parse_figure(cell) for cell in cells):
            head = replace(head, kind="quality", name=head.word)
        found.append(head)
    return found


def _find_label(columns: Sequence[Head], row: MarkdownRow) -> str:
    """`GPT3-13B | ---- | ----`: the model that the lines below are of."""
    first, *rest = (*row.cells, "")
    alone = not is_blank(first) and all(is_blank(cell) for cell in rest) and any(rest)
    leads = columns[0].kind in ("configuration", "device", "model")
    return tidy(first) if alone and leads and parse_place(first).topology is None else ""


def _names_quality(head: Head) -> bool:
    return head.kind == "quality" and (head.name is not None or bool(head.parts))


def _find_item(columns: Sequence[Head]) -> str | None:
    """What throughput counts, by the heads."""
    rates = (head for head in columns if head.kind in (*THROUGHPUTS, "fps", "performance", "steady"))
    return next((item for head in rates if (item := parse_item(head.unit))), None)


def _may_hold(head: Head) -> bool:
    return head.kind is None or head.kind in MEASURES or head.kind in ("setting", "target")


def _read_line(line: _Line, columns: Sequence[Head], row: MarkdownRow, *, label: str, whole: bool) -> list[TableRun]:
    cells = [(head, text) for head, text in zip(columns, row.cells, strict=False) if not is_blank(text)]
    base = TableRun(line=row.number, model=label, item=_find_item(columns))
    base.judged_by = next(
        (head.parts[0] if head.parts else head.name or "" for head in columns if _names_quality(head)), ""
    )
    for head, text in zip(columns, row.cells, strict=False):
        if head.kind == "fix_hp" and tidy(text):
            base.fix_hp = "/" if is_blank(text) else tidy(text)
    if any(_is_misplaced(line.section, head, text) for head, text in cells):
        shown = " | ".join(tidy(text) for _, text in cells)
        line.section.add_unread(row.number, f"its cells do not stand under their heads: {quote(shown, 120)}")
        return []
    for head, text in cells:
        _identify(line, base, head, text, whole=whole)
    spread = [(head, text) for head, text in cells if head.kind in _SPREAD]
    runs = [base]
    if len(spread) == 1:
        runs = _read_spread_runs(line, base, *spread[0])
    elif spread:
        runs = [run for head, text in spread for run in _read_spread_runs(line, copy.deepcopy(base), head, text)]
    own = runs[0] if len(runs) == 1 else base
    for head, text in sorted(cells, key=lambda cell: cell[0].kind != "convergence"):  # which names the quality
        if _may_hold(head) and head.kind not in _SPREAD:
            own = _read_cell(line, own, head, text, runs)
    if own is base and base not in runs and base.has_measures:
        runs.append(base)
    configured = next((text for head, text in cells if head.kind == "configuration"), None)
    if configured is not None and base.topology is None and not whole:
        shown = quote(configured)
        line.section.add_unread(row.number, f"its configuration {shown} gives no nodes and devices, such as (1x8)")
    return [run for run in runs if run.topology is not None or run.has_measures]


def _read_spread_runs(line: _Line, run: TableRun, head: Head, text: str) -> list[TableRun]:
    """The runs of a column whose header gives their precision or number of devices."""
    if head.kind == "count_results" and head.count:
        run.topology = Topology(nodes=1, devices_per_node=head.count)
    elif head.kind == "precision_results":
        run.precision = normalize_precision(head.word)
    runs = [run]
    _read_cell(line, run, head, text, runs)
    return runs


def _is_misplaced(section: Section, head: Head, text: str) -> bool:
    """A device where figures belong: the row has a cell too few or too many."""
    if head.kind not in (*MEASURES, None):
        return False
    where = parse_place(text)
    return where.topology is not None and bool(where.device) and section.knows_device(where.device)


def _identify(line: _Line, run: TableRun, head: Head, text: str, *, whole: bool) -> None:
    if head.kind == "configuration" and whole:
        _configure(run, text)
    elif head.kind in ("configuration", "device"):
        where = parse_place(text)
        count = parse_figure(text)
        if count and not count.unit and count.value in range(1, 10**5):  # a column Cards may count them
            where = replace(where, device="", topology=Topology(nodes=1, devices_per_node=int(count.value)))
        run.device, run.topology, run.memory_total = where.device, where.topology or run.topology, where.memory_gib
        if where.remark:
            run.remarks.append(where.remark)
        if where.worded is not None:
            line.section.note_place(line.table, line.number, tidy(text), where)
    elif head.kind == "config_file":
        match = _CONFIG_FILE.fullmatch(tidy(text))
        if match and not run.device:
            run.device = match[1]
            run.topology = run.topology or Topology.parse(f"{match[2]}x{match[3]}")
        run.add_detail(head.word, text)
    elif head.kind == "model":
        run.model = tidy(text)
    elif head.kind == "vendor":
        run.vendor = tidy(text)
    elif head.kind == "fp16":
        run.half = _TRUTHS[fold_key(text)]
    elif head.kind == "precision":
        run.precision = normalize_precision(text)
    elif head.kind == "fix_hp":
        named = parse_batch(text)
        run.batch = named.size if named else None
        if match := _PRECISION_SETTING.search(tidy(text)):
            run.precision = run.precision or normalize_precision(match[1])
    elif head.kind == "software":
        run.add_detail(head.word, text)
    if head.kind == "num_devices":
        count = parse_figure(text)
        if count is None or count.unit or count.value != int(count.value) or not 0 < count.value < 10**5:
            line.cannot_read(run, head, text, "a number of devices")
        elif run.topology is None:
            run.topology = Topology(nodes=1, devices_per_node=int(count.value))
        elif run.topology.devices != count.value:
            run.add_detail(head.word, text, count)
    if head.place and not is_blank(text):
        where = parse_place(head.place)
        run.device, run.topology = run.device or where.device, run.topology or where.topology


def _configure(run: TableRun, text: str) -> None:
    """`SDK V2.2,bs:128,8x,AMP`: what follows the number of devices is the precision, wherever the batch stands."""
    words = [word.strip() for word in re.split("[,;]", tidy(text))]
    rest: list[str] = []
    for word in words:
        found = parse_batch(word)
        where = parse_place(word)
        if found and run.fix_hp is None:
            run.fix_hp, run.batch = f"bs={found.size}", found.size if found.per_device else None
        elif run.topology is None and where.topology is not None and not where.device:
            run.topology, rest = where.topology, []
        else:
            rest.append(word)
    known = (*PRECISIONS, "amp")
    if run.topology is not None and rest and words[-1] == rest[-1]:
        run.precision = normalize_precision(", ".join(rest))
    if run.precision not in known:
        run.precision = next((word.lower() for word in words if word.lower() in known), run.precision)
    software = [word for word in words if re.match(r"sdk|driver|v?[0-9]+\.[0-9]", word, re.IGNORECASE)]
    if software:
        run.add_detail("SDK", ", ".join(software))


def _read_cell(line: _Line, run: TableRun, head: Head, text: str, runs: list[TableRun]) -> TableRun:
    """Reads the measures of a cell; where it holds several runs, they are added to the runs."""
    if head.parts and (several := parse_figures(text, len(head.parts), head.separator)):
        for name, one in zip(head.parts, several, strict=True):
            _add_part(run, head, name, one)
        return run
    if _read_measure(line, run, head, text):
        return run
    named = head.kind not in ("convergence", "target", "setting") and (head.kind or re.search("[:=：]", text))
    groups = parse_pairs(text) if named else None
    if groups is None:
        _keep_unread(line, run, head, text)
        return run
    first = run
    for index, group in enumerate(groups):
        if index:
            run = copy.deepcopy(first.without_measures())
            runs.append(run)
        if group.precision:
            run.precision = normalize_precision(group.precision)
        for pair in group.pairs:
            _read_pair(line, run, head, pair)
    return first


def _add_part(run: TableRun, head: Head, name: str, one: Figure) -> None:
    if head.kind == "target":
        run.targets[name] = one.value
    elif head.kind == "quality" or is_quality(name):
        run.qualities.append(PageQuality(name=name, value=one.value, unit=one.unit or head.unit, text=f"{one.value:g}"))
    else:
        run.add_detail(name, f"{one.value:g}{one.unit}", one)


def _keep_unread(line: _Line, run: TableRun, head: Head, text: str) -> None:
    what = {"e2e_time": "a time", "mem": "memory as used/total", "convergence": "a value to reach"}
    if head.kind in (None, "setting"):
        run.add_detail(head.word, text)
    else:
        line.cannot_read(run, head, text, what.get(head.kind, "a number"))


def _read_measure(line: _Line, run: TableRun, head: Head, text: str) -> bool:
    """Adds the cell to the run if it is one figure of its column's kind; returns whether it is."""
    kind, section = head.kind, line.section
    unit = head.unit or section.units.get(kind or "") or ""
    if kind == "e2e_time":
        time = parse_seconds(text, unit)
        if time is None or run.e2e_time_s is not None:
            return False
        found = parse_figure(text)
        if found and not found.unit and not unit and fold_key(head.word) not in _IN_SECONDS:
            run.add_detail(head.word, text, found)
            return True
        if found is None or found.unit:
            line.units.setdefault(head.word, found.unit if found else "s")
        section.note_figure(line.table, line.number, head, found or Figure(value=time, unit="s"))
        run.e2e_time_s = time
        return True
    if kind == "mem":
        memory = parse_memory_gib(text, unit)
        if memory is None:
            return False
        run.memory = memory
        section.note_figure(line.table, line.number, head, parse_each(text.split("/")[0])[0])
        return True
    if kind in ("power", "scalability", "stability"):
        value, _ = parse_each(text)
        if value is None:
            return False
        section.note_figure(line.table, line.number, head, value)
        run.add_detail(head.word, text, replace(value, unit=value.unit or head.unit or ""))
        return True
    if kind == "convergence":
        return _read_criterion(line, run, head, text)
    found = parse_measured(text)
    if found is None or (found.unit and not is_unit(found.unit)):
        return kind == "quality" and _read_result_and_target(line, run, head, text)
    if found.unit:
        line.units.setdefault(head.word, found.unit)
    if kind in THROUGHPUTS:
        if found.remark or kind in run.throughputs:
            return False
        run.throughputs[kind], run.item = found.value, run.item or parse_item(found.unit or unit)
    elif kind == "steady":
        section.note_figure(line.table, line.number, head, found)
        run.add_detail(head.word, text, replace(found, unit=found.unit or unit))
    elif kind in ("fps", "performance"):
        section.note_figure(line.table, line.number, head, found)
        _add_rate(run, head, found, text)
    elif kind == "quality":
        section.note_figure(line.table, line.number, head, found)
        _add_quality(line, run, head, found, text)
    elif kind == "target":
        run.target = found.value, None
    elif kind == "batch":
        if found.unit or found.value != int(found.value):
            return False
        run.fix_hp = run.fix_hp or f"bs={found.value:g}"
        run.batch = int(found.value) if _EACH.search(head.word) else run.batch
    elif kind == "num_devices":
        return True
    elif kind in _SPREAD and parse_item(found.unit):
        _add_rate(run, head, found, text)
    else:
        run.add_detail(head.word, text, found)
    return True


def _add_rate(run: TableRun, head: Head, found: Figure, text: str) -> None:
    """A rate of items is a throughput; anything else, and a second one, is kept as a detail."""
    item, alias = parse_item(found.unit or head.unit), head.alias or "p_train"
    if item is not None and alias not in run.throughputs and not found.remark:
        run.throughputs[alias], run.item = found.value, item
    else:
        run.add_detail(head.word, text, replace(found, unit=found.unit or head.unit or ""))


def _add_quality(line: _Line, run: TableRun, head: Head, found: Figure, text: str) -> None:
    name = head.name or run.criterion or line.section.quality_word or head.word
    sure = head.bracketed or bool(line.section.model) or bool(run.criterion)
    run.qualities.append(
        PageQuality(name=name, value=found.value, unit=found.unit or head.unit, text=tidy(text), sure=sure)
    )
    if found.remark:
        run.remarks.append(f"{name} {tidy(text)}")


def _read_result_and_target(line: _Line, run: TableRun, head: Head, text: str) -> bool:
    """`0.657/0.655`, where the page says that a cell holds result and target."""
    both = parse_figures(text, 2, "/")
    if both is None or not (line.section.gives_target or re.search(r"实际/目标|actual/target", head.word.casefold())):
        return False
    line.section.note_figure(line.table, line.number, head, both[0])
    _add_quality(line, run, head, both[0], tidy(text).split("/")[0])
    run.target = both[1].value, None
    return True


def _read_criterion(line: _Line, run: TableRun, head: Head, text: str) -> bool:
    """Name, value and direction of `score(MOS):4.460`, `acc ≥ 75.5%`, `top1 75.9%`; a bare value has no name."""
    match = _CRITERION.fullmatch(tidy(text))
    found = parse_figure(match[3]) if match else parse_figure(text)
    if found is None:
        return False
    line.section.note(line.table, head, line=line.number)
    better = None
    if match:
        run.criterion = _unwrap_name(match[1].strip())
        better = {">": "higher", "≥": "higher", ">=": "higher", "<": "lower", "≤": "lower", "<=": "lower"}.get(match[2])
    run.target = found.value, better
    if not run.qualities and run.criterion:
        run.criterion_unit = found.unit or None
    return True


def _unwrap_name(name: str) -> str:
    """`MOS` of `score(MOS)`."""
    match = re.fullmatch(r"(?:score|accuracy|得分|评分) ?\(([^()]{1,40})\)", name, re.IGNORECASE)
    return match[1] if match else name


def _read_pair(line: _Line, run: TableRun, head: Head, pair: Pair) -> None:
    """One figure inside a cell, by its own name or else by its column."""
    kind, found = find_measure_kind(pair.name), pair.figure
    inner = Head(kind=kind, word=pair.name, name=pair.name)
    in_seconds = found is None or found.unit or fold_key(pair.name) in _IN_SECONDS
    if kind == "e2e_time" and in_seconds and run.e2e_time_s is None and (time := parse_seconds(pair.text)) is not None:
        run.e2e_time_s = time
    elif found is None:
        run.add_detail(pair.name, pair.text)
    elif kind == "batch" and not found.unit and found.value == int(found.value):
        run.fix_hp = run.fix_hp or f"bs={found.value:g}"
    elif kind == "fps" or (kind == "performance" and found.unit):
        line.section.note_figure(line.table, line.number, inner, found)
        _add_rate(run, inner, found, pair.text)
    elif kind == "mem" and (memory := parse_memory_gib(pair.text)):
        run.memory = memory
    elif kind == "quality" or (kind is None and head.kind == "quality"):
        line.section.note_figure(line.table, line.number, replace(inner, kind="quality"), found)
        run.qualities.append(
            PageQuality(name=pair.name, value=found.value, unit=found.unit or head.unit, text=pair.text)
        )
    else:
        run.add_detail(pair.name, pair.text, found)


# Results that stand inside one cell: `Acc@1=76.02,FPS=330,Time=4d3h`, `FP32: Acc@1 76.6 fps 1049`


@dataclass(frozen=True, kw_only=True)
class Pair:
    name: str
    text: str
    """The value as written."""
    figure: Figure | None
    """None for a time such as `4d3h`."""


@dataclass(frozen=True, kw_only=True)
class PairGroup:
    precision: str
    """Given before the pairs; empty where absent."""
    pairs: tuple[Pair, ...]


def parse_pairs(text: str) -> list[PairGroup] | None:
    """The pairs of a cell, or None where any part is not clearly a name and its value."""
    plain = re.sub(r" ?@ ?", "@", re.sub(r" ?/ ?", "/", tidy(text)))
    if len(plain) > LONGEST or plain[:1].isdigit():
        return None
    pieces: list[str] = _PIECE.findall(plain)
    groups: list[tuple[str, list[Pair]]] = [("", [])]
    words: list[str] = []
    index = 0
    while index < len(pieces):
        piece, after = pieces[index], pieces[index + 1] if index + 1 < len(pieces) else ""
        index += 1
        if piece in _ENDS:
            if words:
                return None
        elif piece in _GIVES:
            if not words or not after or after in (*_ENDS, *_GIVES):
                return None
            if not _is_value(after):
                if not is_precision(" ".join(words)):
                    return None
                groups.append((" ".join(words), []))
                words = []
        elif words and after in _GIVES and index > 1 and pieces[index - 2] == ":" and _is_value(piece):
            words[-1] += f":{piece}"  # `mAP@0.5:0.95: 36.1`
        elif words and after not in _GIVES and _is_value(piece):
            unit = after if is_unit(after) and parse_figure(piece) and not find_measure_kind(after) else ""
            index += bool(unit)
            shown = f"{piece} {unit}".strip()
            groups[-1][1].append(Pair(name=" ".join(words).strip("'\"`"), text=shown, figure=parse_figure(shown)))
            words = []
        else:
            words.append(piece)
    found = [PairGroup(precision=name, pairs=tuple(members)) for name, members in groups if members]
    return found if found and not words and len(found) >= len(groups) - 1 else None


def _is_value(piece: str) -> bool:
    found = parse_figure(piece)
    return (found is not None and (not found.unit or is_unit(found.unit))) or parse_seconds(piece) is not None
