"""The table FlagPerf publishes for language models: tokens a second and device, how ranks share the network, MFU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trainmark import workloads
from trainmark.published.own_rows import rounded, written
from trainmark.published.write import Strong, WrittenSection, table
from trainmark.spec import loss_bands
from trainmark.spec.language import Say
from trainmark.spec.topology import Topology

if TYPE_CHECKING:
    from trainmark.spec.published_row import PublishedRow
    from trainmark.spec.record import Record

UNKNOWN = "/"
COUNT = "6 x parameters"
"""By which such pages count FLOPs."""


def is_meant(section: WrittenSection) -> bool:
    known = workloads.facts_of(section.records[0])
    return known is not None and known.item == "tokens"


def metrics(section: WrittenSection, say: Say) -> Iterator[tuple[str, str, str]]:
    """Rows of the table of metrics: a name, where its value stands, what it means."""

    def see(word: str) -> str:
        return say("{word}, see Performance").format(word=word)

    record = section.records[0]
    known, data = workloads.facts_of(record), record.plan.data
    task = known.task if known else UNKNOWN
    yield say("Task category"), say(task), ""
    yield say("Model"), section.first.workload, ""
    yield say("Data set"), data.name, say("synthetic, not the real set") if data.synthetic else ""
    yield say("Data precision"), see("precision"), say("read back from what ran")
    yield say("Hyper-parameter changes"), see("parallel"), say("how ranks share the network")
    yield say("Hyper-parameter changes"), see("fix_hp"), say("computed against the reference recipe; / where none")
    for name in dict.fromkeys(f"{row.vendor} {row.device}" for row in section.rows):
        yield say("Device name"), name, ""
    yield say("Device memory"), see("mem"), say("unit: GiB; peak of the worst rank / memory of one device")
    yield say("Compute utilisation"), see("MFU"), say("6 FLOPs for each parameter and token")
    yield Strong(say("Throughput")), Strong(see("token/p/s")), say("tokens a second and device, of p_train")


def performance(
    section: WrittenSection,
    configuration: Callable[[PublishedRow], str],
    memory: Callable[[PublishedRow], str],
    say: Say,
) -> Iterator[str]:
    """The table of runs; the first column and memory are written as in every other table."""
    heads = (
        say("Configuration"),
        "precision",
        "parallel",
        "fix_hp",
        "token/p/s",
        "loss",
        say("Loss aligned"),
        "mem",
        "MFU",
    )
    yield from table(
        heads,
        (
            (
                configuration(row),
                row.precision,
                shared(record),
                row.fix_hp or "",
                _per_device(row),
                written(row.quality) or UNKNOWN,
                aligned(record),
                memory(row),
                _utilisation(record),
            )
            for row, record in zip(section.rows, section.records, strict=True)
        ),
    )


def shared(record: Record) -> str:
    """How ranks share the network, in the pages' letters: DP for replicas, FSDP for what is sharded, TP for blocks that
    devices compute together."""
    topology, way = Topology.parse(record.plan.topology), record.plan.recipe.get("parallel", "ddp")
    tensor = int(record.plan.recipe.get("tensor_parallel", 1))
    blocks = f"TP{tensor}" if tensor > 1 else ""
    if way == "fsdp":
        return f"FSDP{topology.devices // tensor}{blocks}"
    if way == "hsdp":
        return f"DP{topology.nodes}FSDP{topology.devices_per_node // tensor}{blocks}"
    return f"PP1DP{topology.devices}TP1"


def aligned(record: Record) -> str:
    """Whether every evaluation lies where public runs of the recipe lay; nothing where none can be held to them."""
    known = workloads.facts_of(record)
    band = loss_bands.band_of(record.plan, known.bands) if known else None
    places = [one.place for one in loss_bands.judged(band, record.quality.history)] if band else []
    return str(all(place == "in the band" for place in places)) if places else UNKNOWN


def _per_device(row: PublishedRow) -> str:
    if row.p_train is None:
        return UNKNOWN
    return written(rounded(row.p_train / Topology.parse(row.topology).devices))


def _utilisation(record: Record) -> str:
    used, flops = record.metrics.get("mfu"), record.environment.flops
    if used is None or used.value is None or flops is None or COUNT not in flops.otherwise:
        return UNKNOWN
    return f"{written(rounded(used.value * flops.otherwise[COUNT] / flops.per_item, 3))}%"
