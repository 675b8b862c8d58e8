"""Says which rank failed first, where and how, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainmark.run.crew import Crew
from trainmark.run.gather import RankStory
from trainmark.spec.topology import Topology

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


def of_crew(crew: Crew) -> Fault | None:
    """What went wrong under this party, if anything did. A rank that ended without a word goes before those that only
    noticed it; among those that spoke, the first counts (they share a clock: they are on one machine)."""
    failed = sorted((story for story in crew.ranks if story.failed), key=lambda story: _failure(story)["at_ns"])
    causes = [story for story in failed if not _failure(story).get("consequence")]
    if causes:
        return _spoken(crew, causes[0])
    if any(story.end is None and not story.failed for story in crew.ranks) or (not failed and not crew.ended_well):
        death = crew.death()
        story = next(story for story in crew.ranks if story.rank == death.rank)
        return Fault(exit_code=4, sentence=_with_lines(crew, story, f"{_name(crew, story)} {death.how} {_at(story)}"))
    return _spoken(crew, failed[0]) if failed else None


def hang(crew: Crew) -> Fault:
    where = ", ".join(f"{_name(crew, story)} was last seen {_at(story)}" for story in crew.ranks)
    stacks = f"stacks are in {crew.folder}/rank*.stacks"
    return Fault(exit_code=HANG, sentence=f"no progress for {crew.limit_s:.0f} s: {where}; {stacks}")


def first(faults: Sequence[Fault]) -> Fault | None:
    """Of faults in the order they were noticed, the one the others followed from."""
    hangs = [fault for fault in faults if fault.exit_code == HANG]
    if hangs and len(hangs) == len(faults):
        return Fault(exit_code=HANG, sentence="; ".join(fault.sentence for fault in faults))
    return next(iter(_causes(faults)), faults[0] if faults else None)


def _causes(faults: Iterable[Fault]) -> list[Fault]:
    return [fault for fault in faults if not fault.consequence]


def _spoken(crew: Crew, story: RankStory) -> Fault:
    failure = _failure(story)
    code, sentence = int(failure["exit_code"]), str(failure["sentence"])
    consequence = bool(failure.get("consequence"))
    if Topology.parse(crew.plan.topology).devices > 1:
        sentence = f"{_name(crew, story)} failed {_at(story)}: {sentence}"
        if code not in SPOKEN_FOR:
            sentence = _with_lines(crew, story, sentence)
    return Fault(exit_code=code, sentence=sentence, consequence=consequence)


def _failure(story: RankStory) -> dict[str, Any]:
    return story.failed or {}


def _name(crew: Crew, story: RankStory) -> str:
    several_hosts = crew.place.parties > 1 and story.host
    return f"rank {story.rank} on {story.host}" if several_hosts else f"rank {story.rank}"


def _at(story: RankStory) -> str:
    return f"in {story.phase} at step {story.first_step + len(story.compute_ns)}"


def _with_lines(crew: Crew, story: RankStory, sentence: str) -> str:
    lines = crew.last_lines(story.rank)
    return f"{sentence}; its last lines:\n{lines}" if lines else sentence
