"""One run with every setting decided, and the fingerprint by which runs are recognised as repeats."""

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
NAME = r"[A-Za-z0-9][A-Za-z0-9_.:-]*"
"""A name out of a document: of a workload, recipe or built-in platform. It never leads to a file."""
NO_FOLDER = ""
"""The data folder of an external workload that makes its data in memory."""


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """The data of a run; its folder is not part of the fingerprint."""

    name: str
    """The set's name."""
    folder: str
    synthetic: bool
    """True for data made by trainmark itself; documents and fingerprints call it `generated`, as plans always did."""


@dataclass(frozen=True, kw_only=True)
class WorkloadSource:
    """The origin of an external workload."""

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
    """Corrupt data files that may be skipped before the run fails."""
    hang_timeout_s: Finite | None = None
    """Timeout without progress; None derives it from the median step."""
    max_restarts: Whole = 0
    """Restarts allowed after a failure, from the last checkpoint."""
    profile: Whole = 0
    """Steps to run under torch.profiler, after the counted ones."""
    resume_from: str | None = None
    """Checkpoint folder to resume from."""
    init_from: str | None = None
    """File of initial weights; None for random ones."""
    init_sha256: str | None = None
    """SHA-256 of that file."""
    workload_source: WorkloadSource | None = None
    """Of a workload from outside: the file or package it came from."""

    @property
    def platform_word(self) -> str:
        """The platform by its name, or the name of the user's own file wherever it lies."""
        return PurePath(self.platform).name if self.platform.endswith(".toml") else self.platform

    @cached_property
    def fingerprint(self) -> str:
        """Equal for plans of the same training on the same kind of platform, wherever their files are."""
        content = {
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
        # omitted where unset, so that earlier plans keep their fingerprint
        content.update({name: value for name, value in later.items() if value is not None})
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def last_step(self, *, first_step: int, steps_per_epoch: int | None, items_per_step: float | None) -> int | None:
        """The last step of a run that began with `first_step`, where that is fixed."""
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
        """UsageError where it is no plan, or was changed; unknown fields are ignored."""
        try:
            head = msgspec.convert(document, _PlanHead)
            if head.schema != PLAN_SCHEMA:
                raise UsageError(f"this plan has schema {head.schema!r}; this trainmark reads schema {PLAN_SCHEMA}")
            data = document.get("data")
            if isinstance(data, Mapping):
                document = {**document, "data": {**data, "synthetic": data.get("generated")}}
            plan = msgspec.convert(document, cls)
            names = [plan.workload, plan.recipe_name, plan.precision]
            names += [] if plan.platform.endswith(".toml") else [plan.platform]
            if strange := [name for name in names if not re.fullmatch(NAME, name)]:
                raise UsageError(f"this plan is damaged: {strange[0]!r} is no name")
            msgspec.convert(plan.recipe, _SharedValues)
            Topology.parse(plan.topology)
        except msgspec.ValidationError as error:
            raise UsageError(f"this plan is damaged: {describe_misfit(error)}") from error
        if head.fingerprint != plan.fingerprint:
            raise UsageError("this plan was changed: its fingerprint does not match")
        return plan


class _SharedValues(msgspec.Struct):
    """Recipe fields that the kernel reads; those with a default came later."""

    batch_per_device: Count
    target: Finite
    accumulate: Count = 1
    epochs: Count = 0
    steps: Count = 0
    items: Count = 0


class _PlanHead(msgspec.Struct):
    schema: Any = None
    fingerprint: Any = None
