"""Everything a user may say about a run, whether on a command line or to the API."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from trainmark.spec.errors import UsageError
from trainmark.spec.labels import check_note, parse_tags
from trainmark.spec.recipe import LARGEST
from trainmark.spec.topology import Topology

BARE_BUDGET_S = 180.0
"""What a command that names neither workload nor length takes, however many workloads there are."""
LIMITS = ("steps", "seconds", "epochs", "items")
"""By what a run may stop before its recipe ends."""


def _option(default: Any, option: str) -> Any:
    """A field whose option has another name on a command line than the field has here."""
    return field(default=default, metadata={"option": option})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What was said; what was not is None, or what is usual."""

    workloads: tuple[str, ...] = ()
    """None means all of them."""
    recipe: str | None = None
    topology: str | None = None
    sweep: str | None = None
    """Topologies to run one after the other, joined by commas."""
    precision: str | None = None
    platform: str | None = None
    data: str | None = None
    steps: int | None = None
    seconds: float | None = None
    epochs: int | None = None
    items: int | None = None
    budget_s: float | None = _option(None, "--budget")
    """What all runs together may take, data making and start-up included."""
    settings: tuple[str, ...] = _option((), "--set")
    """Fields of the recipe, each as `key=value`."""
    seed: int | None = None
    init_from: str | None = None
    skip_bad: int = 0
    max_restarts: int = 0
    profile: int = 0
    hang_timeout_s: float | None = _option(None, "--hang-timeout")
    repeat: int = 1
    tags: tuple[str, ...] = _option((), "--tag")
    """By which the runs are found later, each as `key=value`."""
    note: str | None = None
    store: str | None = None
    resume: str | None = None
    hosts: str | None = None
    port: int | None = None
    trust: bool = False
    """Follow what a file in the working folder, or a record, says of programs."""
    join_timeout_s: float | None = _option(None, "--join-timeout")
    strict: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, least in (("repeat", 1), ("skip_bad", 0), ("max_restarts", 0), ("profile", 0)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} must be at least {least}, not {getattr(self, name)}")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise UsageError(f"--budget must be more than 0 seconds, not {self.budget_s:g}")
        for each in fields(self):
            self._check_value(_option_of(each), getattr(self, each.name))
        parse_tags(self.tags)
        check_note(self.note or "")
        if len(ends := [name for name in LIMITS if getattr(self, name) is not None]) > 1:
            raise UsageError(f"--{ends[0]} and --{ends[1]} both say when the run stops; leave one of them out")

    def sweep_topologies(self) -> list[Topology]:
        """Those of --sweep, smallest first; UsageError where it does not go with what else was said."""
        words = (self.sweep or "").split(",")
        found = sorted({Topology.parse(word) for word in words}, key=lambda each: (each.devices, each.nodes))
        for name in ("topology", "hosts", "resume"):
            if getattr(self, name) is not None:
                raise UsageError(f"--sweep says itself what runs where; leave --{name} out")
        if len(found) < 2:
            raise UsageError(f"--sweep {self.sweep} is one topology; name two or more, like 1x1,1x2,1x4")
        if len(self.workloads) != 1:
            raise UsageError("--sweep is for one workload; name it")
        if several := [each for each in found if each.nodes > 1]:
            raise UsageError(
                f"topology {several[0]} of --sweep needs several machines, and a sweep has this one; run it by itself "
                "with --hosts or in a job, and give all runs to 'trainmark scaling' and 'trainmark forecast'"
            )
        return found

    @property
    def shared_s(self) -> float | None:
        """The time that all runs share; None where nobody limits it."""
        lengths = any(getattr(self, name) is not None for name in LIMITS)
        if self.budget_s is None and not self.workloads and self.recipe in (None, "quick") and not lengths:
            return None if self.resume else BARE_BUDGET_S * self.repeat
        return self.budget_s

    def _check_value(self, option: str, value: object) -> None:
        """An empty text is a shell's variable that was never set; no training needs larger numbers."""
        if value == "":
            raise UsageError(f"{option} was given nothing; leave it out, or say what it is to be")
        if isinstance(value, (int, float)) and not abs(value) <= LARGEST:
            raise UsageError(f"{option} must be a number of at most {LARGEST:g}, not {value}")

    def is_set(self, name: str) -> bool:
        """True where the user said what a field of the recipe is to be."""
        return any(setting.partition("=")[0].strip() == name for setting in self.settings)

    def to_argv(self) -> tuple[tuple[str, ...], ...]:
        """As one would type it after `trainmark run`: the workloads, then each option with its value."""
        return (self.workloads, *self._typed())

    def _typed(self) -> Iterator[tuple[str, ...]]:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "workloads" or value == each.default:
                continue
            option = _option_of(each)
            if value is True:
                yield (option,)
                continue
            for text in map(str, value if isinstance(value, tuple) else [value]):
                # a value that looks like an option has to be tied to its own
                yield (f"{option}={text}",) if text.startswith("-") else (option, text)


def _option_of(each: Field[Any]) -> str:
    return str(each.metadata.get("option") or f"--{each.name.replace('_', '-')}")


def settings_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """A recipe's fields as a program has them, as `key=value`."""
    words = {True: "yes", False: "no"}
    return tuple(f"{name}={words[value] if isinstance(value, bool) else value}" for name, value in values.items())
