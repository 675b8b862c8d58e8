"""The options of a run, defined once: the command line, its inverse and the API's keywords are derived from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from os import PathLike, fspath
from typing import Any, NamedTuple, TypedDict

from trainmark.record.errors import UsageError
from trainmark.record.index import format_tags, parse_tags
from trainmark.record.numbers import parse_seconds
from trainmark.record.plan import Topology
from trainmark.record.precision import PRECISIONS
from trainmark.record.recipe import LARGEST

BARE_BUDGET_S = 180.0
"""The budget of a command without a workload and without a limit."""
MIN_BUDGET_S = 30.0
MAX_PORT = 65535
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{3,63}")
LIMITS = ("steps", "seconds", "epochs", "items")
"""Limits that stop a run before its recipe ends."""
PLAN, RECORD, SWEEP, LOCAL = "plan", "record", "sweep", "local"
"""Groups of options: of plans, of runs, of sweeps, of runs started here."""
Place = str | PathLike[str]
"""A file or a folder."""


class CommandOption(NamedTuple):
    """How a field is written on a command line."""

    flag: str
    """Empty for positional arguments."""
    group: str
    help: str
    metavar: str | None
    """None for a flag without a value."""
    parse: Callable[[str], object]


def _option(
    default: Any,
    group: str,
    help: str,  # noqa: A002 - argparse's word
    metavar: str | None = None,
    *,
    flag: str | None = None,
    parse: Callable[[str], object] = str,
) -> Any:
    metadata = {"flag": flag, "group": group, "help": help, "metavar": metavar, "parse": parse}
    return field(default=default, metadata=metadata)


def _parse_budget(text: str) -> float:
    if text.strip().isdigit():
        raise UsageError(f"--budget {text}: of what? try '{text}m' for minutes, '90s' or '1h'")
    seconds = parse_seconds(text, option="--budget")
    if seconds < MIN_BUDGET_S:
        raise UsageError(f"--budget must be at least {MIN_BUDGET_S:g} s, not {text}: a run needs as long to start")
    return seconds


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The requested options; None, or the default, where not given."""

    workloads: tuple[str, ...] = _option(
        (), PLAN, "what to train: a name, or a .py file that defines WORKLOAD (default: all of ours)", flag=""
    )
    recipe: str | None = _option(None, PLAN, "reference, fill, quick or smoke (default: quick)", "NAME")
    topology: str | None = _option(None, PLAN, "nodes x devices per node (default: 1x1)", "NxM")
    sweep: str | None = _option(
        None,
        SWEEP,
        "one workload at several topologies, like 1x1,1x2,1x4; given again, it continues",
        "NxM,...",
    )
    precision: str | None = _option(None, PLAN, f"one of {', '.join(PRECISIONS)} (default: fp32)", "P")
    platform: str | None = _option(None, PLAN, "a platform's name, or a .toml file (default: auto)", "NAME")
    data: str | None = _option(None, PLAN, "the real data set (default: a synthetic one, generated once)", "DIR")
    steps: int | None = _option(None, PLAN, "stop after N steps", "N", parse=int)
    seconds: float | None = _option(None, PLAN, "stop after S seconds of training", "S", parse=float)
    epochs: int | None = _option(None, PLAN, "stop after N epochs", "N", parse=int)
    items: int | None = _option(None, PLAN, "stop after N items: images, mel frames, tokens", "N", parse=int)
    budget_s: float | None = _option(
        None,
        PLAN,
        "time budget of all runs, data and start-up included: 90s, 3m, 1h (default: 3m without a workload)",
        "TIME",
        flag="--budget",
        parse=_parse_budget,
    )
    settings: tuple[str, ...] = _option((), PLAN, "change one field of the recipe", "key=value", flag="--set")
    seed: int | None = _option(None, PLAN, "the seed of weights, order and augmentation", "N", parse=int)
    init_from: str | None = _option(None, PLAN, "begin with the weights in FILE instead of random ones", "FILE")
    skip_bad: int = _option(0, PLAN, "skip up to N unreadable data files (default: 0)", "N", parse=int)
    max_restarts: int = _option(
        0, PLAN, "restart failed ranks up to K times from the last checkpoint (default: 0)", "K", parse=int
    )
    profile: int = _option(0, PLAN, "profile N extra steps after training (torch.profiler)", "N", parse=int)
    hang_timeout_s: float | None = _option(
        None,
        PLAN,
        "end the run after S seconds without progress (default: by step time; at least 30 during start-up)",
        "S",
        flag="--hang-timeout",
        parse=float,
    )
    repeat: int = _option(1, RECORD, "run K times and report the spread", "K", parse=int)
    group: str | None = _option(None, LOCAL, "name of a group of runs (default: random for repeats and sweeps)", "NAME")
    tags: tuple[str, ...] = _option(
        (), RECORD, "stored in the record, to find the run; may be repeated", "key=value", flag="--tag"
    )
    note: str | None = _option(None, RECORD, "stored in the record, for people", "TEXT")
    store: str | None = _option(
        None, RECORD, "where records are kept (default: $TRAINMARK_STORE or the user's data folder)", "DIR"
    )
    resume: str | None = _option(None, LOCAL, "resume an earlier run from its last checkpoint", "RUN")
    hosts: str | None = _option(None, LOCAL, "the nodes of a topology such as 2x8, reached by ssh", "A,B")
    port: int | None = _option(None, LOCAL, "port of the first of several nodes", "N", parse=int)
    trust: bool = _option(False, LOCAL, "run code and programs that a plan, or trainmark.toml in this folder, names")
    join_timeout_s: float | None = _option(
        None, RECORD, "seconds the nodes wait for each other (default: 60)", "S", flag="--join-timeout", parse=float
    )
    strict: bool = _option(
        False, RECORD, "exit 5 if the target is missed, the result is too noisy, or the precision differs"
    )
    quiet: bool = _option(False, RECORD, "no progress, only the result")

    def __post_init__(self) -> None:
        for name, least in (("repeat", 1), ("skip_bad", 0), ("max_restarts", 0), ("profile", 0)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} must be at least {least}, not {getattr(self, name)}")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise UsageError(f"--budget must be more than 0 seconds, not {self.budget_s:g}")
        if self.port is not None and not 0 < self.port <= MAX_PORT:
            raise UsageError(f"--port must be between 1 and {MAX_PORT}, not {self.port}")
        if self.group and not _GROUP.fullmatch(self.group):
            raise UsageError(f"--group {self.group!r} is not a name of letters, digits and '-'; try week-47")
        for each in fields(self):
            self._check_value(read_option(each).flag, getattr(self, each.name))
        parse_tags(self.tags)
        check_note(self.note or "")
        if len(ends := [name for name in LIMITS if getattr(self, name) is not None]) > 1:
            raise UsageError(f"--{ends[0]} and --{ends[1]} are both limits of the run; leave one of them out")

    def sweep_topologies(self) -> list[Topology]:
        """The topologies of --sweep, smallest first; UsageError where other options contradict it."""
        words = (self.sweep or "").split(",")
        found = sorted({Topology.parse(word) for word in words}, key=lambda each: (each.devices, each.nodes))
        for name in ("topology", "resume", "group"):
            if getattr(self, name) is not None:
                raise UsageError(f"--sweep does not work with --{name}; leave it out")
        if len(found) < 2:
            raise UsageError(f"--sweep {self.sweep} is one topology; name two or more, like 1x1,1x2,1x4")
        if len(self.workloads) != 1:
            raise UsageError("--sweep is for one workload; name it")
        nodes, hosts = max(each.nodes for each in found), len(self.hosts.split(",")) if self.hosts else 1
        if self.hosts and nodes != hosts:
            raise UsageError(f"--hosts names {hosts} hosts, and the largest topology of --sweep has {nodes} nodes")
        if nodes > hosts:
            several = next(each for each in found if each.nodes > 1)
            raise UsageError(
                f"topology {several} of --sweep needs several machines; name them with --hosts, or run it by itself "
                "in a job and give all runs to 'trainmark scaling' and 'trainmark forecast'"
            )
        return found

    @property
    def has_limit(self) -> bool:
        return any(getattr(self, name) is not None for name in LIMITS)

    @property
    def shared_s(self) -> float | None:
        """The time budget of all runs; None where unlimited."""
        if self.budget_s is None and not self.workloads and self.recipe in (None, "quick") and not self.has_limit:
            return None if self.resume else BARE_BUDGET_S * self.repeat
        return self.budget_s

    def _check_value(self, option: str, value: object) -> None:
        """An empty value is usually an unset shell variable; no training needs larger numbers."""
        if value == "":
            raise UsageError(f"{option}: empty value; leave it out, or give one")
        if isinstance(value, (int, float)) and not abs(value) <= LARGEST:
            raise UsageError(f"{option} must be a number of at most {LARGEST:g}, not {value}")

    def is_set(self, name: str) -> bool:
        """True where --set gives a field of the recipe."""
        return any(setting.partition("=")[0].strip() == name for setting in self.settings)

    def to_argv(self) -> tuple[tuple[str, ...], ...]:
        """The arguments of `trainmark run`: the workloads, then each option with its value."""
        return (self.workloads, *self._format_options())

    def _format_options(self) -> Iterator[tuple[str, ...]]:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "workloads" or value == each.default:
                continue
            option = read_option(each).flag
            if value is True:
                yield (option,)
                continue
            for text in map(str, value if isinstance(value, tuple) else [value]):
                # a value that looks like an option is joined by =
                yield (f"{option}={text}",) if text.startswith("-") else (option, text)


def read_option(each: Field[Any]) -> CommandOption:
    """The command line option of a field of RunOptions."""
    written = dict(each.metadata)
    if written["flag"] is None:
        written["flag"] = f"--{each.name.replace('_', '-')}"
    return CommandOption(**written)


def format_settings(values: Mapping[str, object]) -> tuple[str, ...]:
    """Fields of a recipe as `key=value`."""
    words = {True: "yes", False: "no"}
    return tuple(f"{name}={words[value] if isinstance(value, bool) else value}" for name, value in values.items())


class PlanKeywords(TypedDict, total=False):
    """The Python keywords of a plan; a test compares them with RunOptions."""

    recipe: str | None
    topology: str | None
    precision: str | None
    platform: str | None
    data: Place | None
    steps: int | None
    seconds: float | None
    epochs: int | None
    items: int | None
    set: Mapping[str, object] | None
    seed: int | None
    init_from: Place | None


class RunKeywords(PlanKeywords, total=False):
    """The Python keywords of one run."""

    budget_s: float | None
    skip_bad: int
    max_restarts: int
    profile: int
    hang_timeout_s: float | None
    group: str | None
    tags: Mapping[str, str] | None
    note: str | None
    store: Place | None
    resume: str | None
    hosts: str | None
    port: int | None
    trust: bool
    join_timeout_s: float | None
    strict: bool
    quiet: bool


def from_keywords(workloads: tuple[str, ...], given: Mapping[str, Any], known: type) -> RunOptions:
    """Options from Python keywords: paths, and mappings for settings and tags."""
    if unknown := [name for name in given if name not in known.__annotations__]:
        raise TypeError(f"{unknown[0]!r} is no option here; known: {', '.join(known.__annotations__)}")
    values = {name: fspath(value) if isinstance(value, PathLike) else value for name, value in given.items()}
    values["settings"] = format_settings(values.pop("set", None) or {})
    values["tags"] = format_tags(values.get("tags") or {})
    return RunOptions(workloads=workloads, **values)


LONGEST_NOTE = 1000


def check_note(note: str) -> None:
    if len(note) > LONGEST_NOTE:
        raise UsageError(f"--note has {len(note)} characters; {LONGEST_NOTE} is the maximum")
