"""Random numbers that are a function of a key of whole numbers, the same in every process."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Draws:
    """Random numbers made by mixing a key with a counter (SplitMix64).

    No state is shared, so what a sample gets does not depend on which process, rank or order drew it; plain
    integers cost a few microseconds a sample, where building a numpy generator for each costs tens.
    """

    __slots__ = ("_state",)

    def __init__(self, *key: int) -> None:
        state = 0
        for word in key:
            state = _mixed((state + _GOLDEN) ^ (word & _MASK))
        self._state = state

    def uniform(self) -> float:
        """In [0, 1), with the 53 bits a float holds."""
        self._state = (self._state + _GOLDEN) & _MASK
        return (_mixed(self._state) >> 11) * 2.0**-53

    def below(self, stop: int) -> int:
        """A whole number in [0, stop)."""
        return int(self.uniform() * stop)


def _mixed(word: int) -> int:
    """Spreads every bit of a 64-bit word over all of them."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
