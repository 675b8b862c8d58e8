"""Why a run ends, as recorded."""

from __future__ import annotations

import signal

from trainmark.record.language import Say

TARGET = "the target is reached"
CAP = "the recipe's cap of epochs is reached"
CAP_OF_STEPS = "the recipe's cap of steps is reached"
CAP_OF_ITEMS = "the recipe's cap of items is reached"
EPOCHS = "the epochs asked for are done"
STEPS = "the steps asked for are done"
ITEMS = "the items asked for are done"
SETTLED = "p_core is known as closely as asked"
SECONDS = "the time asked for is over"
BUDGET = "its share of the time budget is over"
INTERRUPTED = "interrupted"
TERMINATED = "terminated"
NOT_FINITE = "the loss is not finite"
CLOCKS_APART = "the device counts time unlike the host, so its throughput means nothing"
CUT_OFF = "the run was cut off"
LINKS_MEASURED = "the links are measured"
VERIFIED = "the arithmetic is verified"
BY_LAUNCHER = "the run was ended by {name}"

COMPLETE = (TARGET, CAP, CAP_OF_STEPS, CAP_OF_ITEMS, EPOCHS, STEPS, ITEMS, SETTLED, SECONDS, BUDGET)
"""Why a run ends whose result is valid."""
BY_SIGNAL = {INTERRUPTED: signal.SIGINT, TERMINATED: signal.SIGTERM}
"""Ends by a signal; such a run is incomplete and exits with 128 + the signal's number."""
WITHOUT_A_MODEL = (INTERRUPTED, TERMINATED, NOT_FINITE)
"""Ends after which no sample of the model is made."""

INVALID_CODE = 5
"""Exit code of every invalid result, such as a loss that is not finite."""
SAME_AGAIN = (2, 3, INVALID_CODE)
"""Exit codes that a restart would give again: invalid arguments, a machine that is not ready, an invalid result."""


def launcher_ending(name: str) -> str:
    """The end of a run whose launcher was ended by a signal of this name."""
    return BY_LAUNCHER.format(name=name)


def translate_ending(ended: str, say: Say) -> str:
    """Why a run ended, in the reader's language."""
    before = launcher_ending("")
    if ended.startswith(before):
        return say(BY_LAUNCHER).format(name=ended.removeprefix(before))
    return say(ended)


def is_signal_ending(ended: str) -> bool:
    """Whether a signal ended the run."""
    return ended in BY_SIGNAL or ended.startswith(launcher_ending(""))
