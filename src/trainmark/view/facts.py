"""The facts of a record, section by section, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainmark import workloads
from trainmark.record import links, metrics as definitions, workload_facts
from trainmark.record.format import NOTHING, format_interval, number, summarise_links
from trainmark.record.index import format_tags
from trainmark.record.language import Say, _
from trainmark.record.links import AllReduce, PairLink
from trainmark.record.machine import (
    FlopsFacts,
    MachineTelemetry,
    Series,
    StepCheck,
    StepProfile,
)
from trainmark.record.metrics import METRICS
from trainmark.record.plan import Topology
from trainmark.record.precision import describe_inside, describe_matmuls
from trainmark.record.record import Record, translate_coverage
from trainmark.view.terminal import FactSection, RecordFact, TerminalWriter, draw_section

Pair = tuple[str, str | None]
MAX_DEVICES = 8
"""Whose curves are drawn of one machine."""
MAX_FILES = 10
MAX_RANKS = 16
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


def _list_facts(*pairs: Pair | tuple[str, str | None, bool]) -> list[RecordFact]:
    """Those that have a value."""
    return [RecordFact(name, value, *local) for name, value, *local in pairs if value]


def plan(record: Record, say: Say) -> FactSection:
    """What was asked for, and what differs from the reference recipe."""
    asked = record.plan
    data = asked.data.name + (f", {say('synthetic data')}" if asked.data.synthetic else "")
    places = ((say("data folder"), asked.data.folder), (say("begins with"), asked.init_from))
    facts = _list_facts(
        (say("workload"), say("{workload}, counted in {item}").format(workload=asked.workload, item=record.item)),
        (say("workload from"), str(asked.workload_source or "")),
        (say("recipe"), asked.recipe_name),
        (say("topology"), asked.topology),
        (say("precision asked for"), asked.precision),
        (say("platform"), asked.platform),
        (say("data"), data if asked.data.folder else f"{data}, {say('made by the workload')}"),
        (say("runs until"), str(asked.limits)),
        (say("fingerprint"), asked.fingerprint[:16]),
        *((name, place, True) for name, place in (*places, (say("resumed from"), asked.resume_from))),
        (say("tags"), ", ".join(format_tags(record.tags))),
        (say("note"), record.note),
        ("fix_hp", say("reference → this run") if asked.deviations else say("/ (as the reference recipe)")),
        *((one.name, f"{format_value(one.reference)} → {format_value(one.actual)}") for one in asked.deviations),
    )
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


TAKEN = (
    ("e2e_time", ("startup", "init", "warmup", "restart")),
    ("p_whole", ("evaluate", "checkpoint")),
    ("p_train", ("data_wait", "other")),
    ("p_core", ()),
)
"""Each number, and the phases that leave its time before the next number's."""


@dataclass(frozen=True, kw_only=True)
class TimeStep:
    """One line on the way from all time to computing, in nanoseconds, so that it sums."""

    name: str
    ns: int
    start_ns: int = 0
    """Where its bar begins."""
    kind: Literal["total", "phase", "part"] = "phase"
    """A number's time, a phase that is taken off, or a part of the last number's."""


def split_time(record: Record) -> list[TimeStep]:
    """From all time to computing, as the slowest rank saw it, then exchange and computing where these are known. Phases
    that took nothing are left out; those we do not know go first."""
    if not record.timeline.ranks:
        return []
    phases = dict(record.timeline.phases_ns)
    known = {phase for _, taken in TAKEN for phase in taken} | {"compute"}
    left = sum(phases.values())
    found: list[TimeStep] = []
    for name, taken in TAKEN:
        found.append(TimeStep(name=name, ns=left, kind="total"))
        others = tuple(phase for phase in phases if phase not in known) if name == "e2e_time" else ()
        for phase in (*taken, *others):
            if phases.get(phase, 0):
                left -= phases[phase]
                found.append(TimeStep(name=phase, ns=phases[phase], start_ns=left))
    if (exchanged := exchange_ns(record)) is not None:
        own = left - exchanged
        found.append(TimeStep(name="exchange", ns=exchanged, start_ns=own, kind="part"))
        found.append(TimeStep(name="computing", ns=own, kind="part"))
    return found


def exchange_ns(record: Record) -> int | None:
    """What of computing only exchanged with other ranks, on the slowest rank; None where it was not measured."""
    timeline = record.timeline
    if len(timeline.ranks) < 2 or not timeline.exchange_known:
        return None
    return timeline.sum_counted(timeline.slowest).exchange_ns


def name_time_step(step: TimeStep, say: Say) -> str:
    """What a line of it is called."""
    words = {
        "startup": say("start-up"),
        "init": say("set-up"),
        "warmup": say("warm-up"),
        "data_wait": say("data wait"),
        "compute": say("computing"),
        "evaluate": say("evaluation"),
        "checkpoint": say("checkpoints"),
        "restart": say("restarts"),
        "other": say("other"),
    }
    parts = {"exchange": say("of it exchange"), "computing": say("of it computing")}
    if step.kind == "part":
        return parts[step.name]
    return step.name if step.kind == "total" else f"− {words.get(step.name, step.name)}"


def format_rate(step: TimeStep, record: Record) -> str:
    """The throughput that divides by a total; empty for the others, and where it is not known."""
    quantity = record.metrics.get(step.name) if step.kind == "total" and step.name != "e2e_time" else None
    return f"{number(quantity.value)} {quantity.unit}" if quantity is not None and quantity.value is not None else ""


def list_evaluations(record: Record, say: Say) -> tuple[list[str], list[tuple[str, ...]]]:
    """Heads and rows of every evaluation, oldest first, with all it measured."""
    history = record.quality.history
    names = list(dict.fromkeys(name for evaluation in history for name in evaluation.values))
    rows = [
        (
            str(evaluation.step),
            NOTHING if evaluation.epoch is None else number(evaluation.epoch),
            *(number(evaluation.values[name], 4) if name in evaluation.values else NOTHING for name in names),
            number(evaluation.samples, 6),
        )
        for evaluation in history
    ]
    return [say("step"), say("epoch"), *names, say("samples")], rows


def ranks(record: Record, say: Say) -> FactSection | None:
    """What each rank did in the counted steps, slowest first; None where there is one."""
    timeline = record.timeline
    if len(timeline.ranks) < 2 or not timeline.steps:
        return None
    known = timeline.exchange_known
    own_ns = {trace.rank: timeline.own_ns(trace) for trace in timeline.ranks}
    fastest = min(own_ns.values()) or 1
    slowest_first = sorted(timeline.ranks, key=lambda trace: -own_ns[trace.rank])
    sentences = []
    if (more := len(slowest_first) - MAX_RANKS) > 0:
        sentences.append(say("{count} faster ranks are not shown.").format(count=more))
    if not known:
        sentences.append(say("The exchange was not measured, so ranks that wait look busy."))
    return FactSection(
        title=say("Ranks"),
        remark=say("slowest first") + (say(", by their own computing") if known else ""),
        sentence=" ".join(sentences),
        heads=(
            "rank",
            say("computing s"),
            say("exchange s"),
            say("over the fastest"),
            record.item,
            "mem GiB",
            say("host"),
        ),
        rows=[
            (
                str(trace.rank),
                number(own_ns[trace.rank] / 1e9),
                number(timeline.sum_counted(trace).exchange_ns / 1e9) if known else NOTHING,
                f"+{100 * (own_ns[trace.rank] / fastest - 1):.1f} %",
                number(trace.whole.items),
                NOTHING if trace.memory_peak_bytes is None else number(trace.memory_peak_bytes / _GIB),
                trace.host,
            )
            for trace in slowest_first[:MAX_RANKS]
        ],
        left=frozenset({6}),
    )


def precision(record: Record, say: Say) -> FactSection | None:
    """What the watched step was really computed in; None where no step was watched."""
    found, compared = record.environment.precision, record.environment.step_check
    if found is None:
        return None
    flags = [kind for kind, allowed in found.tf32.items() if allowed]
    total = sum(found.weights.values()) or 1
    held = [f"{100 * count / total:.1f} % {type_}" for type_, count in sorted(found.weights.items())]
    asked = say("{ran}; {asked} was asked for").format(ran=found.ran, asked=found.asked)
    allowed = say("allowed for {flags}").format(flags=say(" and ").join(flags))
    share = say("{share} % of the multiplications").format(share=f"{100 * (found.scaled_share or 0):.1f}")
    scale = say("{scale}, {steps} steps skipped").format(
        scale=number(found.loss_scale or 0.0), steps=found.skipped_steps
    )
    return FactSection(
        title=say("Precision"),
        remark=say("operand types of the first step, and what the device computes with them"),
        facts=_list_facts(
            (say("ran"), found.ran if found.ran == found.asked else asked),
            (say("asked of the device"), describe_matmuls(found.computed, say) or say("none seen")),
            (say("computed by it"), describe_inside(found.inside, say) or say("not tried")),
            (say("in eight bits"), None if found.scaled_share is None else share),
            (say("weights"), ", ".join(held)),
            (say("autocast"), found.autocast or say("off")),
            (say("tf32"), allowed if flags else say("not allowed")),
            (say("beside the CPU"), describe_step_check(compared, say) if compared else None),
            (say("loss scale"), None if found.loss_scale is None else scale),
        ),
    )


def describe_step_check(found: StepCheck, say: Say) -> str:
    """How one step on the device compared with the CPU, before training and after it."""
    if found.unavailable:
        return say("not compared: {reason}").format(reason=say(found.unavailable))
    if found.differing:
        return say("{differing} of {quantities} quantities differ, first {first}").format(
            differing=found.differing, quantities=found.quantities, first=found.first
        )
    agree = say("{quantities} quantities of one step and one evaluation agree").format(quantities=found.quantities)
    if found.after_step is not None:
        return say("{agree}, before training and after it").format(agree=agree)
    return (
        f"{agree}; {say('not compared: {reason}').format(reason=found.not_repeated)}" if found.not_repeated else agree
    )


def fill(record: Record, say: Say) -> FactSection | None:
    """The batches that were tried, and which was chosen."""
    found = record.environment.fill
    if found is None:
        return None
    return FactSection(
        title=say("Largest useful batch"),
        remark=say("found on one device"),
        sentence=say("{batch} per device was chosen; {reason}").format(
            batch=found.batch_per_device, reason=found.reason
        ),
        heads=(say("batch"), f"{record.item}/s", say("step s"), say("memory GiB"), say("why not")),
        rows=[
            (
                str(entry.batch),
                *(number(value) if value else NOTHING for value in (entry.items_per_s, entry.step_s)),
                NOTHING if entry.memory_bytes is None else number(entry.memory_bytes / _GIB),
                entry.unfit,
            )
            for entry in found.curve
        ],
        left=frozenset({4}),
    )


def network(record: Record, say: Say) -> FactSection | None:
    """What the links between the ranks carried before training, and what a step sends over them."""
    measured, sent = record.environment.link, _list_facts(*_list_links(record, say))
    if not measured:
        return FactSection(title=say("Links"), facts=sent) if sent else None
    topology = Topology.parse(record.plan.topology)
    summary = summarise_links(measured, ranks=topology.devices, hosts=topology.nodes, say=say)
    return replace(link_table(measured, say), sentence=summary, facts=sent)


def _list_links(record: Record, say: Say) -> Iterator[Pair]:
    """What explains the times of each collective, what a step sends, and what there is to hide it behind."""
    where = {"node": say("inside a node"), "nodes": say("between nodes")}
    for level in record.environment.link_levels:
        carried = say("latency {latency} ms, {speed} GB/s among {ranks} ranks").format(
            latency=number(level.latency_s * 1e3), speed=number(level.bytes_per_s / 1e9), ranks=level.ranks
        )
        yield f"{where[level.level]}, {level.collective}", carried
    if (found := record.environment.exchange) is None:
        return
    sent = say("{kind}: {messages} messages, {size} together").format(
        kind=f"{found.parallel}, {found.kind}" if found.parallel else found.kind,
        messages=found.messages,
        size=links.format_size(found.size_bytes),
    )
    yield say("a step exchanges"), sent
    yield say("exchanged in"), ", ".join(f"{links.format_size(size)} {name}" for name, size in found.dtypes.items())
    yield say("trained parameters"), None if found.parameters is None else f"{found.parameters:,}"
    yield say("backward of a step"), None if found.backward_s is None else f"{number(found.backward_s * 1e3)} ms"


def checkpoints(record: Record, say: Say) -> FactSection | None:
    """What saving and restoring the state took; None where neither happened."""
    found = record.environment.checkpoint
    if found is None:
        return None
    speed = f", {number(found.gigabytes_per_s)} GB/s" if found.gigabytes_per_s else ""
    saved = found.save_s is not None
    facts = _list_facts(
        (say("size"), None if found.size_bytes is None else f"{number(found.size_bytes / _GIB)} GiB"),
        (say("saving"), f"{number(found.save_s or 0.0)} s{speed}" if saved else None),
        (say("saved"), say("{count} times").format(count=found.saves) if saved else None),
        (say("restoring"), None if found.restore_s is None else f"{number(found.restore_s)} s"),
    )
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
                filter(
                    None, (say("{lost} s lost").format(lost=number(restart.lost_s)), restart.reason, *restart.damaged)
                )
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
    return FactSection(title=say("Environment"), facts=list(_flatten(found))) if found else None


def telemetry_remark(machine: MachineTelemetry, say: Say) -> str:
    """How a machine was sampled."""
    remark = say("{host}: {samples} samples, one every {every} s").format(
        host=machine.host, samples=machine.samples, every=number(machine.every_s)
    )
    return remark + say("; the sampler ended early") if machine.ended_early else remark


def telemetry_curves(machine: MachineTelemetry, say: Say) -> Iterator[SensorCurve]:
    """Of the first devices, and of the host."""
    names = _name_sensors(say)
    for key in ("power_w", "temperature_c", "memory_used_bytes", "utilisation_percent", "clock_mhz"):
        for device in machine.devices[:MAX_DEVICES]:
            yield from _curve(key, names[key], device.series, device.device)
    names["memory_used_bytes"] = say("Host memory")
    for key in ("cpu_percent", "foreign_percent", "memory_used_bytes", "load", "shm_free_bytes"):
        yield from _curve(key, names[key], machine.host_series, None)


def _name_sensors(say: Say) -> dict[str, str]:
    return {
        "power_w": say("Power"),
        "temperature_c": say("Temperature"),
        "memory_used_bytes": say("Device memory"),
        "utilisation_percent": say("Device use"),
        "clock_mhz": say("Clock"),
        "energy_j": say("Energy"),
        "memory_total_bytes": say("Memory capacity"),
        "throttled": say("Throttling"),
        "ecc_errors": say("Memory errors"),
        "cpu_percent": say("Host processors"),
        "foreign_percent": say("Other programs"),
        "load": say("Load average"),
        "shm_free_bytes": say("Free shared memory"),
    }


_SENSOR_UNITS = {"w": "W", "c": "°C", "bytes": "GiB", "percent": "%", "mhz": "MHz"}


def _curve(key: str, word: str, series: Mapping[str, Series], device: int | None) -> Iterator[SensorCurve]:
    if key in series and series[key].values:
        scale = _GIB if key.endswith("_bytes") else 1.0
        values = [value / scale for value in series[key].values]
        unit = _SENSOR_UNITS.get(key.rpartition("_")[2], "")
        yield SensorCurve(key=key, word=word, unit=unit, device=device, at_s=series[key].at_s, values=values)


def telemetry_summary(values: Sequence[float], unit: str, say: Say) -> str:
    mean, low, high = (number(value) for value in (sum(values) / len(values), min(values), max(values)))
    return say("Mean {mean}, from {low} to {high} {unit}").format(mean=mean, low=low, high=high, unit=unit).rstrip()


def telemetry_missing(machine: MachineTelemetry, say: Say) -> dict[str, list[str]]:
    """What no sensor of a machine could say, by the reason."""
    names, missing = _name_sensors(say), dict[str, list[str]]()
    for name, reason in machine.unavailable.items():
        missing.setdefault(say(reason), []).append(names.get(name, name))
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


# The profile of a step: its longest operators, and what to try first


def describe_profile(
    record: Record, *, run_folder: Path, width: int = 80, color: bool = False, encoding: str = "utf-8"
) -> str:
    """Where a step's time goes, for a terminal; empty where no step was profiled."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    draw_section(writer, build_profile(record, _, run_folder))
    return writer.getvalue()


def build_profile(record: Record, say: Say, run_folder: Path | None = None) -> FactSection | None:
    """Where the time of a step goes, operator by operator; the trace by its whole path where the folder is known."""
    found = record.environment.profile
    if found is None:
        return None
    facts = _list_facts(
        (say("step"), f"{number(found.seconds / found.steps)} s"),
        (say("nothing ran"), f"{100 * found.idle:.1f} %"),
        (say("launches a step"), number(found.launches / found.steps)),
        *((say("try first"), sentence) for sentence in suggest_speedups(found, record, say)),
        (say("trace"), found.trace and str((run_folder or Path(record.run_id)) / found.trace)),
        ("", found.trace and say("opens in ui.perfetto.dev")),
    )
    return FactSection(
        title=say("Where a step's time goes"),
        remark=say("{count} steps after those that count, under the profiler").format(count=found.steps),
        facts=facts,
        heads=(say("operator"), say("ms a step"), say("share"), say("calls a step"), say("MiB a step")),
        rows=[
            (
                use.name,
                number(1e3 * use.seconds / found.steps),
                f"{100 * use.seconds / found.seconds:.1f} %",
                number(use.calls / found.steps),
                number(round(use.size_bytes / found.steps / 2**20, 2)),
            )
            for use in (*found.operators, *([found.others] if found.others else []))
        ],
        left=frozenset({0}),
    )


OPERATORS = {
    "copies": ("copy_", "_to_copy", "clone", "contiguous", "cat", "index_select", "gather", "memcpy"),
    "updates": ("_fused_", "_foreach_", "_amp_"),
    "exchanges": ("allreduce", "all_reduce", "allgather", "all_gather", "reduce_scatter", "broadcast", "nccl", "gloo"),
    "matmuls": ("mm", "bmm", "addmm", "baddbmm", "linear", "convolution", "attention", "scaled_mm", "lstm", "gru"),
}
"""Parts of operators' names, by what they are for."""


def suggest_speedups(found: StepProfile, record: Record, say: Say) -> Iterator[str]:
    """What most likely pays, the largest share first; a step that is nearly all matmuls needs other arithmetic."""
    ranks = record.timeline.ranks
    whole = sum(trace.whole.wait_ns + trace.whole.compute_ns for trace in ranks)
    shares = {
        "waits": sum(trace.whole.wait_ns for trace in ranks) / whole if whole else 0.0,
        "idle": found.idle,
        **{name: _sum_share(found, parts) for name, parts in OPERATORS.items()},
    }
    # the share from which on it pays to look there first
    known = {
        "waits": (0.03, say("{share} of the counted time waits for data: more input_workers, or faster storage")),
        "idle": (
            0.15,
            say("nothing ran in {share} of a step, while the host prepared it: a larger batch, or compiled=blocks"),
        ),
        "copies": (0.1, say("{share} of a step copies data: see the trace for the callers")),
        "updates": (0.15, say("{share} of a step updates weights: a larger batch, or accumulate=2")),
        "exchanges": (0.15, say("{share} of a step exchanges gradients: a larger batch_per_device")),
        "matmuls": (0.7, say("{share} of a step is matmuls: a lower precision, or a device with more arithmetic")),
    }
    for name in sorted(known, key=lambda name: (name == "matmuls", -shares[name])):
        least, sentence = known[name]
        if shares[name] >= least:
            yield sentence.format(share=f"{100 * shares[name]:.0f} %")


def _sum_share(found: StepProfile, parts: tuple[str, ...]) -> float:
    taken = sum(use.seconds for use in found.operators if any(part in use.name.lower() for part in parts))
    return min(1.0, taken / found.seconds) if found.seconds else 0.0
