"""Counter-based random numbers: a function of a key of integers, the same in every process."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class CounterRng:
    """SplitMix64 over a hashed key.

    No state is shared, so a sample's numbers do not depend on process, rank or order; plain integers cost a few
    microseconds per sample, where a numpy generator for each would cost tens.
    """

    __slots__ = ("_state",)

    def __init__(self, *key: int) -> None:
        state = 0
        for word in key:
            state = _mix((state + _GOLDEN) ^ (word & _MASK))
        self._state = state

    def uniform(self) -> float:
        """In [0, 1), with 53 bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return (_mix(self._state) >> 11) * 2.0**-53

    def below(self, stop: int) -> int:
        """An integer in [0, stop)."""
        return int(self.uniform() * stop)


def _mix(word: int) -> int:
    """SplitMix64's finalizer."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
