"""The library of published rows: those of what trainmark trains, and how other trainings scaled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from trainmark.analysis import clusters, shipped
from trainmark.record.errors import UsageError, nearest
from trainmark.record.published_row import PREFIX, PublishedDetail, PublishedRow, Source

FLAGPERF_REVISION = "0078403cff4cff3120a75ffdeb6ae734bae09377"
"""Of the pages that rows were read from."""
MAX_EPOCHS = 200
"""Results that took fewer items to their target count epochs; older rounds log nothing finer."""
MLPERF_REMARK = (
    "rates were reckoned from the result logs, p_train without evaluations; time is from run_start to run_stop"
)


def load_rows(workload: str | None = None) -> tuple[PublishedRow, ...]:
    """The rows of what trainmark trains, or those of one training, whichever it is."""
    if workload is None:
        return shipped.load_rows()
    if workload.casefold() not in (known := list_workloads()):
        raise UsageError(f"no published rows of {workload!r}; {nearest(workload, known)}")
    return tuple(row for row in (*shipped.load_rows(), *load_other_rows()) if row.workload == workload.casefold())


def list_workloads() -> tuple[str, ...]:
    """What there are published rows of."""
    return tuple(dict.fromkeys(row.workload for row in (*shipped.load_rows(), *load_other_rows())))


@cache
def load_other_rows() -> tuple[PublishedRow, ...]:
    """How other trainings scaled: FlagPerf's pages by the names of their cases, MLPerf's results as `mlperf-NAME`."""
    found: list[PublishedRow] = []
    pages = {row.source.address.rpartition("/training/")[2].removesuffix("/README.md") for row in shipped.load_rows()}
    taken: Counter[str] = Counter()
    for entry in clusters.load_table():
        if entry["round"] == "flagperf" and f"{entry['submitter']}/{entry['benchmark']}" in pages:
            continue  # it stands among the others, with its quality
        row = _make_row(entry)
        taken[row.name] += 1
        found.append(row if taken[row.name] == 1 else replace(row, name=f"{row.name}-{taken[row.name]}"))
    return tuple(found)


def _make_row(entry: Mapping[str, str]) -> PublishedRow:
    from_flagperf = entry["round"] == "flagperf"
    nodes, devices = int(entry["nodes"]), int(entry["devices"])
    topology = f"{nodes}x{devices // nodes}" if devices % nodes == 0 else f"{devices} devices"
    case, _, part = entry["benchmark"].partition(" (")
    training = entry["benchmark"].replace("-pytorch", "") if from_flagperf else f"mlperf-{case}"
    batch = float(entry["batch_per_device"] or 0)
    whole, train, rate, tokens = (
        float(entry[name]) if entry[name] else None
        for name in ("whole_per_s", "train_per_s", "items_per_s", "tokens_per_device_s")
    )
    words = (
        entry["round"],
        entry["submitter"],
        training.removeprefix("mlperf-"),
        entry["accelerator"],
        topology,
        entry["precision"],
    )
    measured = PublishedDetail(name="token/p/s", text=f"{tokens:g}", value=tokens, unit="tokens/s") if tokens else None
    return PublishedRow(
        name=PREFIX
        + re.sub(r"[^a-z0-9.]+", "-", " ".join((*words, f"bs{batch:g}" if batch else "")).lower()).strip("-"),
        source=_flagperf(entry["submitter"], case)
        if from_flagperf
        else _mlperf(entry["round"], entry["submitter"], case),
        vendor=entry["submitter"] if from_flagperf else _maker(entry["accelerator"]),
        device=entry["accelerator"] or "unknown",
        workload=training.casefold(),
        topology=topology,
        precision=entry["precision"],
        fix_hp=entry["fix_hp"] or (f"bs={batch:g}" if batch else None),
        batch_per_device=int(batch) if batch and batch == int(batch) else None,
        item="samples" if from_flagperf or float(entry["items_to_target"] or MAX_EPOCHS) >= MAX_EPOCHS else "epochs",
        e2e_time_s=float(entry["time_to_train_s"]) if entry["time_to_train_s"] else None,
        p_whole=whole,
        p_train=train if from_flagperf else rate,
        p_core=rate if from_flagperf else None,
        quality_name=None,
        quality_unit=None,
        quality=None,
        target=None,
        better=None,
        mem_used_gib=None,
        mem_total_gib=None,
        remark=part.rstrip(")") or None if from_flagperf else MLPERF_REMARK,
        details=(measured,) if measured else (),
    )


def _flagperf(vendor: str, case: str) -> Source:
    address = f"{clusters.SOURCES['flagperf']}/blob/{FLAGPERF_REVISION}/training/{vendor}/{case}/README.md"
    return Source(title=f"FlagPerf: {case} on {vendor}", address=address, date=None)


def _mlperf(round_: str, submitter: str, benchmark: str) -> Source:
    number = round_.removeprefix("mlperf-")
    address = f"{clusters.SOURCES['mlperf']}/training_results_v{number}"
    return Source(title=f"MLPerf Training {number}: {benchmark} by {submitter}", address=address, date=None)


def _maker(accelerator: str) -> str:
    word = accelerator.split()[0].casefold()
    return {"habana": "intel"}.get(word, word)
