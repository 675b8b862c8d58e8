"""Judges the logs of a verify: which rank, step and layer are wrong, or whether the software is not deterministic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

import trainmark
from trainmark.features.verify.document import (
    NUMBERS_FILE,
    SCHEMA,
    STAGES,
    Numbers,
    Verdict,
    VerifyDocument,
    VerifyTelemetry,
)
from trainmark.features.verify.parity import Parity
from trainmark.record import events
from trainmark.record.atomic_files import write_atomic
from trainmark.record.checks import format_count
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.events import BitDifference, Operators
from trainmark.record.foreign_files import MAX_RECORD_BYTES, read_plain
from trainmark.record.run_folder import HEAD_FILE, RunFolder
from trainmark.record.store import LAST, Store
from trainmark.view.terminal import TerminalWriter

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
    # all ranks call the same operators
    operators = Operators(unavailable="the ranks did not get that far")
    if logs[0].operators:
        operators = Operators(**msgspec.structs.asdict(logs[0].operators))
    found = [each for log in logs for event in log.rounds for each in event.found]
    differences = find_causes(found)
    rounds = [event for event in logs[0].rounds if event.round]
    complete = (
        all(log.end for log in logs) and bool(rounds) and all(log.rounds and log.rounds[-1].settled for log in logs)
    )
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
        telemetry=summarize_sensors(_read_samples(opened)),
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
    """Removes consequences: of what rounds or ranks compare, the earliest of each round counts, a rank that differs
    from itself before one that differs from others."""
    kept = [each for each in found if each.kind not in ("repeat", "replica")]
    compared = [each for each in found if each.kind in ("repeat", "replica")]
    for number in {each.round for each in compared}:
        members = [each for each in compared if each.round == number]
        first = min(map(_moment, members))
        earliest = [each for each in members if _moment(each) == first]
        kept += [each for each in earliest if each.kind == "repeat"] or earliest
    return sorted(kept, key=lambda each: (each.round, each.step or 0, each.rank))


def _moment(difference: BitDifference) -> tuple[int, int]:
    return difference.step or 0, STAGES.index(difference.stage)


def summarize_sensors(readings: Iterable[tuple[int, events.DeviceReading]]) -> VerifyTelemetry:
    """The extremes of readings, each with the number of its launcher."""
    seen = list(readings)

    def collect(name: str) -> list[float]:
        return [value for _, reading in seen if (value := getattr(reading, name)) is not None]

    errors: dict[tuple[int, int], list[float]] = {}
    for launcher, reading in seen:
        if reading.ecc_errors is not None:
            errors.setdefault((launcher, reading.device), []).append(reading.ecc_errors)
    return VerifyTelemetry(
        temperature_c=max(collect("temperature_c"), default=None),
        power_w=max(collect("power_w"), default=None),
        least_clock_mhz=min(collect("clock_mhz"), default=None),
        throttled=sorted({reason for _, reading in seen for reason in reading.throttled or ()}),
        ecc_errors=max((counted[-1] - counted[0] for counted in errors.values()), default=None),
    )


def _read_samples(folder: RunFolder) -> Iterator[tuple[int, events.DeviceReading]]:
    for launcher in folder.list_samplers():
        for event in folder.sampler_events(launcher):
            if isinstance(event, events.DeviceSamples):
                yield from ((launcher, reading) for reading in event.readings)


def _numbers(folder: Path) -> Numbers | None:
    try:
        return msgspec.json.decode(read_plain(folder / NUMBERS_FILE, MAX_RECORD_BYTES), type=Numbers)
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
    names = ", ".join([*difference.layers, *([f"+{more}"] if more > 0 and difference.layers else [])])
    return f"{_STAGE_WORDS.get(difference.stage, difference.stage)} {names}".strip()


_STAGE_WORDS = {
    "data": "sample tensor",
    "gradient": "gradient of",
    "exchanged gradient": "exchanged gradient of",
    "statistic": "running statistic",
}


# For a terminal

MAX_LINES = 12
STYLES = {"equal": "bold green", "agrees": "bold green", "wrong": "bold red", "differs": "bold red"}
UNDECIDED = "bold yellow"


def render_text(
    document: VerifyDocument, parity: Parity | None, *, width: int = 100, color: bool = False, encoding: str = "utf-8"
) -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    writer.put(writer.text(document.sentence, STYLES.get(document.verdict, UNDECIDED)))
    for difference in document.differences[:MAX_LINES]:
        writer.put(describe_difference(difference, document.hosts), indent=2)
    if (more := len(document.differences) - MAX_LINES) > 0:
        writer.put(f"and {format_count(more, 'difference')} more, listed in its file", indent=2)
    for sentence in describe_notes(document):
        writer.put(sentence, indent=2)
    if parity is not None:
        writer.put(writer.text(parity.sentence, STYLES.get(parity.verdict, UNDECIDED)))
        writer.put(f"{parity.own} beside {parity.other}", indent=2)
    return writer.getvalue()


def describe_notes(document: VerifyDocument) -> Iterator[str]:
    """Describes what to know besides the verdict."""
    switch, operators = "torch.use_deterministic_algorithms(True)", document.operators
    steadied, unsteady, warned = map(", ".join, (operators.steadied, operators.unsteady, operators.warned))
    if steadied:
        yield f"not deterministic by themselves: {steadied}; {switch} made them so here"
    if unsteady:
        yield f"not deterministic even with {switch}: {unsteady}"
    if warned:
        yield f"torch has no deterministic implementation here of {warned}"
    if operators.unavailable:
        yield f"operators were not checked one by one: {operators.unavailable}"
    if document.switches:
        values = ", ".join(f"{name}={value}" for name, value in document.switches.items())
        yield f"the platform's libraries were made deterministic by {values}"
    if document.draws:
        yield "the step uses random numbers, which were replaced by fixed ones: every chip has to compute the same step"
    if document.hashed_on_host:
        yield f"bits were hashed on the host, not on the device: {document.hashed_on_host}"
    if seen := _describe_sensors(document.telemetry):
        yield f"while it computed: {', '.join(seen)}"


def describe_round(event: events.RoundVerified, found: int, telemetry: VerifyTelemetry) -> str:
    """One round in a line, with what the sensors say."""
    result = format_count(found, "difference") if found else "alike" if event.settled else "not settled yet"
    line = f"round {event.round}: {format_count(event.steps, 'step')} in {event.seconds:.1f} s, {result}"
    return "  ".join([line, *_describe_sensors(telemetry)])


def _describe_sensors(seen: VerifyTelemetry) -> list[str]:
    values = ((seen.temperature_c, "°C"), (seen.least_clock_mhz, "MHz"), (seen.power_w, "W"))
    parts = [f"{value:.0f} {unit}" for value, unit in values if value is not None]
    if seen.throttled:
        parts.append(f"slowed by {', '.join(seen.throttled)}")
    if seen.ecc_errors:
        parts.append(f"{seen.ecc_errors:.0f} memory errors")
    return parts


# Documents in a store


def save_document(document: VerifyDocument, store: Store) -> Path:
    """Writes it beside its folder."""
    path = store.folder / FOLDER / f"{document.verify_id}.json"
    try:
        write_atomic(path, msgspec.json.encode(document), synced=True)
    except OSError as error:
        raise NotReadyError(f"the verify {path} could not be written: {error.strerror}") from error
    return path


def load_document(word: str, store: Store) -> VerifyDocument:
    """The verify meant by `last`, an id, its unique beginning or end, or a file's path; of an interrupted one, what its
    ranks had written by then."""
    path = Path(word) if Path(word).is_file() else _match_path(word, store)
    if path is None:
        known = ", ".join([*_list_saved(store)][-3:])
        hint = f"the newest verifies are {known}" if known else "'trainmark verify' makes one"
        raise UsageError(f"there is no verify or file {word!r}; {hint}")
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


def read_document(path: Path) -> VerifyDocument:
    """Reads the document of a verify; UsageError says what is wrong with it."""
    try:
        found = msgspec.json.decode(read_plain(path, MAX_RECORD_BYTES), type=VerifyDocument)
    except OSError as error:
        raise UsageError(f"the verify {path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not a verify's document: {error}") from error
    if found.schema != SCHEMA:
        raise UsageError(f"the verify {path} has schema {found.schema}; this trainmark reads schema {SCHEMA}")
    return found
