"""External workloads: a file that defines WORKLOAD, or an entry point of an installed package."""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import NAME, WorkloadSource
from trainmark.record.trust import is_trusted

if TYPE_CHECKING:
    from trainmark.workloads.workload import Workload

GROUP = "trainmark.workloads"
"""Entry-point group of workloads."""


_loaded: set[str] = set()
"""Files of external workloads that this process has executed."""


def describe_error(error: BaseException) -> str | None:
    """The user's own error in a sentence, with the innermost line of an external workload in its traceback; None for
    an error that no such workload was part of."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _loaded]
    if not frames:
        return None
    where = f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}"
    return f"{where}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def is_file(word: str) -> bool:
    """True if the word is a file and not a name."""
    return word.endswith(".py") or "/" in word


def list_entry_points() -> dict[str, metadata.EntryPoint]:
    """Entry points of installed packages, by name."""
    return {entry.name: entry for entry in metadata.entry_points(group=GROUP)}


def from_file(word: str) -> tuple[Workload, WorkloadSource]:
    path = Path(word).expanduser().absolute()
    try:
        code = path.read_bytes()
    except OSError as error:
        raise UsageError(f"workload file {path} cannot be read: {error.strerror or error}") from error
    sha256 = hashlib.sha256(code).hexdigest()
    module = _execute_file(path, code, sha256)
    source = WorkloadSource(file=str(path), sha256=sha256)
    return _check(getattr(module, "WORKLOAD", None), str(path)), source


def from_package(entry: metadata.EntryPoint) -> tuple[Workload, WorkloadSource]:
    where = f"entry point {entry.name} = {entry.value}"
    try:
        found = entry.load()
        file = str(sys.modules[entry.module].__file__)
        code = Path(file).read_bytes()
    except Exception as error:  # any exception of an external module becomes a message
        raise UsageError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    _loaded.add(file)
    workload = _check(getattr(found, "WORKLOAD", found), where)
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module
    return workload, WorkloadSource(package=package, entry=entry.name, sha256=hashlib.sha256(code).hexdigest())


def reload(source: WorkloadSource) -> Workload:
    """The workload of a plan; NotReadyError if its source changed since."""
    if source.file:
        if not is_trusted(Path(source.file)):
            raise UsageError(f"a plan names the workload file {source}, which would run code here; add --trust")
        if not Path(source.file).is_file():
            raise NotReadyError(f"workload file {source.file} no longer exists; restore it, or run another file")
        workload, found = from_file(source.file)
    elif source.entry in list_entry_points():
        workload, found = from_package(list_entry_points()[source.entry])
    else:
        raise NotReadyError(f"workload {source.entry!r} of {source.package} is not installed; install that package")
    if found.sha256 != source.sha256:
        raise NotReadyError(
            f"{found.file or found.package} was changed after the run was planned (sha256 {found.sha256[:12]}, planned "
            f"{source.sha256[:12]}); start a new run of it"
        )
    return workload


def _execute_file(path: Path, code: bytes, sha256: str) -> ModuleType:
    """Executes a file as a module, once per process; registered, because dataclasses look up their module."""
    name = f"trainmark_outside_{sha256}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    _loaded.add(str(path))
    sys.modules[name] = module
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)  # noqa: S102 - the file is what the user runs
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"workload file {path}{line} cannot be loaded: {type(error).__name__}: {said}") from error
    return module


def _check(workload: Any, where: str) -> Workload:
    """Checks that a workload is complete and its name valid in a run id."""
    from trainmark.workloads import names
    from trainmark.workloads.workload import Workload

    if workload is None:
        raise UsageError(f"{where} defines no WORKLOAD; end it with WORKLOAD = YourClass()")
    if isinstance(workload, type):
        raise UsageError(f"WORKLOAD of {where} is a class; make it WORKLOAD = {workload.__name__}()")
    wanted = {*Workload.__annotations__, *(name for name in vars(Workload) if not name.startswith("_"))}
    if missing := sorted(name for name in wanted if not hasattr(workload, name)):
        raise UsageError(f"WORKLOAD of {where} has no {', '.join(missing)}; workloads/workload.py says what each is")
    if not isinstance(workload.name, str) or not re.fullmatch(NAME, workload.name):
        raise UsageError(f"WORKLOAD of {where} is called {workload.name!r}; give it a name of letters, digits, _ and .")
    if workload.name in names():
        raise UsageError(f"WORKLOAD of {where} is called {workload.name!r}, like a built-in one; give it another name")
    if strange := [name for name in workload.recipes if not re.fullmatch(NAME, str(name))]:
        raise UsageError(f"recipe {strange[0]!r} of {where} needs a name of letters, digits, _ . and -")
    if "reference" not in workload.recipes:
        raise UsageError(f"WORKLOAD of {where} has no recipe 'reference', which the others are compared with")
    checked: Workload = workload
    return checked
