"""A stand-in for an accelerator that is not here: work ends later than its launch, on a hand-moved clock."""

from __future__ import annotations


class HandClock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.ns = 1_000

    def __call__(self) -> int:
        return self.ns

    def pass_ns(self, ns: int) -> None:
        self.ns += ns


class StandIn:
    """One queue of work. A mark is the moment at which everything launched before it will be done."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.busy_until_ns = clock.ns
        self.synchronized = 0
        self.most_ahead = 0
        self._ends: list[int] = []

    def launch(self, work_ns: int, *, host_ns: int = 0) -> None:
        """Queues work of a length; launching it takes the host a moment, and never waits for the work."""
        self.clock.pass_ns(host_ns)
        self.busy_until_ns = max(self.busy_until_ns, self.clock.ns) + work_ns
        self._ends.append(self.busy_until_ns)
        self.most_ahead = max(self.most_ahead, sum(end > self.clock.ns for end in self._ends))

    def synchronize(self) -> None:
        self.synchronized += 1
        self.wait_for(self.busy_until_ns)

    def mark(self) -> int:
        return max(self.busy_until_ns, self.clock.ns)

    def is_reached(self, mark: int) -> bool:
        return self.clock.ns >= mark

    def wait_for(self, mark: int) -> None:
        self.clock.ns = max(self.clock.ns, mark)

    def between_ns(self, earlier: int, later: int) -> int:
        assert self.is_reached(later), "asked for the time of work that is not done"
        return later - earlier
