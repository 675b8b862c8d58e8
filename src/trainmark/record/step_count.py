"""What one training step asks of a device: launches by layer and operator, and what crosses to and from the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
"""The parts of a step; an update is all that follows the last gradient."""


class OperatorLaunch(NamedTuple):
    """An operator that a device computes, as often as it is launched alike."""

    layer: str
    """By its name in the network; empty outside of all layers."""
    part: str
    operator: str
    type: str
    """Of the factors of a matmul, by torch's name; empty where nothing is multiplied."""
    flops: int
    bytes: int
    """Read and written, each tensor once."""


class StepCount(NamedTuple):
    launches: tuple[tuple[OperatorLaunch, int], ...]
    """Each with how often it comes."""
    copied_bytes: int
    """From host to device inside the step, beside its batch."""
    waits: tuple[tuple[str, int], ...]
    """Operators at which the host waits for the device, each with how often."""

    @property
    def flops(self) -> int:
        return sum(launch.flops * count for launch, count in self.launches)

    @property
    def bytes(self) -> int:
        return sum(launch.bytes * count for launch, count in self.launches)

    @property
    def launched(self) -> int:
        return sum(count for _, count in self.launches)


@dataclass(frozen=True, kw_only=True)
class CountedStep:
    count: StepCount
    items: int
    """What throughput counts, in one step of one device."""
    item: str
    stated_flops: float
    """What the network's mathematics takes, by the workload's own formula: what MFU is held to."""
    batch_bytes: int
    """Of the batch, which goes from host to device before the step."""


def extrapolate_step(few: CountedStep, many: CountedStep, times: float) -> CountedStep:
    """A step that is longer than `many` by so many times what that is longer than `few`.

    Launches that come alike in both come more often; of those that come once but grow, each grows on.
    """
    waits = dict(few.count.waits)
    return CountedStep(
        count=StepCount(
            launches=tuple(_extrapolate_launches(few.count, many.count, times)),
            copied_bytes=_extrapolate(few.count.copied_bytes, many.count.copied_bytes, times),
            waits=tuple((name, _extrapolate(waits.get(name, 0), count, times)) for name, count in many.count.waits),
        ),
        items=_extrapolate(few.items, many.items, times),
        item=many.item,
        stated_flops=many.stated_flops + times * (many.stated_flops - few.stated_flops),
        batch_bytes=_extrapolate(few.batch_bytes, many.batch_bytes, times),
    )


def _extrapolate_launches(few: StepCount, many: StepCount, times: float) -> Iterator[tuple[OperatorLaunch, int]]:
    before = _group_by_kind(few)
    for kind, after in _group_by_kind(many).items():
        earlier = before.get(kind, {})
        for launch, count in after.items():
            if launch in earlier:
                yield launch, _extrapolate(earlier[launch], count, times)
        old = [(launch, count) for launch, count in earlier.items() if launch not in after]
        new = [(launch, count) for launch, count in after.items() if launch not in earlier]
        if [count for _, count in old] == [count for _, count in new]:
            for (one, count), (other, _) in zip(old, new, strict=True):
                flops, moved = _extrapolate(one.flops, other.flops, times), _extrapolate(one.bytes, other.bytes, times)
                yield other._replace(flops=flops, bytes=moved), count
        else:  # cut into other pieces: as many as it takes, all alike but one
            pieces, flops, moved = (_extrapolate(*pair, times) for pair in zip(_sums(old), _sums(new), strict=True))
            others = max(0, pieces - 1)
            alike = OperatorLaunch(*kind, flops=flops // (others + 1), bytes=moved // (others + 1))
            yield alike, others
            yield alike._replace(flops=flops - others * alike.flops, bytes=moved - others * alike.bytes), 1


def _sums(launches: Iterable[tuple[OperatorLaunch, int]]) -> tuple[int, int, int]:
    """Launches, FLOPs and bytes."""
    counted = [(count, launch.flops * count, launch.bytes * count) for launch, count in launches]
    return sum(each[0] for each in counted), sum(each[1] for each in counted), sum(each[2] for each in counted)


def _group_by_kind(count: StepCount) -> Mapping[tuple[str, str, str, str], Mapping[OperatorLaunch, int]]:
    found: dict[tuple[str, str, str, str], dict[OperatorLaunch, int]] = {}
    for launch, times in count.launches:
        found.setdefault(launch[:4], {})[launch] = times
    return found


def _extrapolate(few: int, many: int, times: float) -> int:
    return max(0, round(many + times * (many - few)))
