"""One row of a published benchmark table, with its source page."""

from __future__ import annotations

from dataclasses import dataclass

from trainmark.record.errors import UsageError
from trainmark.record.numbers import meets_goal
from trainmark.record.plan import Topology

PREFIX = "published:"
"""Prefix of the name of every published row, so that none is mistaken for a run."""
SYNTHETIC = "synthetic data"
"""In the remark of a row whose page says that it was not trained on the real set."""


@dataclass(frozen=True, kw_only=True)
class Source:
    title: str
    address: str
    date: str | None
    """Year and month, or day, of the release or measurement, where the page tells it."""


@dataclass(frozen=True, kw_only=True)
class PublishedDetail:
    """One more thing a row says, under its page's own word: a further quality, a rate without a unit, a setting."""

    name: str
    text: str
    """As the page writes it."""
    value: float | None = None
    """None where it is no number, or not for certain."""
    unit: str | None = None
    """As the page gives it; None where it gives none."""


@dataclass(frozen=True, kw_only=True)
class RowFinding:
    """What the audit found wrong or doubtful in a row when it was shipped or imported."""

    verdict: str
    """`wrong` or `doubtful`."""
    check: str
    """By its code: `mfu`, `scaling`."""
    sentence: str


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of a published table. None is what the page leaves out: not published."""

    name: str
    """Stays the same between versions: page, device, workload, topology, precision."""
    source: Source
    vendor: str
    device: str
    workload: str
    topology: str
    """Nodes x devices; any other word where the page does not tell how many there were."""
    precision: str
    """As the page labels it, which need not be what ran."""
    fix_hp: str | None
    """As the page writes it: `/` says that the workload's own recipe was used."""
    batch_per_device: int | None
    """From fix_hp; where that is `/`, what is known of the recipe it stands for, or None."""
    item: str | None
    e2e_time_s: float | None
    p_whole: float | None
    p_train: float | None
    p_core: float | None
    quality_name: str | None
    quality_unit: str | None
    quality: float | None
    target: float | None
    better: str | None
    """Whether a `higher` or a `lower` quality is better."""
    mem_used_gib: float | None
    mem_total_gib: float | None
    remark: str | None
    """What a reader has to know that no column says."""
    line: int | None = None
    """Of the page, counted from 1."""
    framework: str | None = None
    details: tuple[PublishedDetail, ...] = ()
    """What stands in the row beside the columns above."""
    findings: tuple[RowFinding, ...] = ()
    """The gravest first; none where the row is sound, or was never audited."""

    @property
    def devices(self) -> int | None:
        """How many there were in all; None where the page does not tell."""
        try:
            return Topology.parse(self.topology).devices
        except UsageError:
            return None

    @property
    def is_synthetic(self) -> bool:
        return SYNTHETIC in (self.remark or "")

    @property
    def took_to_target_s(self) -> float | None:
        """Its time where it ended at its target: by its quality, or in MLPerf, which counts no other results."""
        if self.quality is None or self.target is None:
            return self.e2e_time_s if self.name.startswith(f"{PREFIX}mlperf") else None
        return self.e2e_time_s if meets_goal(self.quality, self.target, self.better or "higher") else None

    @property
    def is_wrong(self) -> bool:
        return any(finding.verdict == "wrong" for finding in self.findings)

    @property
    def has_figures(self) -> bool:
        """Whether anything that was measured stands in it."""
        measured = (self.e2e_time_s, self.p_whole, self.p_train, self.p_core, self.quality, self.mem_used_gib)
        return any(value is not None for value in (*measured, *(detail.value for detail in self.details)))
