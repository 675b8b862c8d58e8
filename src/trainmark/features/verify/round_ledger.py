"""Holds every computation of the same steps against the others, and says which of them came out wrong, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Hashes = tuple[int, ...]
"""Of one step, always in the same order."""

MAX_ROUNDS = 6
"""After so many of which no two agree, none can be called right."""


@dataclass(frozen=True, kw_only=True)
class OddRound:
    """A round that left the others at a step; what it computed after that is a consequence."""

    round: int
    """Counted from 1."""
    step: int
    """Counted from 0."""
    places: tuple[int, ...]
    """Which of the step's hashes differ."""
    never_alike: bool = False
    """No two rounds that came so far agree on the step."""


class RoundLedger:
    """Two rounds that agree on a step settle it. A round that leaves the others is odd, and counts no further."""

    def __init__(self) -> None:
        self.rounds = 0
        self.settled = False
        self._kept: dict[int, Sequence[Hashes]] = {}
        """Rounds by their numbers: all until the steps are settled, then one that is right."""

    @property
    def hopeless(self) -> bool:
        return not self.settled and self.rounds >= MAX_ROUNDS

    def add(self, steps: Sequence[Hashes]) -> list[OddRound]:
        """Takes in a round, and tells what is known to be odd since."""
        self.rounds += 1
        if self.settled:
            [right] = self._kept.values()
            step = next((at for at, pair in enumerate(zip(steps, right, strict=True)) if pair[0] != pair[1]), None)
            return [] if step is None else [self._odd(self.rounds, step, steps[step], right[step])]
        self._kept[self.rounds] = steps
        return self._settle()

    def _settle(self) -> list[OddRound]:
        """Goes down the steps with those that agree, and leaves the others behind; nobody is odd until all is known."""
        odd: list[OddRound] = []
        alike = dict(self._kept)
        for step in range(len(next(iter(alike.values())))):
            votes = Counter(steps[step] for steps in alike.values())
            [(right, count), *others] = votes.most_common()
            if count < 2 or (others and others[0][1] == count):
                return self._never_alike(step, alike, odd) if self.hopeless else []
            odd += [
                self._odd(number, step, steps[step], right) for number, steps in alike.items() if steps[step] != right
            ]
            alike = {number: steps for number, steps in alike.items() if steps[step] == right}
        self.settled = True
        self._kept = dict([next(iter(alike.items()))])
        return odd

    def _never_alike(self, step: int, alike: dict[int, Sequence[Hashes]], odd: list[OddRound]) -> list[OddRound]:
        if len(alike) == 1:
            return odd  # all the others are odd before, and nothing is left to hold this one against
        seen = [steps[step] for steps in alike.values()]
        places = tuple(place for place, values in enumerate(zip(*seen, strict=True)) if len(set(values)) > 1)
        return [*odd, OddRound(round=self.rounds, step=step, places=places, never_alike=True)]

    @staticmethod
    def _odd(number: int, step: int, found: Hashes, right: Hashes) -> OddRound:
        places = tuple(place for place, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1])
        return OddRound(round=number, step=step, places=places)
