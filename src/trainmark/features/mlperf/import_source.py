"""MLPerf Training logs as published rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainmark import workloads
from trainmark.analysis import device_names as names
from trainmark.analysis.published_library import FoundPage, PublishedPage
from trainmark.features.mlperf.audit_source import audit_results, recognises as recognises
from trainmark.features.mlperf.benchmarks import find_unit
from trainmark.features.mlperf.log import (
    ResultFolder,
    as_number,
    compute_time_to_train,
    compute_training_rate,
    compute_whole_rate,
    count_samples,
    find_convergence,
    find_result_folders,
    mean_known,
)
from trainmark.record.audit import collect_findings
from trainmark.record.checks import CheckResult
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedDetail, PublishedRow, Source

RUN_TIME = "time is from run_start to run_stop, without initialisation"


def make_page(folder: ResultFolder) -> PublishedPage:
    """A result as a page of one row, with the lines that could not be read."""
    org = next((log.word("submission_org") for log in folder.logs if log.word("submission_org")), "")
    parts = ("mlperf", folder.round or "", org, folder.system or folder.path.stem)
    rows = names.name_rows([_make_row(folder)] if folder.logs else [], "-".join(part for part in parts if part))
    return PublishedPage(title=folder.title, rows=rows, unread=tuple(_list_unread(folder)), was_read=True)


def _list_unread(folder: ResultFolder) -> Iterator[str]:
    yield from folder.unreadable
    for log in folder.logs:
        for line, why in log.damages[:20]:
            yield f"{log.name}, line {line}: {why}"
        if len(log.damages) > 20:
            yield f"{log.name}: {len(log.damages) - 20} more lines are damaged"


def _make_row(folder: ResultFolder) -> PublishedRow:
    first, described = folder.logs[0], folder.description or {}
    known = folder.known
    facts = next((one for one in workloads.all_facts() if known and one.name == known.workload), None)
    topology = _parse_topology(described)
    device = names.parse_device(
        str(described.get("accelerator_model_name") or first.word("submission_platform") or "unknown")
    )
    batch = first.number("global_batch_size")
    dropped, runs = (known.dropped, known.runs) if known else (1, 1)
    time_s = compute_time_to_train(folder.logs, dropped, runs)
    percent = facts is not None and facts.quality.unit == "%"
    goal = known.target_in(folder.round) if known else None
    done = [log for log in folder.logs if log.status == "success"]
    ends = [value for log in done if log.evaluations and (value := as_number(log.evaluations[-1].value)) is not None]
    quality = mean_known(ends)
    share = 100 if percent else 1
    return PublishedRow(
        name="",
        source=Source(
            title=f"MLPerf Training {folder.round or ''} {folder.title}".replace("  ", " "),
            address=str(folder.path),
            date=None,
        ),
        vendor=device.vendor,
        device=device.name,
        workload=(known.workload if known else "") or folder.benchmark or names.UNKNOWN,
        topology=str(topology) if topology else names.UNKNOWN,
        precision=first.word("lowest_numerical_precision_in_linear") or names.UNKNOWN,
        fix_hp=f"bs={batch / topology.devices:g}" if batch and topology else None,
        batch_per_device=_divide_batch(batch, topology, first.number("gradient_accumulation_steps")),
        item=known.item if known else "samples",
        e2e_time_s=time_s,
        p_whole=mean_known([compute_whole_rate(log) for log in done]),
        p_train=mean_known([compute_training_rate(log) for log in done]),
        p_core=None,
        quality_name=facts.quality.name if facts else "eval_accuracy",
        quality_unit=facts.quality.unit if facts else None,
        quality=None if quality is None else quality * share,
        target=None if goal is None else goal * share,
        better=(known.better if known else "") or None,
        mem_used_gib=None,
        mem_total_gib=None,
        remark=RUN_TIME,
        line=None,
        framework=names.find_framework(str(described.get("framework") or "")),
        details=tuple(_list_details(folder, batch)),
    )


def _list_details(folder: ResultFolder, batch: float | None) -> Iterator[PublishedDetail]:
    def detail(name: str, value: object, unit: str | None = None) -> PublishedDetail:
        return PublishedDetail(name=name, text=str(value), value=as_number(value), unit=unit)

    done = [log for log in folder.logs if log.status == "success"]
    yield detail("round", folder.round or "none of those known")
    yield detail("division", folder.division)
    for key in ("submission_org", "submission_platform"):
        if word := folder.logs[0].word(key):
            yield detail(key.removeprefix("submission_"), word)
    yield detail("runs", len(folder.logs))
    yield detail("converged", len(done))
    if batch is not None:
        yield detail("global_batch", batch)
    places = [place for log in done if (place := find_convergence(log)) is not None]
    if places:
        counted = any("samples_count" in event.place for event in done[0].evaluations)
        unit = "samples" if counted else find_unit(folder.benchmark, places[-1]) or "epochs"
        yield detail(f"{unit}_to_target", mean_known(places), unit)
    trained = [count_samples(log) for log in done]
    if (mean := mean_known(trained)) is not None:
        yield detail("samples_trained", mean, "samples")


def _parse_topology(described: Mapping[str, Any]) -> Topology | None:
    nodes, devices = (_parse_count(described.get(name)) for name in ("number_of_nodes", "accelerators_per_node"))
    return Topology(nodes=nodes, devices_per_node=devices) if nodes and devices else None


def _parse_count(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,6}", text) else None


def _divide_batch(batch: float | None, topology: Topology | None, accumulate: float | None) -> int | None:
    if batch is None or topology is None:
        return None
    share = batch / topology.devices / (accumulate or 1)
    return int(share) if share == int(share) and share > 0 else None


def pages(word: str | Path) -> Iterator[FoundPage]:
    """One per result folder."""
    for result in find_result_folders(Path(word)):
        digests = "\n".join(f"{log.name} {log.sha256}" for log in result.logs)
        content = hashlib.sha256(digests.encode()).digest()
        yield FoundPage(name=str(result.path), page=make_page(result), content=content)


def audit_rows(place: Path) -> Iterator[tuple[PublishedRow, tuple[CheckResult, ...]]]:
    """One row per result folder below a place, with its findings."""
    for result, found in audit_results(find_result_folders(place)):
        for row in make_page(result).rows[:1]:
            yield row, tuple(collect_findings(found))
