"""Judges the logs of a verify: which rank, step and layer are wrong, or whether the software is not deterministic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

import trainmark
from trainmark.features.verify.document import (
    NUMBERS_FILE,
    SCHEMA,
    STAGES,
    Numbers,
    StepNumbers,
    Verdict,
    VerifyDocument,
    VerifyTelemetry,
)
from trainmark.record import events
from trainmark.record.atomic_files import write_atomic
from trainmark.record.checks import format_count
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.events import BitDifference, Operators
from trainmark.record.plan import Plan
from trainmark.record.record import Record
from trainmark.record.run_folder import HEAD_FILE, RankLog, RunFolder
from trainmark.record.store import LAST, Store

FOLDER = "verify"
"""Folder of verifies in a store."""
MAX_KEPT = 200
"""Differences kept in a document; more of them add no information."""
EXIT_CODES: dict[Verdict, int] = {"equal": 0, "wrong": 5, "unsettled": 7, "incomplete": 4}


def make_document(folder: Path, switches: dict[str, str]) -> VerifyDocument:
    """Collects what the ranks in a folder found; `switches` are the platform's variables and their values."""
    opened = RunFolder(folder)
    opened.update()
    logs = opened.logs
    if opened.head is None or opened.plan is None or not logs:
        raise UsageError(f"{folder} does not hold a verify")
    operators = merge_operators(logs)
    found = [each for log in logs for event in log.rounds for each in event.found]
    differences = find_causes(found)
    rounds = [event for event in logs[0].rounds if event.round]
    complete = all(log.end for log in logs) and bool(rounds) and all(_is_settled(log) for log in logs)
    verdict = judge(differences, operators, complete=complete)
    environment = logs[0].environment
    document = VerifyDocument(
        verify_id=opened.head.run_id,
        created=opened.head.created,
        trainmark=trainmark.__version__,
        plan=opened.plan.to_json(),
        device=environment.device.name if environment else "",
        torch=environment.torch if environment else "",
        hosts=[log.host or "" for log in logs],
        rounds=len(rounds),
        steps=rounds[-1].steps if rounds else 0,
        seconds=sum(event.seconds for event in rounds),
        hashed=rounds[-1].hashed if rounds else 0,
        hashed_on_host=rounds[-1].hashed_on_host if rounds else "",
        draws=any(event.draws for event in rounds),
        verdict=verdict,
        sentence="",
        differences=differences[:MAX_KEPT],
        operators=operators,
        switches=switches,
        telemetry=summarize_sensors(opened),
        numbers=_numbers(folder),
    )
    return msgspec.structs.replace(document, sentence=describe(document))


def judge(differences: Sequence[BitDifference], operators: Operators, *, complete: bool) -> Verdict:
    """Only differences between rounds may come from operators that are not deterministic."""
    certain = [each for each in differences if each.kind != "repeat"]
    repeats = [each for each in differences if each.kind == "repeat"]
    if certain or (repeats and not operators.not_deterministic and not all(each.never_alike for each in repeats)):
        return "wrong"
    if repeats:
        return "unsettled"
    return "equal" if complete else "incomplete"


def find_causes(found: Sequence[BitDifference]) -> list[BitDifference]:
    """Removes consequences: what an exchange spreads from one rank to all others counts once, for the first rank."""
    kept: list[BitDifference] = []
    by_round: dict[int, list[BitDifference]] = {}
    for each in found:
        if each.kind == "repeat":
            by_round.setdefault(each.round, []).append(each)
        elif each.kind != "replica":
            kept.append(each)
    for members in by_round.values():
        first = min(map(_moment, members))
        kept += [each for each in members if _moment(each) == first]
    for each in found:
        earlier = by_round.get(each.round, ())
        if each.kind == "replica" and not any(_moment(other) <= _moment(each) for other in earlier):
            kept.append(each)
    return sorted(kept, key=lambda each: (each.round, each.step or 0, each.rank))


def _moment(difference: BitDifference) -> tuple[int, int]:
    return difference.step or 0, STAGES.index(difference.stage)


def merge_operators(logs: Iterable[RankLog]) -> Operators:
    """The union of what the ranks saw."""
    seen = [log.operators for log in logs if log.operators]
    if not seen:
        return Operators(unavailable="the ranks did not get that far")
    names = {
        field: sorted({name for each in seen for name in getattr(each, field)})
        for field in ("steadied", "unsteady", "warned")
    }
    unavailable = next((each.unavailable for each in seen if each.unavailable), "")
    return Operators(seen=max(each.seen for each in seen), unavailable=unavailable, **names)


def summarize_sensors(folder: RunFolder) -> VerifyTelemetry:
    """The extremes of all samples."""
    values: dict[str, list[float]] = {"temperature_c": [], "power_w": [], "clock_mhz": []}
    throttled: set[str] = set()
    errors: dict[tuple[int, int], list[float]] = {}
    for launcher in folder.list_samplers():
        for event in folder.sampler_events(launcher):
            for reading in event.readings if isinstance(event, events.DeviceSamples) else ():
                for name, known in values.items():
                    if (value := getattr(reading, name)) is not None:
                        known.append(value)
                throttled |= set(reading.throttled or ())
                if reading.ecc_errors is not None:
                    errors.setdefault((launcher, reading.device), []).append(reading.ecc_errors)
    return VerifyTelemetry(
        temperature_c=max(values["temperature_c"], default=None),
        power_w=max(values["power_w"], default=None),
        least_clock_mhz=min(values["clock_mhz"], default=None),
        throttled=sorted(throttled),
        ecc_errors=max((counted[-1] - counted[0] for counted in errors.values()), default=None),
    )


def _is_settled(log: RankLog) -> bool:
    return bool(log.rounds) and log.rounds[-1].settled


def _numbers(folder: Path) -> Numbers | None:
    try:
        return msgspec.json.decode((folder / NUMBERS_FILE).read_bytes(), type=Numbers)
    except (OSError, msgspec.MsgspecError):
        return None


def describe(document: VerifyDocument) -> str:
    """The verdict as a sentence."""
    rounds, steps = format_count(document.rounds, "round"), format_count(document.steps, "step")
    ranks = format_count(len(document.hosts), "rank")
    if document.verdict == "equal":
        return f"{rounds} of {steps} on {ranks} came out alike, to the last bit of {document.hashed} tensors per step"
    if document.verdict == "incomplete" and document.rounds > 1:
        return f"it was interrupted after {rounds} of {steps} on {ranks}, which came out alike"
    if document.verdict == "incomplete":
        return f"ended after {rounds} of {steps}, before two of them could be compared"
    found = format_count(len(document.differences), "difference")
    if document.verdict == "wrong":
        return f"the arithmetic is wrong: {found} in {rounds} of {steps} on {ranks}"
    if document.operators.not_deterministic:
        names = ", ".join(document.operators.not_deterministic)
        return f"inconclusive: {found}, and these operators are not deterministic here: {names}"
    return f"inconclusive: no two of {rounds} agree, and no operator explains it"


def describe_difference(difference: BitDifference, hosts: Sequence[str] = ()) -> str:
    """One difference as a sentence."""
    rank, first = difference.rank, next(iter(difference.layers), "")
    host = hosts[rank] if rank < len(hosts) and len(set(hosts)) > 1 else ""
    who = f"rank {rank} on {host}" if host else f"rank {rank}"
    where = f"round {difference.round}, {who}"
    if difference.step:
        where = f"round {difference.round}, step {difference.step}, {who}"
    match difference.kind:
        case "product":
            wrong = format_count(difference.count, "known answer")
            return f"{where}: {wrong} of a matmul in {difference.stage} wrong, the first at {first}"
        case "link":
            wrong = format_count(difference.count, "number")
            return f"{where}: {wrong} of an exchange came out wrong in the {difference.stage}, the first: {first}"
        case "operator":
            return f"{who}: {difference.stage} once gave other bits when called again with the same numbers"
        case "replica":
            if difference.never_alike:
                return f"{where}: {_quantity(difference)} is held by no majority of ranks"
            return f"{where}: {_quantity(difference)} is not what most ranks hold"
        case _:
            if difference.never_alike:
                return f"{where}: {_quantity(difference)} differs each time"
            return f"{where}: {_quantity(difference)} is not what the other rounds gave"


def _quantity(difference: BitDifference) -> str:
    more = difference.count - len(difference.layers)
    names = ", ".join([*difference.layers, *([f"+{more}"] if more > 0 else [])])
    match difference.stage:
        case "data":
            return f"sample tensor {names}"
        case "gradient":
            return f"gradient of {names}"
        case "exchanged gradient":
            return f"exchanged gradient of {names}"
        case "weight":
            return f"weight {names}"
        case "statistic":
            return f"running statistic {names}"
    return difference.stage


def parse_plan(document: VerifyDocument) -> Plan:
    return Plan.from_json(document.plan)


def save_document(document: VerifyDocument, store: Store) -> Path:
    """Writes it beside its folder."""
    path = store.folder / FOLDER / f"{document.verify_id}.json"
    try:
        write_atomic(path, msgspec.json.encode(document), synced=True)
    except OSError as error:
        raise NotReadyError(f"the verify {path} could not be written: {error.strerror}") from error
    return path


def find_document(word: str, store: Store) -> VerifyDocument:
    """The verify meant by `last`, an id, its unique beginning or end, or a file's path; else a run of that name."""
    if (kept := _find_saved(word, store)) is not None:
        return kept
    try:
        record = store.record(word)
    except UsageError as error:
        hint = _hint(store)
        raise UsageError(f"there is no verify, run or file {word!r} to compare with; {hint}") from error
    return convert_record(record)


def load_document(word: str, store: Store) -> VerifyDocument:
    """The same without runs; of an interrupted verify, what its ranks had written by then."""
    if (kept := _find_saved(word, store)) is None:
        hint = _hint(store)
        raise UsageError(f"there is no verify or file {word!r}; {hint}")
    return kept


def _find_saved(word: str, store: Store) -> VerifyDocument | None:
    path = Path(word) if Path(word).is_file() else _match_path(word, store)
    if path is None:
        return None
    return make_document(path, {}) if path.is_dir() else read_document(path)


def _match_path(word: str, store: Store) -> Path | None:
    kept = _list_saved(store)
    if word == LAST and kept:
        return [*kept.values()][-1]
    matches = [path for name, path in kept.items() if name.startswith(word) or name.endswith(word)]
    if len(matches) > 1:
        raise UsageError(f"{word} matches {len(matches)} verifies; give more of its id")
    return matches[0] if matches else None


def _list_saved(store: Store) -> dict[str, Path]:
    """Every verify by its id, the newest last: its document, or its folder where it has none."""
    folder = store.folder / FOLDER
    found = {path.name: path for path in folder.glob("*/") if (path / HEAD_FILE).is_file()}
    found |= {path.stem: path for path in folder.glob("*.json")}
    return dict(sorted(found.items(), key=lambda item: item[1].stat().st_mtime))


def _hint(store: Store) -> str:
    known = ", ".join([*_list_saved(store)][-3:])
    return f"the newest verifies are {known}" if known else "'trainmark verify' makes one"


def convert_record(record: Record) -> VerifyDocument:
    """A run as a verify of its losses alone."""
    steps = [StepNumbers(loss=loss) for loss in record.loss]
    return VerifyDocument(
        verify_id=record.run_id,
        created=record.created,
        trainmark=record.trainmark,
        plan=record.plan.to_json(),
        device=record.environment.device.name,
        torch=record.environment.torch,
        rounds=1,
        steps=len(steps),
        verdict="equal",
        sentence=record.ended,
        numbers=Numbers(initial={}, steps=steps) if steps else None,
    )


def read_document(path: Path) -> VerifyDocument:
    """Reads the document of a verify; UsageError says what is wrong with it."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=VerifyDocument)
    except OSError as error:
        raise UsageError(f"the verify {path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not a verify's document: {error}") from error
    if found.schema != SCHEMA:
        raise UsageError(f"the verify {path} has schema {found.schema}; this trainmark reads schema {SCHEMA}")
    return found
