"""Recognizes errors of a device, its driver or its plugin, and describes them in a sentence; needs no torch."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_NO_MEMORY = re.compile(r"(can't allocate|out of) memory")
_NO_OPERATOR = (
    re.compile(r"Could not run '(?P<name>[\w:.]+)' with arguments from the '(?P<where>\w+)' backend"),
    re.compile(r"The operator '(?P<name>[\w:.]+)' is not currently implemented for the (?P<where>\w+) device"),
    re.compile(r"\"(?P<name>\w+)\" not implemented for '(?P<where>\w+)'"),
    re.compile(r"(?P<name>aten::[\w.]+).{0,80}not (currently )?(implemented|supported)"),
)
_NO_PLUGIN = re.compile(r"Failed to load the backend extension: (?P<name>[\w.-]+?)\.? ")
_COMPILER = re.compile(r"[/\\]torch[/\\](_inductor|_dynamo|_functorch)[/\\]")


def first_line(error: BaseException) -> str:
    """The first line of a message: that of torch's dispatcher is followed by its whole table."""
    return str(error).strip().partition("\n")[0].strip()


def is_out_of_memory(error: BaseException, pattern: str | None = None) -> bool:
    """By the error type of torch, or by a `pattern` in the message of a vendor."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, (RuntimeError, MemoryError)):
        return False
    message = str(error)
    return _NO_MEMORY.search(message) is not None or bool(pattern and re.search(pattern, message))


def find_missing_operator(error: BaseException) -> str | None:
    """The operator that a device lacks, by its name in the message."""
    if not isinstance(error, (NotImplementedError, RuntimeError)):
        return None
    found = next(filter(None, (pattern.search(str(error)) for pattern in _NO_OPERATOR)), None)
    return found["name"] if found else None


def describe(error: BaseException) -> str | None:
    """What went wrong on the device and what to do; None where the error is not the device's."""
    if name := find_missing_operator(error):
        return (
            f"the device has no operator {name}, which this network needs; "
            "`trainmark platform check` lists all that are missing"
        )
    if type(error).__name__ == "AcceleratorError":
        return f"the device failed: {first_line(error)}"
    if _is_compiler_error(error):
        message = f"{type(error).__name__}: {first_line(error)}"
        return f"torch.compile cannot compile the network for this device ({message}); leave out --set compiled=yes"
    return None


def describe_broken_plugin(error: BaseException) -> str | None:
    """A sentence where torch cannot be imported because a plugin that it autoloads fails; else None."""
    found = _NO_PLUGIN.search(str(error))
    if found is None:
        return None
    from importlib.metadata import entry_points  # late: every command imports this module

    name = found["name"]
    packages = [entry.dist for entry in entry_points(group="torch.backends") if entry.name == name and entry.dist]
    whose = f" of the package {packages[0].name} {packages[0].version}" if packages else ""
    remove = f"uninstall it (pip uninstall {packages[0].name})" if packages else "uninstall it"
    cause = error.__cause__ or error
    return (
        f"torch cannot be imported, because its plugin {name}{whose} fails: {type(cause).__name__}: "
        f"{first_line(cause)}; install one for this torch, {remove}, or leave all plugins out with --platform cpu"
    )


def find_own_line(error: BaseException) -> str:
    """`stepper.py:72`, the innermost line of trainmark in a traceback; empty where there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "trainmark" in Path(frame.filename).parts]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _is_compiler_error(error: BaseException) -> bool:
    """Errors of a compiled network pass through the compiler, but are not raised there."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _COMPILER.search(frames[-1].filename) is not None
