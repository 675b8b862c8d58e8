"""How many words a recogniser heard otherwise than they were said."""

from __future__ import annotations

import re
from collections.abc import Sequence


def normalised(text: str) -> list[str]:
    """The words of a text in small letters; letters and the apostrophe are all that counts."""
    return re.sub(r"[^a-z' ]+", " ", text.lower().replace("’", "'")).split()


def errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """The fewest words that must be put in, left out or changed to make one of the other."""
    row = list(range(len(heard) + 1))
    for place, word in enumerate(said, 1):
        diagonal, row[0] = row[0], place
        for other, found in enumerate(heard, 1):
            changed = diagonal + (word != found)
            diagonal, row[other] = row[other], min(changed, row[other] + 1, row[other - 1] + 1)
    return row[-1]


def error_rate(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Over pairs of what was said and what was heard: errors a word said; above 1 where more was heard than said."""
    words = [(normalised(said), normalised(heard)) for said, heard in pairs]
    count = sum(len(said) for said, _ in words)
    return sum(errors(said, heard) for said, heard in words) / count if count else None
