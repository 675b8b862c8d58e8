"""`trainmark package`: writes runs as an MLPerf submission folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmark.analysis import device_names as names
from trainmark.cli.terminal import mark_result_saved, open_console, print_status, screen_options
from trainmark.features.mlperf.audit_source import audit_results
from trainmark.features.mlperf.log import find_result_folders
from trainmark.features.mlperf.report_format import (
    MlperfRun,
    choose_division,
    describe_platform,
    format_log,
    open_run,
)
from trainmark.record import escape
from trainmark.record.atomic_files import atomic_folder
from trainmark.record.audit import is_wrong
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.store import Store, default_folder, find_records
from trainmark.view.audit_screen import render
from trainmark.view.publish import make_publishable

NAME = "package"
GROUP = "Publish"
HELP = "Write runs as an MLPerf Training submission folder."
EXAMPLES = """\
  trainmark package mlperf a1 b2 c3 d4 e5 --org Lumen --out lumen-4.0    five runs of one plan, five seeds
  trainmark package mlperf a1 b2 c3 d4 e5 --org Lumen --out lumen-4.0 --division open --status onprem
  python -m mlperf_logging.package_checker lumen-4.0 training 4.0.0      mlcommons' own check

exit code: 5 where the audit of what was written finds something wrong"""

STATUSES = {
    "research": "Research, Development, or Internal (RDI)",
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "preview": "Preview",
}
"""System status in logs, and in its description."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("form", choices=("mlperf",), metavar="FORM", help="mlperf: MLPerf Training, for workloads that are benchmarks")
    add("runs", nargs="+", metavar="RUN", help="run ids, groups or record files whose events are in the store")
    add("--out", type=Path, required=True, metavar="DIR", help="the folder to write, which must not exist yet")
    add("--org", required=True, metavar="NAME", help="who submits the result")
    add("--system", default="", metavar="NAME", help="the system's name (default: by its devices)")
    add("--division", choices=("closed", "open"), metavar="D", help="closed or open (default: closed where it may be)")
    add(
        "--status",
        choices=tuple(STATUSES),
        default="research",
        metavar="S",
        help="of the system: research, onprem, cloud or preview (default: research)",
    )
    add("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    safe = make_publishable(find_records(args.runs, store)).records  # a doubt may name a host
    runs = [open_run(record, store.runs / record.run_id) for record in safe]
    division = choose_division(runs, args.division)
    place = write_package(runs, args.out, org=args.org, status=args.status, system=args.system, division=division)
    mark_result_saved()
    for reason in dict.fromkeys(reason for run in runs for reason in run.why_open) if division == "open" else ():
        print_status(f"open division: {reason}")
    audits = [audit for _, results in audit_results(find_result_folders(place)) for audit in results]
    screen = open_console()
    screen.file.write(render(audits, everything=False, **screen_options(screen)))
    screen.file.write(escape.terminal(f"{place}: {len(runs)} runs, {division} division") + "\n")
    newest = runs[0].benchmark.rounds[-1]
    print_status(f"check it with: python -m mlperf_logging.package_checker {args.out} training {newest}.0")
    return 5 if is_wrong(audits) else 0


# The folder: logs, system description, how it was run

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


def write_package(
    runs: Sequence[MlperfRun], out: Path, *, org: str, status: str, system: str = "", division: str
) -> Path:
    """Writes one result of one benchmark, and returns the folder of its logs; UsageError where the runs are not one."""
    chosen = sorted(runs, key=lambda run: run.record.created)
    check_runs(chosen)
    record, benchmark = chosen[0].record, chosen[0].benchmark.name
    name = names.slugify(system or describe_platform(record), "system")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists; name another folder with --out, or remove it")
    description = {
        **describe_system(record),
        "submitter": org,
        "division": division,
        "status": STATUSES[status],
        "system_name": name,
    }
    place, code = Path("results", name, benchmark), Path("benchmarks", benchmark, "implementations", "trainmark")
    texts = {
        place / f"result_{number}.txt": format_log(run, division=division, org=org, platform=name, status=status)
        for number, run in enumerate(chosen)
    }
    texts[Path("systems", f"{name}.json")] = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    texts[code / "README.md"] = _write_readme(chosen)
    texts[code / "recipe.json"] = json.dumps(dict(record.plan.recipe), indent=1) + "\n"
    try:
        with atomic_folder(out) as folder:
            for path, text in texts.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotReadyError(f"{out} could not be written: {error.strerror}") from error
    return out / place


def check_runs(runs: Sequence[MlperfRun]) -> None:
    """UsageError where the runs are not one result: unlike, or with one seed twice."""
    unlike = {}
    for record in (run.record for run in runs):
        recipe = {name: value for name, value in record.plan.recipe.items() if name != "seed"}
        known = (record.plan.workload, record.plan.topology, record.precision, record.environment.device.name)
        unlike[json.dumps([recipe, *known, record.plan.data.name], sort_keys=True)] = record.run_id
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


def describe_system(record: Record) -> dict[str, str]:
    """The system by the fields of the rules; empty where the run did not collect it."""
    seen, topology = record.environment, Topology.parse(record.plan.topology)
    on_cpu = seen.device.type == "cpu"
    software = {
        "Python": seen.python,
        "numpy": seen.numpy,
        "driver": seen.device.driver,
        seen.platform.plugin or "plugin": seen.platform.plugin_version,
    }
    known = {
        "number_of_nodes": topology.nodes,
        "host_processor_model_name": seen.cpu.name,
        "host_processor_vcpu_count": seen.cpu.logical_cores,
        "host_memory_capacity": _format_gib(seen.cpu.memory_bytes),
        "accelerators_per_node": 0 if on_cpu else topology.devices_per_node,
        "accelerator_model_name": "" if on_cpu else seen.device.name,
        "accelerator_memory_capacity": "" if on_cpu else _format_gib(seen.device.memory_bytes),
        "framework": f"PyTorch {seen.torch}".strip(),
        "other_software_stack": ", ".join(f"{name} {version}" for name, version in software.items() if version),
        "operating_system": " ".join(part for part in (seen.distribution, seen.os) if part),
        "sw_notes": f"trainmark {record.trainmark}, precision {record.precision}",
    }
    return {name: str(known.get(name) if known.get(name) is not None else "") for name in DESCRIPTION_FIELDS}


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
