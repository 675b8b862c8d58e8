"""A record under audit: what it says, as it stands in its file, and what can be rebuilt from its raw series."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainmark import workloads
from trainmark.spec.record import Record
from trainmark.spec.telemetry import MachineTelemetry
from trainmark.spec.timeline import RankTrace, Timeline
from trainmark.spec.topology import Topology
from trainmark.spec.workload_facts import WorkloadFacts


@dataclass(frozen=True, kw_only=True)
class RecordCase:
    record: Record
    document: Mapping[str, Any] | None = None
    """The file's JSON as it was read; None where only the record is at hand."""

    @cached_property
    def written(self) -> dict[str, Any]:
        """The document this record would be written as."""
        found: dict[str, Any] = json.loads(json.dumps(self.record.to_json()))
        return found

    @cached_property
    def whole(self) -> Timeline:
        """All steps, with no warm-up left out."""
        return Timeline(ranks=self.record.timeline.ranks)

    @property
    def ranks(self) -> tuple[RankTrace, ...]:
        return self.record.timeline.ranks

    @cached_property
    def devices(self) -> int:
        return Topology.parse(self.record.plan.topology).devices

    @property
    def step_batch(self) -> int:
        """Samples one device takes in a step."""
        recipe = self.record.plan.recipe
        return int(recipe["batch_per_device"]) * int(recipe.get("accumulate", 1))

    @property
    def resumed(self) -> bool:
        """Its first step is not the training's first, and the record does not say which it is."""
        return self.record.plan.resume_from is not None

    @cached_property
    def steps_per_epoch(self) -> int | None:
        """From the evaluations, which say at which step and at which part of which epoch they stood."""
        for evaluation in self.record.quality.history:
            if (evaluation.epoch or 0) > 0:
                return round(evaluation.step / (evaluation.epoch or 0))
        return None

    @cached_property
    def facts(self) -> WorkloadFacts | None:
        """What is known of its workload here, or by what it carries."""
        return workloads.facts_of(self.record)

    @cached_property
    def machines(self) -> list[MachineTelemetry]:
        return list(self.record.telemetry.machines)

    def value(self, alias: str) -> float | None:
        quantity = self.record.metrics.get(alias)
        return None if quantity is None else quantity.value

    @staticmethod
    def total_ns(trace: RankTrace) -> int:
        """All time a rank's clock charged to anything."""
        return sum(trace.phases_ns.values()) + trace.busy_ns
