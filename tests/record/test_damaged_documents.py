"""Records and event logs with one thing wrong, by the thousand: each is read and shown, or refused in a sentence."""

from __future__ import annotations

import json
import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.clean_records import ON_A_CARD, RESTARTED
from support.damages import Mutation, mutations

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
from trainmark.record.plan import Plan
from trainmark.record.recipe import Limits
from trainmark.record.record import Record, parse
from trainmark.record.store import Store, make_subject, read_record
from trainmark.view import FORMATS, compare_screen, table
from trainmark.view.describe import describe
from trainmark.view.publish import make_publishable

TRIES = int(os.environ.get("TRAINMARK_TRIES", "400"))
"""Mutations of each kind of document; the same ones every time, and more where somebody asks for them."""
LOOKS = 2 if TRIES < 10_000 else 8
"""How many of the views a record is shown in; which ones changes from record to record."""
OLD = sorted((Path(__file__).parent.parent / "fixtures" / "records").glob("schema*/*.json"))


RUN = replace(
    RESTARTED,
    recipe_name="fill",
    limits=Limits(steps=75),
    topology="1x2",
    ranks=2,
    group="b1653973",
    power=True,
    facts={"padding": 0.1, "odd": 2.0},
    fill=ON_A_CARD.fill,
    artifacts=({"file": "sample.wav", "caption": "a sample"},),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks with a sampler, a restart and nearly every kind of event."""
    store = tmp_path_factory.mktemp("store")
    folder = store / "runs" / RUN.leave(store).run_id
    log = EventWriter(folder / "rank0.jsonl")
    log.write(events.Alive(phase="evaluate", samples=50))
    log.write(events.NoSample(reason="it is too early"))
    log.write(events.StretchTimed(host_ns=10**9, device_ns=10**9))
    log.write(events.Resumed(step=50, epoch=0.1, damaged=["checkpoint step-54 is damaged"]))
    log.close()
    return folder


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
        lines = [*filter(None, file.read_bytes().split(b"\n"))] if file.suffix == ".jsonl" else [file.read_bytes()]
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
