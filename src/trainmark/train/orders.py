"""What a worker does that was started before its run was decided: it imports what it will need, and waits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from trainmark import workloads
from trainmark.train.ranks import EARLY


def early_words(words: Sequence[str]) -> Sequence[str]:
    """A worker's words, which come later where it was started early; it ends where they never come."""
    if words[:1] != [EARLY]:
        return words
    import torch._dynamo  # noqa: F401 - an optimizer imports it in its first step

    from trainmark.train import after_training, loop, setup, step_profile  # noqa: F401

    for name in set(words[1:]) & set(workloads.names()):
        workloads.load(name)
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    told: list[str] = json.loads(line)
    return told
