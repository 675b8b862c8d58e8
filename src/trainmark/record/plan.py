"""One run, fully decided: what a worker is told, and the fingerprint by which two runs are known to be alike."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any

import msgspec

from trainmark.record.errors import UsageError, describe_misfit
from trainmark.record.numbers import Count, Finite, Whole
from trainmark.record.recipe import Deviation, Limits, Value


@dataclass(frozen=True, kw_only=True, order=True)
class Topology:
    nodes: int
    devices_per_node: int

    @classmethod
    def parse(cls, text: str) -> Topology:
        match = re.fullmatch(r"([1-9][0-9]{0,5})[xX×*]([1-9][0-9]{0,5})", text.strip())
        if not match:
            raise UsageError(f"topology {text!r} is not NODESxDEVICES; try '1x8'")
        return cls(nodes=int(match[1]), devices_per_node=int(match[2]))

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.devices_per_node}"


PLAN_SCHEMA = 1
NO_FOLDER = ""
"""Stands for the folder of data that a workload from outside makes in memory."""


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """Which data a run reads. Where it lies is a fact of one machine and not part of the fingerprint."""

    name: str
    """The set's name."""
    folder: str
    synthetic: bool
    """True for data made by trainmark itself, which no accuracy claim may rest on. Documents and fingerprints call it
    `generated`, as the first plans did, so that those stay what they are."""


@dataclass(frozen=True, kw_only=True)
class WorkloadSource:
    """Where a workload that is not ours came from."""

    sha256: str
    """Of the file that defines it."""
    file: str = ""
    package: str = ""
    """Name and version of the package that offers it, where it is not a file of its own."""
    entry: str = ""
    """The entry point's name in that package."""

    def __str__(self) -> str:
        return f"{self.file or self.package} (sha256 {self.sha256[:12]})"


@dataclass(frozen=True, kw_only=True)
class Plan:
    workload: str
    recipe_name: str
    recipe: Mapping[str, Value]
    deviations: tuple[Deviation, ...]
    topology: str
    precision: str
    platform: str
    data: DataChoice
    limits: Limits = field(default_factory=Limits)
    skip_bad: Whole = 0
    """Corrupt data files that may be left out before the run fails."""
    hang_timeout_s: Finite | None = None
    """No progress for this long ends the run; None decides it from the median step."""
    max_restarts: Whole = 0
    """How often the launcher may start the ranks again after a failure, from their last checkpoint."""
    profile: Whole = 0
    """Steps to look at under torch's profiler, after those that count."""
    resume_from: str | None = None
    """Checkpoint folder to go on from."""
    init_from: str | None = None
    """File of weights to begin with instead of random ones."""
    init_sha256: str | None = None
    """What that file held, wherever it lies."""
    workload_source: WorkloadSource | None = None
    """Of a workload from outside: the file or package it came from."""

    @property
    def platform_word(self) -> str:
        """The platform by its name, or the name of the user's own file wherever it lies."""
        return PurePath(self.platform).name if self.platform.endswith(".toml") else self.platform

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two plans that ask for the same training on the same kind of platform, wherever their files lie."""
        asked = {
            "schema": PLAN_SCHEMA,
            "workload": self.workload,
            "recipe": dict(self.recipe),
            "topology": self.topology,
            "precision": self.precision,
            "platform": self.platform_word,
            "data": {"name": self.data.name, "generated": self.data.synthetic},
            "limits": {name: value for name, value in vars(self.limits).items() if name not in ("items", "wall_s")},
            "skip_bad": self.skip_bad,
        }
        later = {"init_sha256": self.init_sha256, "items": self.limits.items}
        if self.workload_source is not None:
            later["workload_sha256"] = self.workload_source.sha256
        # left out where not asked for, so that earlier plans keep their fingerprint
        asked.update({name: value for name, value in later.items() if value is not None})
        canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def last_step(self, *, first_step: int, steps_per_epoch: int | None, items_per_step: float | None) -> int | None:
        """The step at which the run ends at the latest, where that is fixed; it began with `first_step`."""
        if self.limits.steps is not None or (self.limits.items is not None and items_per_step):
            return first_step + (self.limits.most_steps(items_per_step or 1.0) or 0)
        if not self.limits.full:
            return None
        cap = {name: int(self.recipe.get(name, 0)) for name in ("steps", "epochs", "items")}
        ends = [cap["steps"]]
        if steps_per_epoch:
            ends += [steps_per_epoch * cap["epochs"], steps_per_epoch * (self.limits.epochs or 0)]
        if items_per_step:
            ends.append(math.ceil(cap["items"] / items_per_step))
        return min((end for end in ends if end), default=None)

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["data"]["generated"] = fields["data"].pop("synthetic")
        return {"schema": PLAN_SCHEMA, **fields, "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """UsageError where it is no plan, or was changed since; fields of a newer trainmark are passed over."""
        try:
            head = msgspec.convert(document, _PlanHead)
            if head.schema != PLAN_SCHEMA:
                raise UsageError(f"this plan has schema {head.schema!r}; this trainmark reads schema {PLAN_SCHEMA}")
            data = document.get("data")
            if isinstance(data, Mapping):
                document = {**document, "data": {**data, "synthetic": data.get("generated")}}
            plan = msgspec.convert(document, cls)
            msgspec.convert(plan.recipe, _SharedValues)
            Topology.parse(plan.topology)
        except msgspec.ValidationError as error:
            raise UsageError(f"this plan is damaged: {describe_misfit(error)}") from error
        if head.fingerprint != plan.fingerprint:
            raise UsageError("this plan was changed after it was decided: its fingerprint does not match")
        return plan


class _SharedValues(msgspec.Struct):
    """What others than the workload itself read of a recipe; those with a default came later."""

    batch_per_device: Count
    target: Finite
    accumulate: Count = 1
    epochs: Count = 0
    steps: Count = 0
    items: Count = 0


class _PlanHead(msgspec.Struct):
    schema: Any = None
    fingerprint: Any = None
