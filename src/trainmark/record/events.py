"""Everything the processes of a run write down while it goes on: one type an event, tagged with its word in the file.

Three kinds of files lie in a run's folder, a JSON document a line: `rank3.jsonl` of each rank, `telemetry0.jsonl` of
the sampler beside each launcher, and `launcher.jsonl` of the launcher that leads. What is older of a long one lies
compressed beside it, as `event_files.py` tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

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
from trainmark.record.verify import BitDifference, Operators


class Event(Struct, frozen=True, tag_field="event"):
    """One line of a file; times named `at_ns` are of the machine's monotonic clock."""


class Unknown(Struct, frozen=True, kw_only=True):
    """A line that is whole and that this version cannot read: a newer one may write more than this one knows."""

    kind: str
    raw: bytes


class Folded(Event, tag="folded", frozen=True, kw_only=True):
    """The first line of a plain file whose older lines lie in compressed chunks beside it."""

    chunks: Count


# -- a rank


class Begin(Event, tag="begin", frozen=True, kw_only=True):
    """The worker's first line; another one follows where the ranks were started again."""

    rank: Whole
    host: str
    pid: Whole
    startup_ns: Whole
    """Since the launcher started this worker."""
    restart: Whole = 0
    """How often the ranks had been started again when this worker began."""
    at_ns: Whole | None = None
    """When it knew what to do: of a worker that was started early, later than its first line."""


class DeviceOpening(Event, tag="opening", frozen=True, kw_only=True):
    """The rank is about to touch its device for the first time."""

    at_ns: Whole


class EnvironmentSeen(Event, MachineFacts, tag="environment", frozen=True, kw_only=True):
    """What rank 0 runs on."""


class LinksMeasured(Event, tag="link", frozen=True, kw_only=True):
    """What the links between the ranks carry, as rank 0 saw it."""

    results: Sequence[AllReduce]
    levels: Sequence[LinkLevel] = ()
    """The same for each kind of link apart."""


class PairsMeasured(Event, tag="pairs", frozen=True, kw_only=True):
    """What the pairs of nodes of one round carry, as rank 0 was told."""

    pairs: Sequence[PairLink]
    hosts: Sequence[str] = ()
    """What the nodes call themselves, in their order."""


class StepCompared(Event, StepCheck, tag="step-check", frozen=True, kw_only=True):
    """How one step on the rank's device compares with the CPU, before training."""


class Resumed(Event, tag="resumed", frozen=True, kw_only=True):
    """The rank goes on from a checkpoint."""

    step: Whole
    epoch: Finite = 0
    damaged: Sequence[str] = ()
    """Newer checkpoints that could not be used, and why."""
    took_ns: Whole | None = None
    """From its file to weights on the device."""


class Ready(Event, tag="ready", frozen=True, kw_only=True):
    """Everything is open, and the first step comes next."""

    steps_per_epoch: Whole | None
    """None of an endless stream."""
    items_per_step: Finite | None = None
    first_step: Whole
    at_ns: Whole | None = None


class PrecisionSeen(Event, PrecisionProof, tag="precision", frozen=True, kw_only=True):
    """What rank 0 saw its first step computed in; once more at the end where a loss was scaled."""


class Steps(Event, tag="steps", frozen=True, kw_only=True, omit_defaults=True):
    """Steps that are done, in the order they were taken; written about twice a second."""

    first: Count
    """The number of the first of them."""
    wait_ns: Sequence[Count]
    compute_ns: Sequence[Count]
    exchange_ns: Sequence[Count] = ()
    """The part of each computation that only exchanged with other ranks; nothing where there are none."""
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
    """A stretch of training is over: how long it was by the host's clock, and by the device's own events."""

    host_ns: Count
    device_ns: Whole


class Alive(Event, tag="alive", frozen=True, kw_only=True):
    """Something other than steps goes on."""

    phase: str
    samples: Whole = 0
    """Of an evaluation: how many this rank has seen."""


class Evaluated(Event, tag="evaluation", frozen=True, kw_only=True):
    """The whole validation set was scored, over all ranks."""

    step: Whole
    epoch: Finite | None
    values: Mapping[str, Finite | None]
    """None is a value that is not finite."""
    samples: Whole
    elapsed_ns: Whole
    """Since the launch."""


class Saved(Event, tag="saved", frozen=True, kw_only=True):
    """A checkpoint is whole; all that came before it survives a restart."""

    step: Whole
    phases_ns: Mapping[str, Whole]
    size_bytes: Whole | None = None
    """Of its file, as the rank knows that wrote it."""


class Phases(Event, tag="phases", frozen=True, kw_only=True):
    """The clock has stopped: where the time went that is not steps."""

    phases_ns: Mapping[str, Whole]
    memory_peak_bytes: Whole | None
    at_ns: Whole | None = None


class FlopsCounted(Event, FlopsFacts, tag="flops", frozen=True, kw_only=True):
    """What the run's speed is held to, found by rank 0 after the clock has stopped."""


class ExchangeCounted(Event, ExchangeShape, tag="exchange", frozen=True, kw_only=True):
    """What ranks exchange in a step, written by rank 0 when the clock has stopped."""


class Profiled(Event, StepProfile, tag="profile", frozen=True, kw_only=True):
    """Where time went in steps after the clock had stopped, as rank 0 saw it."""


class ArtifactsLeft(Event, tag="artifacts", frozen=True, kw_only=True):
    """Files of the trained model's work lie in the run's folder."""

    artifacts: Sequence[Artifact]


class NoSample(Event, tag="no-sample", frozen=True, kw_only=True):
    """The trained model should have left a sample of its work, and could not."""

    reason: str


class RoundVerified(Event, tag="verify-round", frozen=True, kw_only=True, omit_defaults=True):
    """All steps of a verify were computed once more."""

    round: Count
    steps: Count
    seconds: Finite
    found: Sequence[BitDifference] = ()
    """What is known to be wrong since the round before, in this round or an earlier one."""
    settled: bool = False
    """Two rounds agree on every step, on this rank."""
    hashed: Count = 0
    """Tensors of a step whose bits were looked at."""
    hashed_on_host: str = ""
    draws: bool = False
    """Random numbers of the step are made the same everywhere."""


class OperatorsRepeated(Event, Operators, tag="verify-operators", frozen=True, kw_only=True, omit_defaults=True):
    """What each operator of the rank's first step gave when it was called again."""


class End(Event, tag="end", frozen=True, kw_only=True):
    """The rank is done."""

    ended: str
    """Why, in the words of `record/endings.py`."""
    skipped: Sequence[str] = ()
    """Files of the data that could not be read."""
    facts: Mapping[str, Finite | None] = {}
    """How the data was read, such as the share of padding."""


class Failed(Event, tag="failed", frozen=True, kw_only=True):
    """The rank cannot go on."""

    rank: Whole
    exit_code: Whole
    sentence: str
    at_ns: Whole
    consequence: bool = False
    """It only says that another rank went away."""
    out_of_memory: bool = False


RankEvent = (
    Begin | DeviceOpening | EnvironmentSeen | LinksMeasured | PairsMeasured | StepCompared | Resumed | Ready
    | PrecisionSeen | Steps
    | StretchTimed | Alive | Evaluated | Saved | Phases | ExchangeCounted | FlopsCounted | ArtifactsLeft | NoSample
    | Profiled | RoundVerified | OperatorsRepeated | End | Failed
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
    """Those the run uses, as their vendor's tools number them; None where that cannot be told."""
    cores: Whole


class HostSample(Event, tag="host", frozen=True, kw_only=True, omit_defaults=True):
    """What the machine did up to now."""

    at_ns: Whole
    busy_s: Finite | None
    """Of all cores together."""
    own_s: Finite | None
    """What the run's own processes had of it."""
    memory_used_bytes: Whole | None = None
    load: Finite | None = None
    shm_free_bytes: Whole | None = None


class DeviceReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was read of one device at one moment; None is what is not known."""

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
    """What the devices did at a moment."""

    at_ns: Whole
    readings: Sequence[DeviceReading]


class Unavailable(Event, tag="unavailable", frozen=True, kw_only=True):
    """What no device can say, and why; written again whenever that changes."""

    at_ns: Whole
    fields: Mapping[str, str]


class SamplerEnd(Event, tag="end", frozen=True, kw_only=True):
    """The sampler was told to stop."""

    at_ns: Whole
    cpu_s: Finite
    """What sampling itself took."""


SamplerEvent = SamplerBegin | HostSample | DeviceSamples | Unavailable | SamplerEnd


# -- the launcher that leads


class BatchFound(Event, FillSearch, tag="fill", frozen=True, kw_only=True):
    """The batch was searched for before the run."""


class FaultFound(Event, tag="fault", frozen=True, kw_only=True):
    """What went wrong first, weighed over all ranks and launchers."""

    exit_code: Whole
    sentence: str


LauncherEvent = BatchFound | FaultFound
AnyEvent = RankEvent | SamplerEvent | LauncherEvent | Folded
