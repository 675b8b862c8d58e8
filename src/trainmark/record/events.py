"""The events that the processes of a run write: one tagged type per event.

A run's folder holds three kinds of files, one JSON document per line: `rank3.jsonl` of each rank, `telemetry0.jsonl` of
the sampler of each launcher, and `launcher.jsonl` of the leading launcher.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct

from trainmark.record.errors import WorkloadError
from trainmark.record.foreign_files import NotPlainError, open_plain
from trainmark.record.links import AllReduce, LinkLevel, PairLink
from trainmark.record.machine import (
    Artifact,
    ExchangeShape,
    FillSearch,
    FlopsFacts,
    MachineFacts,
    PrecisionProof,
    StepCheck,
    StepProfile,
)
from trainmark.record.numbers import Count, Finite, Whole


class Event(Struct, frozen=True, tag_field="event"):
    """One line of a file; `at_ns` is by the machine's monotonic clock."""


class Unknown(Struct, frozen=True, kw_only=True):
    """A complete line that this version cannot read, such as one of a newer version."""

    kind: str
    raw: bytes


# -- a rank


class Begin(Event, tag="begin", frozen=True, kw_only=True):
    """The worker's first line; a restart writes another."""

    rank: Whole
    host: str
    pid: Whole
    startup_ns: Whole
    """Since the launcher started this worker."""
    restart: Whole = 0
    """Restarts before this worker began."""
    at_ns: Whole | None = None
    """When it received its plan; later than its first line for a pre-spawned worker."""


class DeviceOpening(Event, tag="opening", frozen=True, kw_only=True):
    """The rank is about to open its device."""

    at_ns: Whole


class EnvironmentSeen(Event, MachineFacts, tag="environment", frozen=True, kw_only=True):
    """The machine of rank 0."""


class LinksMeasured(Event, tag="link", frozen=True, kw_only=True):
    """Link measurements between the ranks, by rank 0."""

    results: Sequence[AllReduce]
    levels: Sequence[LinkLevel] = ()
    """The same per kind of link."""


class PairsMeasured(Event, tag="pairs", frozen=True, kw_only=True):
    """Link measurements between the pairs of nodes of one round, by rank 0."""

    pairs: Sequence[PairLink]
    hosts: Sequence[str] = ()
    """Host names in the order of the nodes."""


class StepCompared(Event, StepCheck, tag="step-check", frozen=True, kw_only=True):
    """How one step on the rank's device compares with the CPU, before training and again after it."""


class Resumed(Event, tag="resumed", frozen=True, kw_only=True):
    """The rank resumed from a checkpoint."""

    step: Whole
    epoch: Finite = 0
    damaged: Sequence[str] = ()
    """Newer checkpoints that could not be used, and why."""
    took_ns: Whole | None = None
    """From its file to weights on the device."""


class Ready(Event, tag="ready", frozen=True, kw_only=True):
    """Set-up is done; the first step comes next."""

    steps_per_epoch: Whole | None
    """None for an endless stream."""
    items_per_step: Finite | None = None
    first_step: Whole
    at_ns: Whole | None = None


class PrecisionSeen(Event, PrecisionProof, tag="precision", frozen=True, kw_only=True):
    """The precision of rank 0's first step; written again at the end where the loss was scaled."""


class Steps(Event, tag="steps", frozen=True, kw_only=True, omit_defaults=True):
    """Finished steps in order; written about twice a second."""

    first: Count
    """The number of the first of them."""
    wait_ns: Sequence[Count]
    compute_ns: Sequence[Count]
    exchange_ns: Sequence[Count] = ()
    """The exposed exchange within each computation; empty for a single rank."""
    items: Sequence[Count]
    loss: Sequence[Finite | None]
    """None is a loss that is not finite."""

    def __post_init__(self) -> None:
        count = len(self.compute_ns)
        if not len(self.wait_ns) == len(self.items) == len(self.loss) == count or len(self.exchange_ns) not in (
            0,
            count,
        ):
            raise ValueError("a step has one time, count and loss of each kind")


class StretchTimed(Event, tag="stretch", frozen=True, kw_only=True):
    """A stretch of training ended: its length by the host's clock and by the device's events."""

    host_ns: Count
    device_ns: Whole


class Alive(Event, tag="alive", frozen=True, kw_only=True):
    """The rank is busy with something other than steps."""

    phase: str
    samples: Whole = 0
    """Of an evaluation: samples this rank has evaluated."""


class Evaluated(Event, tag="evaluation", frozen=True, kw_only=True):
    """The whole validation set was evaluated, over all ranks."""

    step: Whole
    epoch: Finite | None
    values: Mapping[str, Finite | None]
    """None is a value that is not finite."""
    samples: Whole
    elapsed_ns: Whole
    """Since the launch."""


class Saved(Event, tag="saved", frozen=True, kw_only=True):
    """A checkpoint is complete; everything before it survives a restart."""

    step: Whole
    phases_ns: Mapping[str, Whole]
    size_bytes: Whole | None = None
    """Of its file, known to the rank that wrote it."""


class Phases(Event, tag="phases", frozen=True, kw_only=True):
    """The clock has stopped: time outside of steps, by phase."""

    phases_ns: Mapping[str, Whole]
    memory_peak_bytes: Whole | None
    at_ns: Whole | None = None
    suspended_ns: Whole = 0
    """For which the machine slept since the worker began; the clock of all other times stood still."""


class RanksApart(Event, tag="ranks-apart", frozen=True, kw_only=True):
    """At an evaluation, ranks that train the same weights did not hold the same."""

    step: Whole


class FlopsCounted(Event, FlopsFacts, tag="flops", frozen=True, kw_only=True):
    """FLOPs and peak for MFU, computed by rank 0 after the clock has stopped."""


class ExchangeCounted(Event, ExchangeShape, tag="exchange", frozen=True, kw_only=True):
    """What ranks exchange per step, written by rank 0 after the clock has stopped."""


class Profiled(Event, StepProfile, tag="profile", frozen=True, kw_only=True):
    """Profile of steps after the clock had stopped, by rank 0."""


class ArtifactsLeft(Event, tag="artifacts", frozen=True, kw_only=True):
    """The trained model left files in the run's folder."""

    artifacts: Sequence[Artifact]


class NoSample(Event, tag="no-sample", frozen=True, kw_only=True):
    """The trained model could not leave the sample it should have."""

    reason: str


Kind = Literal["repeat", "replica", "product", "link", "operator"]


class BitDifference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bits that are not as they were, as on other ranks, or as they must be."""

    kind: Kind
    round: Whole
    """Which computation of all the steps, counted from 1."""
    rank: Whole
    step: Whole | None = None
    """Counted from 1."""
    stage: str = ""
    """One of `STAGES` of a verify; of a matmul its type, of a link what was exchanged."""
    layers: Sequence[str] = ()
    """The first of those that differ."""
    count: Whole = 1
    """How many differ."""
    never_alike: bool = False
    """No two rounds gave the same, so that none can be called the wrong one."""


class Operators(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which operators of a step give other bits when they are called again with the same numbers."""

    seen: Whole = 0
    steadied: Sequence[str] = ()
    """Those that do so only while torch.use_deterministic_algorithms is off."""
    unsteady: Sequence[str] = ()
    """Those that do so even while it is on."""
    warned: Sequence[str] = ()
    """Those of which torch says that they have no deterministic implementation here."""
    unavailable: str = ""
    """Why it was not tested."""

    @property
    def not_deterministic(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.unsteady, *self.warned)))


class RoundVerified(Event, tag="verify-round", frozen=True, kw_only=True, omit_defaults=True):
    """All steps of a verify were computed once more."""

    round: Count
    steps: Count
    seconds: Finite
    found: Sequence[BitDifference] = ()
    """Differences found since the round before, in this round or an earlier one."""
    settled: bool = False
    """Two rounds agree on every step, on this rank."""
    hashed: Count = 0
    """Hashed tensors per step."""
    hashed_on_host: str = ""
    draws: bool = False
    """The step uses random numbers, which were fixed."""


class OperatorsRepeated(Event, Operators, tag="verify-operators", frozen=True, kw_only=True, omit_defaults=True):
    """Whether each operator of the rank's first step repeats its result."""


class End(Event, tag="end", frozen=True, kw_only=True):
    """The rank is done."""

    ended: str
    """Why, in the words of `record/endings.py`."""
    skipped: Sequence[str] = ()
    """Data files that could not be read."""
    facts: Mapping[str, Finite | None] = {}
    """How the data was read, such as the share of padding."""


class Failed(Event, tag="failed", frozen=True, kw_only=True):
    """The rank failed."""

    rank: Whole
    exit_code: Whole
    sentence: str
    at_ns: Whole
    consequence: bool = False
    """The failure only follows from another rank's."""
    out_of_memory: bool = False


RankEvent = (
    Begin | DeviceOpening | EnvironmentSeen | LinksMeasured | PairsMeasured | StepCompared | Resumed | Ready
    | PrecisionSeen | Steps
    | StretchTimed | Alive | Evaluated | Saved | Phases | ExchangeCounted | FlopsCounted | ArtifactsLeft | NoSample
    | RanksApart | Profiled | RoundVerified | OperatorsRepeated | End | Failed
)  # fmt: skip


# -- a sampler


class SamplerBegin(Event, tag="begin", frozen=True, kw_only=True):
    """The sampler's first line."""

    host: str
    pid: Whole
    first_rank: Whole
    """The first rank of this machine."""
    launched_ns: Whole
    at_ns: Whole
    every_s: Finite
    devices: Sequence[Whole] | None
    """Devices the run uses, by the vendor's numbers; None where unknown."""
    cores: Whole


class HostSample(Event, tag="host", frozen=True, kw_only=True, omit_defaults=True):
    """Counters of the host so far."""

    at_ns: Whole
    busy_s: Finite | None
    """Of all cores together."""
    own_s: Finite | None
    """The share of the run's own processes."""
    memory_used_bytes: Whole | None = None
    load: Finite | None = None
    shm_free_bytes: Whole | None = None


class DeviceReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of one device; None is unknown."""

    device: Whole
    memory_used_bytes: Finite | None = None
    memory_total_bytes: Finite | None = None
    power_w: Finite | None = None
    energy_j: Finite | None = None
    temperature_c: Finite | None = None
    utilisation_percent: Finite | None = None
    clock_mhz: Finite | None = None
    throttled: Sequence[str] | None = None
    ecc_errors: Finite | None = None


class DeviceSamples(Event, tag="devices", frozen=True, kw_only=True):
    """One reading of all devices."""

    at_ns: Whole
    readings: Sequence[DeviceReading]


class Unavailable(Event, tag="unavailable", frozen=True, kw_only=True):
    """Sensors that are unavailable, and why; written again whenever that changes."""

    at_ns: Whole
    fields: Mapping[str, str]


class SamplerEnd(Event, tag="end", frozen=True, kw_only=True):
    """The sampler was stopped."""

    at_ns: Whole
    cpu_s: Finite
    """CPU time of the sampler itself."""


SamplerEvent = SamplerBegin | HostSample | DeviceSamples | Unavailable | SamplerEnd


# -- the leading launcher


class BatchFound(Event, FillSearch, tag="fill", frozen=True, kw_only=True):
    """The batch size found before the run."""


class FaultFound(Event, tag="fault", frozen=True, kw_only=True):
    """The root failure, over all ranks and launchers."""

    exit_code: Whole
    sentence: str


LauncherEvent = BatchFound | FaultFound
AnyEvent = RankEvent | SamplerEvent | LauncherEvent


# -- files: readable up to the last complete line whatever happened to the writer

Source = Literal["rank", "telemetry", "launcher"]
MAX_LINE_BYTES = 16 << 20
"""No event is longer."""
_NAME = re.compile(r"(rank|telemetry)([0-9]+)\.jsonl|(launcher)\.jsonl")
_KINDS: dict[Source, Any] = {"rank": RankEvent, "telemetry": SamplerEvent, "launcher": LauncherEvent}
_DECODERS: dict[Source, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in _KINDS.items()}


class Writer(NamedTuple):
    """Who writes a file: `rank3.jsonl` rank 3, `telemetry0.jsonl` the sampler of launcher 0."""

    source: Source
    number: int


def parse_writer(name: str) -> Writer | None:
    """The writer by the name of its file; None where it is no event file."""
    if not (match := _NAME.fullmatch(name)):
        return None
    return Writer(cast(Source, match[1] or match[3]), int(match[2] or 0))


class EventWriter:
    """Writes one JSON line per event, in one write call, so that lines are complete or missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._one_at_a_time = threading.Lock()  # a sampler's threads share one file
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if os.fstat(self._descriptor).st_size:  # an earlier writer may have been killed within a line
                os.write(self._descriptor, b"\n")
        except OSError as error:
            raise self._write_error(error) from error

    def write(self, event: Event) -> None:
        left = memoryview(self._encoder.encode(event) + b"\n")
        with self._one_at_a_time:
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> WorkloadError:
        return WorkloadError(f"cannot write {self.path}: {error.strerror}; what was written before is kept")

    def close(self) -> None:
        os.close(self._descriptor)


class EventTail:
    """Reads a growing event file; an incomplete last line waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        writer = parse_writer(path.name)
        self._source: Source = writer.source if writer else "rank"
        self._offset = 0
        self._rest = b""

    def new_events(self) -> Iterator[AnyEvent | Unknown]:
        """The events written since the last call."""
        try:
            file = open_plain(self.path)
        except (FileNotFoundError, NotPlainError):
            return
        with file:
            file.seek(self._offset)
            while data := file.read(1 << 20):
                self._offset += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                if len(self._rest) > MAX_LINE_BYTES:
                    self._rest = b""
                for line in lines:
                    if (event := read_line(line, self._source)) is not None:
                        yield event

    @property
    def torn(self) -> bool:
        """Whether the file ends within a line."""
        return bool(self._rest)


def read_line(line: bytes, source: Source) -> AnyEvent | Unknown | None:
    """The event of a line; None where it is no event."""
    event: AnyEvent
    try:
        event = _DECODERS[source].decode(line)
        return event
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # files of earlier versions may hold NaN
        document = json.loads(line, parse_constant=lambda constant: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("event"), str):
        return None
    try:
        event = _DECODERS[source].decode(msgspec.json.encode(document))
        return event
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, RecursionError):
        return Unknown(kind=document["event"], raw=line)
