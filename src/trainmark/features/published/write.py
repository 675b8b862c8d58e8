"""Parts common to both written page formats: tables, sections, notes, and the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain

from trainmark.analysis import device_names as names
from trainmark.analysis.device_names import tidy
from trainmark.record import escape
from trainmark.record.doubts import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.format import device_name, format_goal, summarise_links
from trainmark.record.language import Say, translator
from trainmark.record.numbers import digits_to_tell_apart
from trainmark.record.published_row import PublishedRow, Source
from trainmark.record.recipe import fix_hp
from trainmark.record.record import Record, translate_coverage
from trainmark.workloads import facts_of, quality_word


@dataclass(frozen=True, kw_only=True)
class WrittenSection:
    """One section of a page: runs that train one model to one target, with their rows."""

    records: tuple[Record, ...]
    rows: tuple[PublishedRow, ...]

    @property
    def first(self) -> PublishedRow:
        return self.rows[0]

    @property
    def quality(self) -> str:
        """The word the tables use, with nothing in it that could end a cell."""
        return quality_word(self.records[0].quality.name)

    @property
    def column(self) -> str:
        """What published pages of the model call that column."""
        known = facts_of(self.records[0])
        return (known.quality_on_pages if known else "") or self.quality

    @property
    def goal(self) -> str:
        """`≥ 75.5 %`."""
        return format_goal(self.records[0].quality)


def make_section(records: Sequence[Record]) -> WrittenSection:
    return WrittenSection(records=tuple(records), rows=tuple(map(make_row, records)))


def write_sections(records: Sequence[Record], write: Callable[[WrittenSection], Iterable[str]]) -> str:
    """A page of one section for all runs that can share a table's heads, in the order they were given."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        quality = record.quality
        key = (record.plan.workload, record.item, quality.name, quality.unit, quality.goal, quality.better)
        groups.setdefault(key, []).append(record)
    return "\n".join(chain.from_iterable((*write(make_section(members)), "") for members in groups.values()))


class Strong(str):
    """Bold text in a table."""

    __slots__ = ()


def format_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table, cells escaped."""
    heads = list(heads)
    return [_format_line(heads), "| " + " | ".join("---" for _ in heads) + " |", *map(_format_line, rows)]


def _format_line(cells: Iterable[str]) -> str:
    texts = ((escape.markdown_cell(cell), isinstance(cell, Strong)) for cell in cells)
    return "| " + " | ".join(f"**{text}**" if strong else text for text, strong in texts) + " |"


def list_notes(section: WrittenSection, lang: str, shown: Sequence[str]) -> list[str]:
    """Numbered notes with the rows they are about, including why a shown metric is missing."""
    say = translator(lang)
    about: dict[str, list[str]] = {}
    for index, record in enumerate(section.records, 1):
        for sentence in _list_sentences(record, shown, say):
            about.setdefault(sentence, []).append(str(index))
    lines = []
    for number, (sentence, rows) in enumerate(about.items(), 1):
        which = (say("row {rows}") if len(rows) == 1 else say("rows {rows}")).format(rows=", ".join(rows))
        lines.append(f"{number}. {which}: {escape.markdown_cell(sentence)}")
    return lines


def _list_sentences(record: Record, shown: Sequence[str], say: Say) -> Iterator[str]:
    if record.status != "valid":
        statuses = {"invalid": say("invalid"), "incomplete": say("incomplete")}
        yield f"{statuses[record.status]}: {translate_ending(record.ended, say)}"
    if record.precision != record.plan.precision:
        yield say("{asked} was requested, {ran} ran").format(asked=record.plan.precision, ran=record.precision)
    missing: dict[str, list[str]] = {}
    for alias in shown:
        if find_metric(record, alias) is None:
            reason = record.metrics[alias].unavailable if alias in record.metrics else None
            missing.setdefault(say(reason) if reason else say("not on the record"), []).append(alias)
    for why, aliases in missing.items():
        yield say("no {metrics}: {reason}").format(metrics=", ".join(aliases), reason=why)
    yield say("throughputs cover {coverage}").format(coverage=translate_coverage(record, say))
    yield from (translate_doubt(doubt, say) for doubt in record.doubts)


def describe_data_set(record: Record, say: Say) -> str:
    """Where the data comes from."""
    name = escape.markdown_cell(record.plan.data.name)
    if record.plan.data.synthetic:
        return say("{name}, synthetic: `trainmark data make {name}` makes it; it is not the real set").format(name=name)
    return say("{name}: `trainmark data prepare {name}` makes it of the files its publisher offers").format(name=name)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The environment of a run as text; empty where it was not collected."""

    model: str
    device: str
    vendor: str
    cpu: str
    distribution: str
    kernel: str
    driver: str
    sdk: str
    """The device's PyTorch plugin, or what PyTorch was built with."""
    framework: str
    software: str
    container: str


def list_machines(section: WrittenSection, say: Say) -> dict[Machine, str]:
    """Every machine of a section once, with all its link measurements."""
    found: dict[Machine, list[str]] = {}
    for record, row in zip(section.records, section.rows, strict=True):
        measured, ranks = record.environment.link, record.timeline.ranks
        hosts = max(len({trace.host for trace in ranks}), 1)
        links = [summarise_links(measured, ranks=len(ranks), hosts=hosts, say=say)] if measured else []
        found.setdefault(_describe_machine(record, row, say), []).extend(links)
    return {machine: say("; ").join(dict.fromkeys(links)) for machine, links in found.items()}


def _describe_machine(record: Record, row: PublishedRow, say: Say) -> Machine:
    environment, platform = record.environment, record.environment.platform
    cores = environment.cpu.logical_cores
    versions = {name: getattr(environment, name) for name in ("python", "numpy", "trainmark")}
    plugin = f"{platform.plugin} {platform.plugin_version or ''}".strip() if platform.plugin else ""
    return Machine(
        model=environment.machine,
        device=row.device,
        vendor=row.vendor,
        cpu=environment.cpu.name + (say(", {cores} logical cores").format(cores=cores) if cores else ""),
        distribution=environment.distribution,
        kernel=environment.os,
        driver=environment.device.driver or "",
        sdk=plugin or environment.torch.partition("+")[2],
        framework=f"pytorch-{environment.torch}" if environment.torch else "",
        container=environment.container,
        software=", ".join(f"{name} {version}" for name, version in versions.items() if version),
    )


# A run as a row of a published table, rounded as written


def make_row(record: Record) -> PublishedRow:
    """A run as a published row; time and quality only for a full training, as on published pages."""
    plan, quality = record.plan, record.quality
    vendor, device = tidy(plan.platform_word), tidy(device_name(record))
    if device.casefold().startswith(f"{vendor.casefold()} "):
        device = device[len(vendor) :].strip()
    value = quality.value if plan.limits.full else None
    if value is not None:
        value = round_digits(value, digits_to_tell_apart(value, quality.goal, quality.better, least=5))
    return PublishedRow(
        name=record.run_id,
        source=Source(title=record.run_id, address="", date=record.created[:10]),
        vendor=vendor,
        device=names.parse_device(device.rstrip(" ,") or vendor).name,
        workload=tidy(plan.workload),
        topology=plan.topology,
        precision=tidy(record.precision),
        fix_hp=tidy(fix_hp(plan.deviations, most=len(plan.deviations))),
        batch_per_device=int(plan.recipe["batch_per_device"]) if "batch_per_device" in plan.recipe else None,
        item=tidy(record.item),
        e2e_time_s=_round_metric(record, "e2e_time") if plan.limits.full else None,
        p_whole=_round_metric(record, "p_whole"),
        p_train=_round_metric(record, "p_train"),
        p_core=_round_metric(record, "p_core"),
        quality_name=quality.name,
        quality_unit=quality.unit or "-",
        quality=value,
        target=quality.goal,
        better=quality.better,
        mem_used_gib=round_memory(find_metric(record, "mem")),
        mem_total_gib=round_memory(find_metric(record, "mem_total")),
        remark=None,
    )


def round_digits(value: float, digits: int = 5) -> float:
    """Rounds to significant digits; the integer part is kept."""
    return float(round(value)) if abs(value) >= 10 ** (digits - 1) else float(f"{value:.{digits}g}")


def format_exact(value: float | None, unit: str = "") -> str:
    """A figure that parses back to the same value, without an exponent."""
    if value is None:
        return ""
    text = format(Decimal(repr(value)), "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit


def find_metric(record: Record, alias: str) -> float | None:
    quantity = record.metrics.get(alias)
    return quantity.value if quantity else None


def _round_metric(record: Record, alias: str) -> float | None:
    value = find_metric(record, alias)
    return None if value is None else round_digits(value)


def round_memory(value: float | None) -> float | None:
    return None if value is None else round(value, 1) if value >= 10 else round_digits(value, 3)
