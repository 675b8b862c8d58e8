"""Why a run ends, in the words its record keeps."""

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
"""Ends that somebody asked for; such a run is incomplete and exits with 128 and the signal's number."""
WITHOUT_A_MODEL = (INTERRUPTED, TERMINATED, NOT_FINITE)
"""Ends of a run whose model has nothing to show, or whose user waits for the end."""

INVALID_CODE = 5
"""The exit code of a rank whose loss was not finite: its result is invalid, and every invalid result has this code."""
SAME_AGAIN = (2, 3, INVALID_CODE)
"""Exit codes that another try would give again, and whose sentence says all there is: wrong words, a machine that is
not ready, a loss that is not finite."""


def launcher_ending(name: str) -> str:
    """The words of a launcher whose ranks could not say themselves which signal it was."""
    return BY_LAUNCHER.format(name=name)


def translate_ending(ended: str, say: Say) -> str:
    """Why a run ended, in the reader's language; what another program said of it stays as it is."""
    before = launcher_ending("")
    if ended.startswith(before):
        return say(BY_LAUNCHER).format(name=ended.removeprefix(before))
    return say(ended)


def is_signal_ending(ended: str) -> bool:
    """Whether somebody ended the run, by the words of its record."""
    return ended in BY_SIGNAL or ended.startswith(launcher_ending(""))
