"""What verifies say of the hosts of a fleet: whose arithmetic was proved, whose is wrong, whose nobody looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainmark.analysis.verification import line
from trainmark.spec.verify import Verdict, VerifyDocument


@dataclass(frozen=True, kw_only=True)
class HostProof:
    """One verify, as it is of one host."""

    host: str
    verify_id: str
    created: str
    sentence: str
    """Of the whole verify."""
    verdict: Verdict
    """Of this host alone."""
    wrong: tuple[str, ...] = ()
    """What came out wrong on it, in sentences."""


def of_hosts(told: Iterable[VerifyDocument], names: Mapping[str, Sequence[str]]) -> Iterator[HostProof]:
    """Of each host every verify it took part in; `names` says by which names a host may be known over there."""
    for one in told:
        for host, known in names.items():
            if not {*known} & {*one.hosts}:
                continue
            wrong = tuple(
                line(each, one.hosts)
                for each in one.differences
                if each.rank < len(one.hosts) and one.hosts[each.rank] in known
            )
            verdict: Verdict = one.verdict
            if one.verdict == "wrong" and not wrong:
                verdict = "equal"  # what is wrong is another's doing
            yield HostProof(
                host=host,
                verify_id=one.verify_id,
                created=one.created,
                sentence=one.sentence,
                verdict=verdict,
                wrong=wrong if verdict == "wrong" else (),
            )
