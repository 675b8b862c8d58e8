"""Records and event logs with one thing wrong, by the thousand: each is read and shown, or refused in a sentence."""

from __future__ import annotations

import json
import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.damages import Mutation, mutations
from support.records import make_plan

from trainmark.analysis import comparison
from trainmark.analysis.audit_record import audit_document
from trainmark.analysis.scaling import find_scalings
from trainmark.features.report import output
from trainmark.features.scaling import after_sweep as scaling_table
from trainmark.features.watch import live_screen
from trainmark.features.watch.command import Watched
from trainmark.record import events, gather
from trainmark.record.errors import TrainmarkError
from trainmark.record.events import EventWriter
from trainmark.record.index import make_row
from trainmark.record.links import AllReduce
from trainmark.record.machine import Artifact, BatchTry, CpuInfo, DeviceInfo
from trainmark.record.plan import Plan
from trainmark.record.record import Record, parse
from trainmark.record.run_folder import HEAD_FILE, PLAN_FILE
from trainmark.record.store import Store, make_subject, read_record
from trainmark.view import FORMATS, compare_screen, table
from trainmark.view.describe import describe
from trainmark.view.publish import make_publishable

TRIES = int(os.environ.get("TRAINMARK_TRIES", "400"))
"""Mutations of each kind of document; the same ones every time, and more where somebody asks for them."""
LOOKS = 2 if TRIES < 10_000 else 8
"""How many of the views a record is shown in; which ones changes from record to record."""
OLD = sorted((Path(__file__).parent.parent / "fixtures" / "records").glob("schema*/*.json"))
SECOND = 1_000_000_000


def write_run(folder: Path) -> Path:
    """A run of two ranks with a sampler, a restart and every kind of event."""
    folder.mkdir(parents=True)
    plan = make_plan(topology="1x2", recipe_name="fill")
    (folder / PLAN_FILE).write_text(json.dumps(plan.to_json()), encoding="utf-8")
    head = {
        "run_id": folder.name,
        "created": "2026-01-01T00:00:00Z",
        "group": "b1653973",
        "item": "images",
        "target": {"name": "acc1", "unit": "%", "better": "higher"},
        "reference_global_batch": 256,
    }
    (folder / HEAD_FILE).write_text(json.dumps(head), encoding="utf-8")
    for rank in range(2):
        write(folder / f"rank{rank}.jsonl", of_rank(rank))
    write(folder / "telemetry0.jsonl", of_sampler())
    tried = [BatchTry(batch=size, items_per_s=9.5, step_s=0.8, memory_bytes=2**30) for size in (4, 8)]
    write(folder / "launcher.jsonl", [events.BatchFound(batch_per_device=8, reason="it fits", took_s=2.5, curve=tried)])
    return folder


def write(path: Path, kinds: list[events.Event]) -> None:
    log = EventWriter(path)
    for event in kinds:
        log.write(event)
    log.close()


def of_rank(rank: int) -> list[events.Event]:
    def steps(first: int, count: int) -> events.Steps:
        return events.Steps(
            first=first,
            wait_ns=[SECOND // 100] * count,
            compute_ns=[SECOND + rank + step * 1000 for step in range(count)],
            exchange_ns=[SECOND // 10] * count,
            items=[8] * count,
            loss=[2.5 - 0.1 * step for step in range(count)],
        )

    begin = events.Begin(rank=rank, host="here", pid=2**22 + 1 + rank, startup_ns=SECOND)
    machine = events.EnvironmentSeen(
        trainmark="0.1.0",
        python="3.11",
        torch="2.6",
        device=DeviceInfo(type="lumen", name="Lumen L9", count_visible=2, memory_bytes=2**36, driver="1.2"),
        cpu=CpuInfo(name="A processor", logical_cores=4, usable_cores=4, memory_bytes=2**34),
        threads=2,
        variables={"OMP_NUM_THREADS": "2"},
    )
    proof = events.PrecisionSeen(
        asked="amp-bf16",
        ran="amp-bf16",
        computed={"conv": {"bfloat16": 53}},
        multiplications={"conv": {"bfloat16": 10**9}},
        weights={"float32": 161},
        tf32={"matmul": False},
        autocast="bfloat16",
        loss_scale=65536.0,
    )
    phases = {"startup": SECOND, "init": SECOND, "evaluate": SECOND, "checkpoint": SECOND, "other": 5}
    return [
        begin,
        machine,
        events.LinksMeasured(
            results=[
                AllReduce(size_bytes=size, repeats=5, median_s=1e-3, bus_gigabytes_per_s=2.0) for size in (4096, 2**26)
            ]
        ),
        events.Ready(steps_per_epoch=100, items_per_step=16.0, first_step=0, at_ns=5 * SECOND),
        proof,
        steps(0, 12),
        events.Saved(step=12, phases_ns=phases),
        events.Failed(rank=rank, exit_code=4, sentence="it broke", at_ns=20 * SECOND, consequence=rank == 1),
        msgspec.structs.replace(begin, startup_ns=40 * SECOND, restart=1),
        events.Resumed(step=12, epoch=0.1, damaged=["checkpoint step-14 is damaged"]),
        events.Ready(steps_per_epoch=100, items_per_step=16.0, first_step=12, at_ns=45 * SECOND),
        steps(12, 16),
        events.Alive(phase="evaluate", samples=50),
        events.Evaluated(
            step=28, epoch=0.3, values={"acc1": 12.5, "val_loss": None}, samples=100, elapsed_ns=70 * SECOND
        ),
        events.Phases(phases_ns=phases, memory_peak_bytes=2**30, at_ns=75 * SECOND),
        events.FlopsCounted(per_item=4.1e9, peak_tflops=9.0, peak_source="a data sheet"),
        events.ArtifactsLeft(artifacts=[Artifact(file="sample.wav", caption="a sample")]),
        events.NoSample(reason="it is too early"),
        events.End(ended="60 steps were done", skipped=["a.jpeg"], facts={"padding": 0.1, "odd": None}),
    ]  # fmt: skip


def of_sampler() -> list[events.Event]:
    begin = events.SamplerBegin(
        host="here", pid=7, first_rank=0, launched_ns=0, at_ns=SECOND, every_s=0.5, devices=[0, 1], cores=4
    )

    def readings(tick: int) -> list[events.DeviceReading]:
        return [
            events.DeviceReading(
                device=device,
                memory_used_bytes=2e9,
                memory_total_bytes=6e10,
                power_w=300.0 + tick,
                energy_j=150.0 * tick,
                temperature_c=60.0,
                utilisation_percent=97.0,
                clock_mhz=1400.0,
                throttled=["heat"] if tick % 2 else [],
                ecc_errors=float(tick > 5),
            )
            for device in range(2)
        ]

    found: list[events.Event] = [begin]
    for tick in range(1, 40):
        at_ns = 2 * tick * SECOND
        found.append(
            events.HostSample(at_ns=at_ns, busy_s=3.0 * tick, own_s=2.0 * tick, memory_used_bytes=10**9, load=3.0)
        )
        found.append(events.DeviceSamples(at_ns=at_ns, readings=readings(tick)))
    found.append(events.Unavailable(at_ns=80 * SECOND, fields={"clock_mhz": "no sensor says it"}))
    return [*found, events.SamplerEnd(at_ns=81 * SECOND, cpu_s=0.3)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("store") / "runs" / "resnet50-fill-1x2-fp32-20260101T000000-abcdef")


@pytest.fixture(scope="module")
def bases(run: Path) -> list[dict[str, Any]]:
    """Records of the first schema, and of this one with all that a record can hold, its series inside and beside it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gather, "MAX_INSIDE", 10)
        long = gather.gather_record(run)
    assert long.series_file
    new = [gather.gather_record(run), long]
    return [json.loads(path.read_bytes()) for path in OLD] + [json.loads(record.dumps()) for record in new]


def some(found: list[Mutation]) -> list[Mutation]:
    chosen = random.Random(7)
    return chosen.sample(found, min(TRIES, len(found)))


def with_fingerprint(document: Any) -> Any:
    """As somebody writes it who means it: a changed plan has the fingerprint of what it says now."""
    plan = document.get("plan")
    if not isinstance(plan, dict) or not isinstance(plan.get("data"), dict):
        return document
    try:
        changed = {**plan, "data": {**plan["data"], "synthetic": plan["data"].get("generated")}}
        return {**document, "plan": {**plan, "fingerprint": msgspec.convert(changed, Plan).fingerprint}}
    except (msgspec.ValidationError, TypeError, ValueError):
        return document


def views(record: Record, good: Record, store: Store) -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that may be asked of a record."""

    def compare() -> None:
        sides = make_subject("good", [good]), make_subject("bad", [record])
        for a, b in (sides, sides[::-1]):
            found = comparison.compare(a, b, metric="p_core", threshold=0.03, anyway=True)
            compare_screen.render(found, width=100)

    def scaling() -> None:
        scaling_table.render_scalings(find_scalings([good, record], "p_core"), width=100)

    yield "list", lambda: json.dumps(make_row(record), allow_nan=False).encode()
    yield "show", lambda: describe(record, width=100).encode()
    yield "show --json", lambda: record.dumps().encode()
    yield "run", lambda: table.render([record, good], width=100).encode()
    yield "compare", compare
    yield "scaling", scaling
    yield "report --publish", lambda: make_publishable([record])
    for form in FORMATS:
        for language in ("en", "zh"):
            yield (
                form,
                lambda form=form, language=language: output.render(  # type: ignore[misc]
                    form, [record], store=store, language=language
                ).encode(),
            )


@pytest.mark.slow
def test_a_record_with_anything_wrong_in_it_is_read_and_shown_or_refused_in_a_sentence(
    bases: list[dict[str, Any]], tmp_path: Path
) -> None:
    store, file = Store(tmp_path), tmp_path / "record.json"
    crashed: list[str] = []
    read = 0
    for base in bases:
        good = Record.from_json(base)
        for mutation in some(mutations(base)):
            document = with_fingerprint(mutation.document)
            file.write_text(json.dumps(document), encoding="ascii")
            looks: list[tuple[str, Callable[[], object]]] = [("audit", partial(audit_document, document, "record"))]
            try:
                record = read_record(file)
            except TrainmarkError as error:
                assert str(file) in str(error) and "\n" not in str(error), mutation
            else:
                read += 1
                every = list(views(record, good, store))
                looks += random.Random(read).sample(every, LOOKS)
            crashed += [f"{mutation} of {good}: {line}" for line in crashes(looks)]
    assert crashed == []
    assert read > TRIES / 2


def crashes(looks: list[tuple[str, Callable[[], object]]]) -> Iterator[str]:
    """What ends in anything but a result or a sentence."""
    for name, look in looks:
        try:
            look()
        except TrainmarkError:
            continue
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            yield f"{name}: {type(error).__name__} {error} in {Path(at.filename).name}, line {at.lineno}"


@pytest.mark.slow
def test_an_event_log_with_anything_wrong_in_it_is_gathered_and_watched_or_refused_in_a_sentence(
    run: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    folder = tmp_path / "runs" / run.name
    shutil.copytree(run, folder)
    screen: Any = {"width": 100, "color": False, "encoding": "utf-8"}
    crashed: list[str] = []
    tried = 0
    for file in sorted(run.iterdir()):
        lines = file.read_bytes().splitlines() if file.suffix == ".jsonl" else [file.read_bytes()]
        found = [(place, mutation) for place, line in enumerate(lines) for mutation in mutations(json.loads(line))]
        for place, mutation in random.Random(7).sample(found, min(TRIES // 8, len(found))):
            changed = [*lines[:place], mutation.text.encode(), *lines[place + 1 :]]
            (folder / file.name).write_bytes(b"\n".join([*changed, b""]))
            looks: list[tuple[str, Callable[[], object]]] = [
                ("run", lambda: Record.from_json(parse(gather.gather_record(folder).dumps().encode()))),
                ("watch --json", lambda: msgspec.json.encode(live_screen.to_json(Watched(folder, store).read()))),
                ("watch", lambda: live_screen.draw(Watched(folder, store).read(), **screen)),
                ("runs", store.contents),
                ("show", lambda: describe(gather.gather_record(folder), **screen)),
            ]
            looks = [looks[0], looks[1 + tried % 4]]
            tried += 1
            crashed += [f"{mutation} in line {place + 1} of {file.name}: {line}" for line in crashes(looks)]
        shutil.copy(file, folder / file.name)
    assert crashed == []
