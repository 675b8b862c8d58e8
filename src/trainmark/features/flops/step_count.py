"""The operator launches of a training step by layer, and its transfers between host and device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
"""Parts of a step; the update is all that follows the last gradient."""


class OperatorLaunch(NamedTuple):
    """One kind of operator launch."""

    layer: str
    """Its name in the network; empty outside all layers."""
    part: str
    operator: str
    type: str
    """Torch's type of a matmul's inputs; empty for other operators."""
    flops: int
    bytes: int
    """Read and written, each tensor once."""


class StepCount(NamedTuple):
    launches: tuple[tuple[OperatorLaunch, int], ...]
    """Each with its count."""
    copied_bytes: int
    """From host to device inside the step, without the batch."""
    waits: tuple[tuple[str, int], ...]
    """Operators at which the host waits for the device, each with its count."""

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
    """Items of throughput in one step of one device."""
    item: str
    stated_flops: float
    """FLOPs by the workload's formula, the base of MFU; those counted where it states none."""
    batch_bytes: int
    """The batch, copied from host to device before the step."""


def extrapolate(few: CountedStep, many: CountedStep, times: float) -> CountedStep:
    """The step that exceeds `many` by `times` the difference of `many` and `few`.

    Counts of equal launches are extrapolated; of launches that grow, their size is.
    """
    return CountedStep(
        count=StepCount(
            launches=tuple(_extrapolate_launches(few.count, many.count, times)),
            copied_bytes=_extend(few.count.copied_bytes, many.count.copied_bytes, times),
            waits=tuple(
                (name, _extend(dict(few.count.waits).get(name, 0), count, times)) for name, count in many.count.waits
            ),
        ),
        items=_extend(few.items, many.items, times),
        item=many.item,
        stated_flops=many.stated_flops + times * (many.stated_flops - few.stated_flops),
        batch_bytes=_extend(few.batch_bytes, many.batch_bytes, times),
    )


def _extrapolate_launches(few: StepCount, many: StepCount, times: float) -> Iterator[tuple[OperatorLaunch, int]]:
    before = _group_by_kind(few)
    for kind, after in _group_by_kind(many).items():
        earlier = before.get(kind, {})
        for launch, count in after.items():
            if launch in earlier:
                yield launch, _extend(earlier[launch], count, times)
        old = [(launch, count) for launch, count in earlier.items() if launch not in after]
        new = [(launch, count) for launch, count in after.items() if launch not in earlier]
        if [count for _, count in old] == [count for _, count in new]:
            for (one, count), (other, _) in zip(old, new, strict=True):
                flops, moved = _extend(one.flops, other.flops, times), _extend(one.bytes, other.bytes, times)
                yield other._replace(flops=flops, bytes=moved), count
        else:  # split differently: equal pieces and one remainder
            pieces, flops, moved = (_extend(*pair, times) for pair in zip(_add_up(old), _add_up(new), strict=True))
            others = max(0, pieces - 1)
            alike = OperatorLaunch(*kind, flops=flops // (others + 1), bytes=moved // (others + 1))
            yield alike, others
            yield alike._replace(flops=flops - others * alike.flops, bytes=moved - others * alike.bytes), 1


def _add_up(launches: Iterable[tuple[OperatorLaunch, int]]) -> tuple[int, int, int]:
    """Launches, FLOPs and bytes."""
    counted = [(count, launch.flops * count, launch.bytes * count) for launch, count in launches]
    return sum(each[0] for each in counted), sum(each[1] for each in counted), sum(each[2] for each in counted)


def _group_by_kind(count: StepCount) -> Mapping[tuple[str, str, str, str], Mapping[OperatorLaunch, int]]:
    found: dict[tuple[str, str, str, str], dict[OperatorLaunch, int]] = {}
    for launch, times in count.launches:
        found.setdefault(launch[:4], {})[launch] = times
    return found


def _extend(few: int, many: int, times: float) -> int:
    return max(0, round(many + times * (many - few)))
