"""Says which rank failed first, where and how, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainmark.launch.workers import WorkerProcesses
from trainmark.spec.topology import Topology
from trainmark.store.gather import RankStory

HANG = 124
SPOKEN_FOR = (2, 3, 5)
"""Exit codes whose sentence says all there is: the rank's last lines would only repeat it."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    exit_code: int
    sentence: str
    consequence: bool = False
    """It only says that another rank went away."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Fault:
        return cls(**{name: document[name] for name in ("exit_code", "sentence", "consequence")})


def of_workers(workers: WorkerProcesses) -> Fault | None:
    """What went wrong under this launcher, if anything did. A rank that ended without a word goes before those that
    only noticed it; among those that spoke, the first counts (they share a clock: they are on one machine)."""
    failed = sorted((story for story in workers.ranks if story.failed), key=lambda story: _failure(story)["at_ns"])
    causes = [story for story in failed if not _failure(story).get("consequence")]
    if causes:
        return _spoken(workers, causes[0])
    if any(story.end is None and not story.failed for story in workers.ranks) or (
        not failed and not workers.ended_well
    ):
        death = workers.death()
        story = next(story for story in workers.ranks if story.rank == death.rank)
        return Fault(
            exit_code=4, sentence=_with_lines(workers, story, f"{_name(workers, story)} {death.how} {_at(story)}")
        )
    return _spoken(workers, failed[0]) if failed else None


def hang(workers: WorkerProcesses) -> Fault:
    where = ", ".join(f"{_name(workers, story)} was last seen {_at(story)}" for story in workers.ranks)
    stacks = f"stacks are in {workers.folder}/rank*.stacks"
    return Fault(exit_code=HANG, sentence=f"no progress for {workers.limit_s:.0f} s: {where}; {stacks}")


def first_fault(faults: Sequence[Fault]) -> Fault | None:
    """Of faults in the order they were noticed, the one the others followed from."""
    hangs = [fault for fault in faults if fault.exit_code == HANG]
    if hangs and len(hangs) == len(faults):
        return Fault(exit_code=HANG, sentence="; ".join(fault.sentence for fault in faults))
    return next(iter(_causes(faults)), faults[0] if faults else None)


def _causes(faults: Iterable[Fault]) -> list[Fault]:
    return [fault for fault in faults if not fault.consequence]


def _spoken(workers: WorkerProcesses, story: RankStory) -> Fault:
    failure = _failure(story)
    code, sentence = int(failure["exit_code"]), str(failure["sentence"])
    consequence = bool(failure.get("consequence"))
    if Topology.parse(workers.plan.topology).devices > 1:
        sentence = f"{_name(workers, story)} failed {_at(story)}: {sentence}"
        if code not in SPOKEN_FOR:
            sentence = _with_lines(workers, story, sentence)
    return Fault(exit_code=code, sentence=sentence, consequence=consequence)


def _failure(story: RankStory) -> dict[str, Any]:
    return story.failed or {}


def _name(workers: WorkerProcesses, story: RankStory) -> str:
    several_hosts = workers.env.launchers > 1 and story.host
    return f"rank {story.rank} on {story.host}" if several_hosts else f"rank {story.rank}"


def _at(story: RankStory) -> str:
    return f"in {story.phase} at step {story.first_step + len(story.compute_ns)}"


def _with_lines(workers: WorkerProcesses, story: RankStory, sentence: str) -> str:
    lines = workers.last_lines(story.rank)
    return f"{sentence}; its last lines:\n{lines}" if lines else sentence
