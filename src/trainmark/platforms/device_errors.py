"""Tells errors of a device, its driver or its plugin from others, and says them in one sentence; needs no torch."""

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
    """What an error says, without what follows: torch's dispatcher lays out its whole table there."""
    return str(error).strip().partition("\n")[0].strip()


def is_out_of_memory(error: BaseException, pattern: str | None = None) -> bool:
    """By torch's own word for it, or by a `pattern` found in what a vendor's error says."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, (RuntimeError, MemoryError)):
        return False
    said = str(error)
    return _NO_MEMORY.search(said) is not None or bool(pattern and re.search(pattern, said))


def find_missing_operator(error: BaseException) -> str | None:
    """The operator that a device does not have, by the name in torch's error."""
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
        said = f"{type(error).__name__}: {first_line(error)}"
        return f"torch.compile cannot compile the network for this device ({said}); leave out --set compiled=yes"
    return None


def describe_broken_plugin(error: BaseException) -> str | None:
    """Whose it is where torch itself cannot be imported because a plugin that it loads by itself fails."""
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
    """`stepper.py:72`, the innermost line of ours that an error came through; empty where there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "trainmark" in Path(frame.filename).parts]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _is_compiler_error(error: BaseException) -> bool:
    """A compiled network's own errors pass through the compiler, but do not begin there."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _COMPILER.search(frames[-1].filename) is not None
