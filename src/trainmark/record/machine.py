"""The machine of a run and what was measured on it: versions, device, CPU, precision, links, batch search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from trainmark.record.links import AllReduce, LinkLevel
from trainmark.record.numbers import Count, Finite, Positive, Whole
from trainmark.record.precision import narrower_inside


class Series(Struct, frozen=True, kw_only=True):
    at_s: Sequence[Finite]
    """Since the launch."""
    values: Sequence[Finite]

    def __post_init__(self) -> None:
        if len(self.at_s) != len(self.values):
            raise ValueError(f"{len(self.values)} values were read at {len(self.at_s)} times")


class DeviceTelemetry(Struct, frozen=True, kw_only=True):
    device: Whole
    """As the vendor's own tools number it."""
    series: Mapping[str, Series] = {}
    throttled: Mapping[str, Whole] = {}
    """Throttled samples during training, by reason."""
    ecc_errors_new: Finite | None = None
    """Errors its memory could not correct during the run."""
    power_samples: Whole = 0
    power_gap_s: Finite | None = None
    """The longest time between two samples of its power."""


class MachineTelemetry(Struct, frozen=True, kw_only=True):
    host: str
    first_rank: Whole = 0
    every_s: Finite = 0.0
    samples: Whole = 0
    ended_early: bool = False
    sampler_cpu_s: Finite | None = None
    """CPU time of the sampler itself; None where it was killed."""
    last_s: Finite = 0.0
    training_s: Annotated[Sequence[Finite], Meta(max_length=2)] = ()
    """Start and end of training on its first rank; empty where it did not start."""
    unavailable: Mapping[str, str] = {}
    """Unavailable sensors, and why."""
    host_series: Mapping[str, Series] = {}
    devices: Sequence[DeviceTelemetry] = ()


class Telemetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    machines: Sequence[MachineTelemetry] = ()
    """Nothing where nothing was sampled."""


@dataclass(frozen=True, kw_only=True)
class Sensed:
    """Sensors of all devices, summarised over training.

    None is unavailable; `reasons` says why, by field name.
    """

    power_w: float | None = None
    """Of one device, as a mean over time and devices."""
    power_peak_w: float | None = None
    """The highest sample of any device."""
    energy_j: float | None = None
    """Of all devices together."""
    temperature_peak_c: float | None = None
    throttled_percent: float | None = None
    """Share of throttled samples, of the worst device."""
    memory_peak_bytes: float | None = None
    """In use on the fullest device, whoever used it."""
    steady_power_w: float | None = None
    """Of one device, as a mean over its samples from the first steady step on, and over devices."""
    steady_memory_bytes: float | None = None
    """In use on one device, likewise."""
    reasons: Mapping[str, str] = field(default_factory=dict)


class DeviceInfo(Struct, frozen=True, kw_only=True):
    """One device as its driver describes it; unknown fields are empty or None."""

    type: str = ""
    name: str = ""
    count_visible: Whole | None = None
    memory_bytes: Whole | None = None
    driver: str | None = None
    power_w: Finite | None = None
    """The highest it may draw, by its data sheet in the platform file."""
    stand_in: bool = False
    """A simulated device of trainmark's tests: its results say nothing about hardware."""


class PlatformInfo(Struct, frozen=True, kw_only=True):
    """The platform file of a run, and its plugin."""

    name: str = ""
    sha256: str = ""
    content: str | None = None
    """The whole file where it is the user's own, so that the run can be made again elsewhere; a reader must not use it
    unseen, as it may name programs and modules."""
    plugin: str | None = None
    plugin_version: str | None = None


class CpuInfo(Struct, frozen=True, kw_only=True):
    name: str = ""
    logical_cores: Whole | None = None
    usable_cores: Whole | None = None
    capability: str = ""
    memory_bytes: Whole | None = None


class MachineFacts(Struct, frozen=True, kw_only=True):
    """The machine of rank 0; empty for a run that ended before it was recorded."""

    trainmark: str = ""
    python: str = ""
    torch: str = ""
    numpy: str = ""
    os: str = ""
    """Its kernel."""
    distribution: str = ""
    machine: str = ""
    """The model its maker gave it."""
    container: str = ""
    """What the processes ran in: `docker`, `podman`, `kubernetes`, or `none`."""
    libc: str = ""
    device: DeviceInfo = DeviceInfo()
    platform: PlatformInfo = PlatformInfo()
    cpu: CpuInfo = CpuInfo()
    threads: Whole | None = None
    variables: Mapping[str, str] = {}
    """Settings known to change speed, and no others."""
    optimised_python: Whole | None = None
    emulated_precision: bool = False
    """The device computes the requested precision in a wider one and rounds."""


class PrecisionProof(Struct, frozen=True, kw_only=True):
    """The precision of the first step: by the types passed to the device, and by what the device computes with them."""

    asked: str
    ran: str
    computed: Mapping[str, Mapping[str, Whole]] = {}
    """Matmuls and convolutions of the first step, by kind and operand type."""
    multiplications: Mapping[str, Mapping[str, Whole]] = {}
    inside: Mapping[str, Mapping[str, str]] = {}
    """By kind and operand type, the type in which the device multiplied probe values; empty where not tried."""
    scaled_share: Finite | None = None
    """Share of multiplications with 8-bit operands; None where none was requested."""
    weights: Mapping[str, Whole] = {}
    tf32: Mapping[str, bool] = {}
    autocast: str | None = None
    loss_scale: Finite | None = None
    skipped_steps: Whole = 0
    """Steps whose gradients were not finite, which changed no weight."""

    @property
    def narrowed(self) -> dict[str, dict[str, str]]:
        """Of `inside`, what is narrower than requested."""
        found: dict[str, dict[str, str]] = {}
        for kind, types in self.inside.items():
            for factors in types:
                asked = "tf32" if factors == "float32" and self.tf32.get(kind) else factors
                if used := narrower_inside(kind, asked, factors, self.inside):
                    found.setdefault(kind, {})[factors] = used
        return found


class StepCheck(Struct, frozen=True, kw_only=True):
    """One step and one evaluation of the network on the device, compared with the CPU before or after training."""

    rank: Count = 0
    samples: Count = 0
    """Of the first batch, that were trained on."""
    quantities: Count = 0
    """Outputs of layers, running statistics, the loss, gradients, updates and sums of the evaluation."""
    differing: Count = 0
    """How many of them differ by more than rounding explains."""
    first: str | None = None
    """The first of those, in the order in which a step makes them."""
    difference: Finite | None = None
    """By which share of its size the first differs; None where it is not a number."""
    allowed: Finite | None = None
    """By which share rounding explains it."""
    unavailable: str | None = None
    cpu_s: Finite = 0
    """What the CPU took for it."""
    after_step: Count | None = None
    """The last step of training, where it was compared again after it."""
    not_repeated: str | None = None
    """Why it was not compared again after training."""


class DeviceClock(Struct, frozen=True, kw_only=True):
    """Training time of a rank by its device's events and by the host's clock."""

    rank: Whole = 0
    stretches: Whole = 0
    """Each begins and ends with an idle device, so that both clocks saw the same time but for a moment."""
    host_s: Finite = 0.0
    device_s: Finite = 0.0

    @property
    def apart(self) -> float:
        """Relative difference of the two, beyond the delay of a busy host."""
        apart_s = abs(self.device_s - self.host_s) - NOTICED_WITHIN_S * self.stretches
        return max(0.0, apart_s) / self.host_s if self.host_s else 0.0


NOTICED_WITHIN_S = 0.05
"""From the end of a device's work to the moment a busy host reads its clock."""


MAX_FLOPS_APART = 0.1
"""By how much of the counted FLOPs those that a model states may be off: formulas leave out small layers."""


class FlopsFacts(Struct, frozen=True, kw_only=True):
    per_item: Finite
    """Of a model from outside, by the matmuls of its first step, where there are any."""
    stated: Finite | None = None
    """What such a model states itself."""
    otherwise: Mapping[str, Finite] = msgspec.field(default_factory=dict)
    """Other counts, by what they leave out or include."""
    peak_tflops: Finite | None = None
    peak_source: str | None = None
    """Where the peak of a device is from, or why there is none."""
    parameters: Whole | None = None
    """Weights of the network that the plan describes, counted without a device; None where not recorded."""
    peak_error: float | None = None
    """How far measurements of it lie apart: the standard deviation of their logarithm; None where it is no measured
    one, or there is only one."""

    @property
    def is_misstated(self) -> bool:
        """The workload states another number than its first step took."""
        return bool(self.stated) and abs((self.stated or 0.0) / self.per_item - 1) > MAX_FLOPS_APART


class ExchangeShape(Struct, frozen=True, kw_only=True):
    """What ranks exchange per step, counted by rank 0 in the last one."""

    kind: str
    """`all-reduce`, or `reduce-scatter and all-gather` where the network is sharded; both where ranks also compute
    blocks together."""
    messages: Whole
    """Buckets of gradients, and of weights where these are gathered."""
    size_bytes: Whole = msgspec.field(name="bytes")
    """Of all messages, each as long as what the ranks hold together of it."""
    parallel: str = ""
    """How the ranks share the work: `ddp`, `fsdp`, or `hsdp`, which shards inside a node, with `+tp2` behind where two
    compute each block together; empty where not recorded."""
    gathered_bytes: Whole = 0
    """Of the bytes, those of weights that all-gathers put together; the others are gradients, and what blocks add up
    where ranks compute them together."""
    last_bytes: Whole | None = None
    """Of the last message of a step, which no computing can hide."""
    dtypes: Mapping[str, Whole] = {}
    """The bytes by the type of their numbers."""
    parameters: Whole | None = None
    """Numbers that are trained."""
    backward_s: Finite | None = None
    """From a step's loss to its last gradient, as the median of some of the first steps: what there is to hide an
    all-reduce behind. None where that was not measured."""


class OperatorUse(Struct, frozen=True, kw_only=True):
    """Time and memory of one torch operator in the profiled steps."""

    name: str
    calls: Whole
    seconds: Finite
    """Of its own: those of operators it calls are theirs. On the device where that tells, else on the host."""
    size_bytes: Whole = msgspec.field(name="bytes", default=0)
    """Memory it took, those it calls included, and did not give back itself."""


class StepProfile(Struct, frozen=True, kw_only=True):
    """Profile of rank 0 over some steps after the counted ones."""

    steps: Count
    seconds: Finite
    """Of all of them, slowed by the profiler."""
    busy_s: Finite
    """When at least one operator ran."""
    launches: Whole
    """Pieces of work the device was given; of a CPU, calls of operators that compute."""
    on_device: bool = False
    """Times are the device's own, and not the host's."""
    operators: Sequence[OperatorUse] = ()
    """Those that took longest, longest first."""
    others: OperatorUse | None = None
    """All that are not named, together."""
    trace: str = ""
    """The file in the run's folder that viewers of traces open; empty where it could not be written."""

    @property
    def idle(self) -> float:
        """Share of the time in which nothing ran."""
        return max(0.0, 1 - self.busy_s / self.seconds) if self.seconds else 0.0


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    size_bytes: Whole | None = msgspec.field(name="bytes", default=None)
    """Of the last one."""
    saves: Whole = 0
    save_s: Finite | None = None
    """The median, as the training waited for it."""
    restore_s: Finite | None = None
    """Of a run that was resumed or started again: from its file to weights on the device."""

    @property
    def gigabytes_per_s(self) -> float | None:
        return self.size_bytes / self.save_s / 1e9 if self.size_bytes and self.save_s else None


class BatchTry(Struct, frozen=True, kw_only=True):
    batch: Positive
    items_per_s: Finite = 0.0
    step_s: Finite = 0.0
    memory_bytes: Whole | None = None
    unfit: str = ""
    """Why this batch cannot be used; empty where it can."""


class FillSearch(Struct, frozen=True, kw_only=True):
    """How the largest useful batch was found."""

    batch_per_device: Whole
    reason: str
    took_s: Finite = 0.0
    curve: Sequence[BatchTry] = ()
    """Every batch that was tried, in the order of their sizes."""


class Environment(MachineFacts, frozen=True, kw_only=True):
    """Everything a record holds about where and how its run was computed."""

    link: Sequence[AllReduce] = ()
    """What the links between the ranks were measured to carry, smallest message first."""
    link_levels: Sequence[LinkLevel] = ()
    """The same for the links inside a node and between nodes apart, by collective."""
    exchange: ExchangeShape | None = None
    """None where nothing is exchanged, or this torch does not let it be counted."""
    checkpoint: CheckpointFacts | None = None
    """None where no state was saved or restored, or that was not recorded."""
    profile: StepProfile | None = None
    """None where no step was profiled."""
    flops: FlopsFacts | None = None
    precision: PrecisionProof | None = None
    fill: FillSearch | None = None
    step_check: StepCheck | None = None
    """Of the first rank whose device does not compute as the CPU, else of rank 0; None where the CPU trained."""
    clock: DeviceClock | None = None
    """Of the rank whose device's events are furthest from the host's clock; None where the host times the steps."""
    idle_power_w: Finite | None = None
    """Of a device, before any rank touched it; None where nobody looked then, and of a processor, which starts the
    ranks meanwhile."""
    foreign_load: Finite | None = None
    """Share of the worst machine's cores that went to others."""
    ranks_apart_at: Whole | None = None
    """The step of the first evaluation at which ranks of one network held different weights; None where none was."""
    clock_gap_s: float = 0.0
    """By how much a rank's clock ran longer over training than its steps and phases add up to, or less."""
    suspended_s: Finite = 0.0
    """For which a machine slept during the run."""

    @property
    def others(self) -> float | None:
        """The same where these cores are what trained: an accelerator's work hardly depends on its host's."""
        return self.foreign_load if self.device.type == "cpu" else None

    def to_json(self) -> dict[str, Any]:
        """The known fields; False is kept, what is unknown is left out."""
        empty = msgspec.to_builtins(Environment())
        document = msgspec.to_builtins(self)
        return {name: value for name, value in document.items() if value != empty[name] or isinstance(value, bool)}


class Artifact(Struct, frozen=True, kw_only=True):
    file: str
    """Relative to the run's folder."""
    caption: str
