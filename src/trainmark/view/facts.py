"""The facts of a record, section by section, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainmark import workloads
from trainmark.record import links, metrics as definitions, workload_facts
from trainmark.record.format import NOTHING, format_interval, number, summarise_links
from trainmark.record.index import format_tags
from trainmark.record.language import Say
from trainmark.record.links import AllReduce, PairLink
from trainmark.record.machine import FlopsFacts, MachineTelemetry, PrecisionProof, Series, StepCheck
from trainmark.record.metrics import METRICS
from trainmark.record.plan import Topology
from trainmark.record.precision import describe_inside, describe_matmuls
from trainmark.record.record import Record, translate_coverage
from trainmark.view.sections import FactSection, RecordFact

MAX_DEVICES = 8
"""Whose curves are drawn of one machine."""
MAX_FILES = 10
_GIB = 2.0**30
_OWN_SECTIONS = ("link", "link_levels", "exchange", "checkpoint", "precision", "fill", "profile")
"""Of the environment: they are told apart from the rest."""


@dataclass(frozen=True, kw_only=True)
class SensorCurve:
    """One sensor over time."""

    key: str
    """The same for all devices, which share a chart."""
    word: str
    unit: str
    device: int | None
    """None for a sensor of the host."""
    at_s: Sequence[float]
    values: Sequence[float]


def plan(record: Record, say: Say) -> FactSection:
    """What was asked for, and what differs from the reference recipe."""
    asked = record.plan
    labels = [(say("tags"), ", ".join(format_tags(record.tags))), (say("note"), record.note or "")]
    data = asked.data.name + (f", {say('synthetic data')}" if asked.data.synthetic else "")
    facts = [
        RecordFact(
            say("workload"), say("{workload}, counted in {item}").format(workload=asked.workload, item=record.item)
        ),
        *([RecordFact(say("workload from"), str(asked.workload_source))] if asked.workload_source else []),
        RecordFact(say("recipe"), asked.recipe_name),
        RecordFact(say("topology"), asked.topology),
        RecordFact(say("precision asked for"), asked.precision),
        RecordFact(say("platform"), asked.platform),
        RecordFact(say("data"), data if asked.data.folder else f"{data}, {say('made by the workload')}"),
        *([RecordFact(say("data folder"), asked.data.folder, local=True)] if asked.data.folder else []),
        RecordFact(say("runs until"), str(asked.limits)),
        RecordFact(say("fingerprint"), asked.fingerprint[:16]),
        *([RecordFact(say("begins with"), asked.init_from, local=True)] if asked.init_from else []),
        *([RecordFact(say("resumed from"), asked.resume_from, local=True)] if asked.resume_from else []),
        *(RecordFact(name, value) for name, value in labels if value),
        RecordFact("fix_hp", say("reference → this run") if asked.deviations else say("/ (as the reference recipe)")),
    ]
    facts += [
        RecordFact(change.name, f"{format_value(change.reference)} → {format_value(change.actual)}")
        for change in asked.deviations
    ]
    return FactSection(title=say("Plan"), facts=facts)


def metrics(record: Record, say: Say) -> FactSection:
    """Every number of the record with its interval and formula, or why it is missing."""
    rows = []
    for alias in [*METRICS, *(alias for alias in record.metrics if alias not in METRICS)]:
        if (quantity := record.metrics.get(alias)) is None:
            continue
        around = format_interval(quantity.interval, say("too noisy to say"))
        if quantity.value is None:
            reason = quantity.unavailable or say("not available")
            rows.append((alias, NOTHING, "", around, say(reason)))
            continue
        known = definitions.get_metric(alias)
        formula = known.formula if known else ""
        peak = _peak(record.environment.flops, quantity.value, say) if alias == "mfu" else ""
        rows.append((alias, number(quantity.value), quantity.unit, around, say(formula) + peak))
    return FactSection(
        title=say("Metrics"),
        remark=say("throughputs cover {coverage}").format(coverage=translate_coverage(record, say)),
        heads=(say("Metric"), say("Value"), say("Unit"), say("95 % interval"), say("Formula, or why it is missing")),
        rows=rows,
        left=frozenset({0, 2, 4}),
    )


def _peak(flops: FlopsFacts | None, used: float, say: Say) -> str:
    """Where the peak is from, and what share of it others would say was used, who count FLOPs otherwise."""
    if flops is None or not flops.peak_tflops:
        return ""
    peak = say("; the peak is {peak} TFLOP/s, {source}").format(
        peak=number(flops.peak_tflops), source=flops.peak_source
    )
    others = (
        say("; {share} % by the count {name}").format(share=number(used * count / flops.per_item), name=name)
        for name, count in flops.otherwise.items()
    )
    return peak + "".join(others)


def precision(record: Record, say: Say) -> FactSection | None:
    """What the watched step was really computed in; None where no step was watched."""
    found = record.environment.precision
    if found is None:
        return None
    flags = [kind for kind, allowed in found.tf32.items() if allowed]
    total = sum(found.weights.values()) or 1
    held = [f"{100 * count / total:.1f} % {type_}" for type_, count in sorted(found.weights.items())]
    asked = say("{ran}; {asked} was asked for").format(ran=found.ran, asked=found.asked)
    allowed = say("allowed for {flags}").format(flags=say(" and ").join(flags))
    facts = [
        RecordFact(say("ran"), found.ran if found.ran == found.asked else asked),
        RecordFact(say("asked of the device"), describe_matmuls(found.computed) or say("none seen")),
        RecordFact(say("computed by it"), describe_inside(found.inside) or say("not tried")),
        *_scaled(found, say),
        RecordFact(say("weights"), ", ".join(held)),
        RecordFact(say("autocast"), found.autocast or say("off")),
        RecordFact(say("tf32"), allowed if flags else say("not allowed")),
    ]
    if (compared := record.environment.step_check) is not None:
        facts.append(RecordFact(say("beside the CPU"), describe_step_check(compared, say)))
    if found.loss_scale is not None:
        scale = say("{scale}, {steps} steps skipped").format(scale=number(found.loss_scale), steps=found.skipped_steps)
        facts.append(RecordFact(say("loss scale"), scale))
    return FactSection(
        title=say("Precision"),
        remark=say("operand types of the first step, and what the device computes with them"),
        facts=facts,
    )


def _scaled(found: PrecisionProof, say: Say) -> list[RecordFact]:
    if found.scaled_share is None:
        return []
    share = say("{share} % of the multiplications").format(share=f"{100 * found.scaled_share:.1f}")
    return [RecordFact(say("in eight bits"), share)]


def describe_step_check(found: StepCheck, say: Say) -> str:
    """How one step on the device compared with the CPU, before training."""
    if found.unavailable:
        return say("not compared: {reason}").format(reason=say(found.unavailable))
    if found.differing:
        return say("{differing} of {quantities} quantities differ, first {first}").format(
            differing=found.differing, quantities=found.quantities, first=found.first
        )
    return say("{quantities} quantities of one step and one evaluation agree").format(quantities=found.quantities)


def fill(record: Record, say: Say) -> FactSection | None:
    """The batches that were tried, and which was chosen."""
    found = record.environment.fill
    if found is None:
        return None
    rows = []
    for entry in found.curve:
        memory = NOTHING if entry.memory_bytes is None else number(entry.memory_bytes / _GIB)
        speed = [number(value) if value else NOTHING for value in (entry.items_per_s, entry.step_s)]
        rows.append((str(entry.batch), *speed, memory, entry.unfit))
    return FactSection(
        title=say("Largest useful batch"),
        remark=say("found on one device"),
        sentence=say("{batch} per device was chosen; {reason}").format(
            batch=found.batch_per_device, reason=found.reason
        ),
        heads=(say("batch"), f"{record.item}/s", say("step s"), say("memory GiB"), say("why not")),
        rows=rows,
        left=frozenset({4}),
    )


def network(record: Record, say: Say) -> FactSection | None:
    """What the links between the ranks carried before training, and what a step sends over them."""
    measured, sent = record.environment.link, [*_levels(record, say), *_exchange(record, say)]
    if not measured:
        return FactSection(title=say("Links"), facts=sent) if sent else None
    topology = Topology.parse(record.plan.topology)
    summary = summarise_links(measured, ranks=topology.devices, hosts=topology.nodes, say=say)
    return replace(link_table(measured, say), sentence=summary, facts=sent)


def _levels(record: Record, say: Say) -> Iterator[RecordFact]:
    """What explains the times of each collective over each kind of link."""
    where = {"node": say("inside a node"), "nodes": say("between nodes")}
    for found in record.environment.link_levels:
        carried = say("latency {latency} ms, {speed} GB/s among {ranks} ranks").format(
            latency=number(found.latency_s * 1e3), speed=number(found.bytes_per_s / 1e9), ranks=found.ranks
        )
        yield RecordFact(f"{where[found.level]}, {found.collective}", carried)


def _exchange(record: Record, say: Say) -> Iterator[RecordFact]:
    """What a step sends over the links, and what there is to hide it behind."""
    found = record.environment.exchange
    if found is None:
        return
    kind = f"{found.parallel}, {found.kind}" if found.parallel else found.kind
    sent = say("{kind}: {messages} messages, {size} together").format(
        kind=kind, messages=found.messages, size=links.format_size(found.size_bytes)
    )
    yield RecordFact(say("a step exchanges"), sent)
    if found.dtypes:
        types = (f"{links.format_size(size)} {name}" for name, size in found.dtypes.items())
        yield RecordFact(say("exchanged in"), ", ".join(types))
    if found.parameters is not None:
        yield RecordFact(say("trained parameters"), f"{found.parameters:,}")
    if found.backward_s is not None:
        yield RecordFact(say("backward of a step"), f"{number(found.backward_s * 1e3)} ms")


def checkpoints(record: Record, say: Say) -> FactSection | None:
    """What saving and restoring the state took; None where neither happened."""
    found = record.environment.checkpoint
    if found is None:
        return None
    facts = []
    if found.size_bytes is not None:
        facts.append(RecordFact(say("size"), f"{number(found.size_bytes / _GIB)} GiB"))
    if found.save_s is not None:
        speed = f", {number(found.gigabytes_per_s)} GB/s" if found.gigabytes_per_s else ""
        facts.append(RecordFact(say("saving"), f"{number(found.save_s)} s{speed}"))
        facts.append(RecordFact(say("saved"), say("{count} times").format(count=found.saves)))
    if found.restore_s is not None:
        facts.append(RecordFact(say("restoring"), f"{number(found.restore_s)} s"))
    return FactSection(title=say("Checkpoints"), facts=facts)


MAX_PAIRS = 20
"""Of pairs of nodes, the slowest that are shown."""


def pair_table(measured: Sequence[PairLink], say: Say) -> FactSection:
    """What pairs of nodes carry, the slowest first."""
    slowest = sorted(links.best_pairs(measured), key=lambda pair: pair.bus_gigabytes_per_s)[:MAX_PAIRS]
    return FactSection(
        title=say("Pairs of nodes"),
        heads=(say("nodes"), say("message"), say("latency ms"), say("bus GB/s")),
        rows=[
            (
                f"{pair.first}–{pair.second}",
                links.format_size(pair.size_bytes),
                number(pair.latency_s * 1e3),
                number(pair.bus_gigabytes_per_s),
            )
            for pair in slowest
        ],
    )


def link_table(measured: Sequence[AllReduce], say: Say) -> FactSection:
    """What the links carry, by message size."""
    return FactSection(
        title=say("Links"),
        remark=say("measured before training"),
        heads=(say("message"), say("median ms"), say("bus GB/s")),
        rows=[
            (links.format_size(row.size_bytes), number(row.median_s * 1e3), number(row.bus_gigabytes_per_s))
            for row in measured
        ],
    )


def bands(record: Record, say: Say) -> FactSection | None:
    """Each evaluation beside the public runs of the same recipe; None where there are none, or it is another."""
    known = workloads.facts_of(record)
    band = workload_facts.find_band(record.plan, known.bands) if known else None
    found = [*workload_facts.compare_to_band(band, record.quality.history)] if band else []
    if band is None or not found:
        return None
    places = {
        "in the band": say("in the band"),
        "above the band": say("above the band"),
        "below the band": say("below the band"),
    }
    return FactSection(
        title=say("Beside public runs"),
        remark=band.source,
        heads=(say("samples"), band.quality, say("public runs"), say("place")),
        rows=[
            (f"{one.samples:,}", f"{one.value:.3f}", f"{one.point.low:g} – {one.point.high:g}", places[one.place])
            for one in found
        ],
        left=frozenset({3}),
    )


def restarts(record: Record, say: Say) -> FactSection | None:
    facts = [
        RecordFact(
            say("from step {step}").format(step=restart.step),
            "; ".join(
                [
                    say("{lost} s lost").format(lost=number(restart.lost_s)),
                    *([restart.reason] if restart.reason else []),
                    *restart.damaged,
                ]
            ),
        )
        for restart in record.restarts
    ]
    return FactSection(title=say("Restarts"), facts=facts) if facts else None


def data(record: Record, say: Say) -> FactSection | None:
    """How the data was read, and what of it could not be."""
    facts = [
        RecordFact(name, f"{value:g}" if value == int(value) else number(value, 4))
        for name, value in record.data_facts.items()
    ]
    facts += [RecordFact(say("left out"), file) for file in record.skipped_files[:MAX_FILES]]
    if (more := len(record.skipped_files) - MAX_FILES) > 0:
        facts.append(RecordFact("", say("and {count} more").format(count=more)))
    return FactSection(title=say("Data"), remark=say("as it was read"), facts=facts) if facts else None


def environment(record: Record, say: Say) -> FactSection | None:
    """The machine and its software, as they were found."""
    found = {name: value for name, value in record.environment.to_json().items() if name not in _OWN_SECTIONS}
    facts = list(_flatten(found))
    return FactSection(title=say("Environment"), facts=facts) if facts else None


def telemetry_remark(machine: MachineTelemetry, say: Say) -> str:
    """How a machine was sampled."""
    remark = say("{host}: {samples} samples, one every {every} s").format(
        host=machine.host, samples=machine.samples, every=number(machine.every_s)
    )
    return remark + say("; the sampler ended early") if machine.ended_early else remark


def telemetry_curves(machine: MachineTelemetry, say: Say) -> Iterator[SensorCurve]:
    """Of the first devices, and of the host."""
    device_words = {
        "power_w": (say("Power"), "W", 1.0),
        "temperature_c": (say("Temperature"), "°C", 1.0),
        "memory_used_bytes": (say("Device memory"), "GiB", _GIB),
        "utilisation_percent": (say("Device use"), "%", 1.0),
        "clock_mhz": (say("Clock"), "MHz", 1.0),
    }
    host_words = {
        "cpu_percent": (say("Host processors"), "%", 1.0),
        "foreign_percent": (say("Other programs"), "%", 1.0),
        "memory_used_bytes": (say("Host memory"), "GiB", _GIB),
        "load": (say("Load average"), "", 1.0),
        "shm_free_bytes": (say("Free shared memory"), "GiB", _GIB),
    }
    for key, words in device_words.items():
        for device in machine.devices[:MAX_DEVICES]:
            yield from _curve(key, words, device.series, device.device)
    for key, words in host_words.items():
        yield from _curve(key, words, machine.host_series, None)


def _curve(
    key: str, words: tuple[str, str, float], series: Mapping[str, Series], device: int | None
) -> Iterator[SensorCurve]:
    word, unit, scale = words
    if key in series and series[key].values:
        values = [value / scale for value in series[key].values]
        yield SensorCurve(key=key, word=word, unit=unit, device=device, at_s=series[key].at_s, values=values)


def telemetry_summary(values: Sequence[float], unit: str, say: Say) -> str:
    mean, low, high = (number(value) for value in (sum(values) / len(values), min(values), max(values)))
    return say("Mean {mean}, from {low} to {high} {unit}").format(mean=mean, low=low, high=high, unit=unit).rstrip()


def telemetry_missing(machine: MachineTelemetry, say: Say) -> dict[str, list[str]]:
    """What no sensor of a machine could say, by the reason."""
    words = {
        "power_w": say("Power"),
        "temperature_c": say("Temperature"),
        "utilisation_percent": say("Device use"),
        "clock_mhz": say("Clock"),
        "memory_used_bytes": say("Device memory"),
        "energy_j": say("Energy"),
        "memory_total_bytes": say("Memory capacity"),
        "throttled": say("Throttling"),
        "ecc_errors": say("Memory errors"),
    }
    missing: dict[str, list[str]] = {}
    for name, reason in machine.unavailable.items():
        missing.setdefault(say(reason), []).append(words.get(name, name))
    return missing


def _flatten(value: Mapping[str, Any], before: str = "") -> Iterator[RecordFact]:
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flatten(entry, f"{before}{name}.")
        else:
            yield RecordFact(f"{before}{name}", format_value(entry))


def format_value(value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(format_value(entry) for entry in value) or NOTHING
    return f"{value:.6g}" if isinstance(value, float) else str(value)
