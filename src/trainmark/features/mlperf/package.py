"""Writes the runs of a result as an MLPerf submission folder: logs, system description, how it was run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmark.analysis import device_names as names
from trainmark.features.mlperf.report_format import MlperfRun, choose_division, describe_platform, format_log
from trainmark.record.atomic_files import atomic_folder
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import Topology
from trainmark.record.record import Record

STATUSES = {
    "research": "Research, Development, or Internal (RDI)",
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "preview": "Preview",
}
"""System status in logs, and in its description."""
DESCRIPTION_FIELDS = (
    "submitter", "division", "status", "system_name", "number_of_nodes", "host_processors_per_node",
    "host_processor_model_name", "host_processor_core_count", "host_processor_vcpu_count", "host_processor_frequency",
    "host_processor_caches", "host_processor_interconnect", "host_memory_capacity", "host_storage_type",
    "host_storage_capacity", "host_networking", "host_networking_topology", "host_memory_configuration",
    "accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect", "accelerator_frequency",
    "accelerator_on-chip_memories", "accelerator_memory_configuration", "accelerator_memory_capacity",
    "accelerator_interconnect", "accelerator_interconnect_topology", "cooling", "hw_notes", "framework",
    "other_software_stack", "operating_system", "sw_notes",
)  # fmt: skip
"""The required fields of a system description."""


@dataclass(frozen=True, kw_only=True)
class Package:
    folder: Path
    results: Path
    """The folder of the logs."""
    division: str
    round: str
    why_open: tuple[str, ...]


def write_package(
    runs: Sequence[MlperfRun], out: Path, *, org: str, status: str, system: str = "", division: str | None = None
) -> Package:
    """Writes one result of one benchmark; UsageError where the runs are not one."""
    chosen = sorted(runs, key=lambda run: run.record.created)
    check_runs(chosen)
    division = choose_division(chosen, division)
    first = chosen[0]
    name = names.slugify(system or describe_platform(first.record), "system")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists; name another folder with --out, or remove it")
    place = Path("results") / name / first.benchmark.name
    description = {**describe_system(first.record), "submitter": org, "division": division, "status": STATUSES[status]}
    try:
        with atomic_folder(out) as folder:
            (folder / place).mkdir(parents=True)
            for number, run in enumerate(chosen):
                text = format_log(run, division=division, org=org, platform=name, status=status)
                (folder / place / f"result_{number}.txt").write_text(text, encoding="utf-8")
            (folder / "systems").mkdir()
            _write_json(folder / "systems" / f"{name}.json", {**description, "system_name": name})
            code = folder / "benchmarks" / first.benchmark.name / "implementations" / "trainmark"
            code.mkdir(parents=True)
            (code / "README.md").write_text(_write_readme(chosen), encoding="utf-8")
            _write_json(code / "recipe.json", dict(first.record.plan.recipe))
    except OSError as error:
        raise NotReadyError(f"{out} could not be written: {error.strerror}") from error
    reasons = tuple(dict.fromkeys(reason for run in chosen for reason in run.why_open))
    return Package(
        folder=out, results=out / place, division=division, round=first.benchmark.rounds[-1], why_open=reasons
    )


def check_runs(runs: Sequence[MlperfRun]) -> None:
    """UsageError where the runs are not one result: unlike, or with one seed twice."""
    unlike = {_identity(run.record): run.record.run_id for run in runs}
    if len(unlike) > 1:
        one, other = list(unlike.values())[:2]
        raise UsageError(f"runs {one} and {other} are not of one result: they differ in more than their seed")
    seeds: dict[Any, str] = {}
    for run in runs:
        seed = run.record.plan.recipe.get("seed")
        if seed in seeds:
            raise UsageError(
                f"runs {seeds[seed]} and {run.record.run_id} have one seed, {seed}: they are not independent; run "
                "again with another --seed"
            )
        seeds[seed] = run.record.run_id


def _identity(record: Record) -> str:
    plan = record.plan
    recipe = {name: value for name, value in plan.recipe.items() if name != "seed"}
    return json.dumps(
        [plan.workload, recipe, plan.topology, record.precision, record.environment.device.name, plan.data.name],
        sort_keys=True,
    )


def describe_system(record: Record) -> dict[str, str]:
    """The system by the fields of the rules; empty where the run did not collect it."""
    seen, topology = record.environment, Topology.parse(record.plan.topology)
    on_cpu = seen.device.type == "cpu"
    memory = seen.device.memory_bytes
    known = {
        "number_of_nodes": topology.nodes,
        "host_processor_model_name": seen.cpu.name,
        "host_processor_vcpu_count": seen.cpu.logical_cores,
        "host_memory_capacity": _format_gib(seen.cpu.memory_bytes),
        "accelerators_per_node": 0 if on_cpu else topology.devices_per_node,
        "accelerator_model_name": "" if on_cpu else seen.device.name,
        "accelerator_memory_capacity": "" if on_cpu else _format_gib(memory),
        "framework": f"PyTorch {seen.torch}".strip(),
        "other_software_stack": _describe_software(record),
        "operating_system": " ".join(part for part in (seen.distribution, seen.os) if part),
        "sw_notes": f"trainmark {record.trainmark}, precision {record.precision}",
    }
    return {name: str(known.get(name) if known.get(name) is not None else "") for name in DESCRIPTION_FIELDS}


def _describe_software(record: Record) -> str:
    seen = record.environment
    parts = {
        "Python": seen.python,
        "numpy": seen.numpy,
        "driver": seen.device.driver or "",
        seen.platform.plugin or "plugin": seen.platform.plugin_version or "",
    }
    return ", ".join(f"{name} {version}" for name, version in parts.items() if version)


def _format_gib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:.0f} GiB"


def _write_readme(runs: Sequence[MlperfRun]) -> str:
    """How to run it again, in Markdown."""
    record = runs[0].record
    plan = record.plan
    seeds = " ".join(str(run.record.plan.recipe.get("seed")) for run in runs)
    words = f"--recipe {plan.recipe_name} --topology {plan.topology} --precision {plan.precision}"
    return f"""# {runs[0].benchmark.name} by trainmark {record.trainmark}

Source: revision {record.revision or "of the installed package"}. The recipe's values are in recipe.json.
One run for each seed of {seeds}, where /data is the data set's folder:

    trainmark run {plan.workload} {words} --seed SEED --data /data

The logs were made from the event files of these runs; each names its run and the SHA-256 of rank 0's events.
run_start is a worker's first line, before it opens any data. Caches were not cleared.
"""


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
