"""A fleet is judged as a whole: the slow host is named with what explains it, a good fleet accuses nobody."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from xml.etree.ElementTree import fromstring

import msgspec
import numpy as np
import pytest
from support.fleets import TEN, TWO_SLOW, device_telemetry, fleet_records, host_record, pair_links
from support.records import in_environment

from trainmark.features.fleet import outliers, view as fleet_view
from trainmark.features.fleet.hosts import FleetRuns, HostRuns, PairsDone, group_by_host
from trainmark.features.fleet.verdict import Fleet, judge, to_json
from trainmark.features.links.rounds import all_rounds, plan_rounds, split_into_rounds, summarise_pairs, usual_rounds
from trainmark.features.verify import verdict as verification
from trainmark.features.verify.document import VerifyDocument
from trainmark.record.errors import UsageError
from trainmark.record.events import BitDifference
from trainmark.record.record import Doubt, Record
from trainmark.record.site import Expected

FLOOR = -math.log1p(-0.03)


def judged(records: list[Record], **words: object) -> Fleet:
    return judge(FleetRuns(hosts=group_by_host(records)), **words)  # type: ignore[arg-type]


def said(fleet: Fleet, severity: str) -> list[str]:
    return [finding.text for finding in fleet.findings if finding.severity == severity]


# Hosts


def test_a_good_fleet_is_accepted_and_says_what_it_would_have_found() -> None:
    fleet = judged(fleet_records(TEN))
    assert (fleet.outcome, fleet.exit_code) == ("accepted", 0)
    assert {one.verdict for one in fleet.hosts} == {"ok"}
    assert fleet.smallest is not None and 0.03 < fleet.smallest < 0.15


def test_two_slow_hosts_are_named_the_slowest_first_and_the_interval_holds_the_truth() -> None:
    fleet = judged(fleet_records(TWO_SLOW))
    assert fleet.exit_code == 6
    assert [one.host for one in fleet.hosts_with("slow")] == ["node07", "node03"]
    slowest = fleet.hosts[0]
    assert slowest.interval is not None and slowest.interval[0] < -0.2 < slowest.interval[1]
    assert "−20." in slowest.reasons[0] or "−19." in slowest.reasons[0]


def test_telemetry_explains_the_slow_host_and_no_other() -> None:
    records = [host_record(host, speed, telemetry=device_telemetry(host)) for host, speed in TWO_SLOW.items()]
    bad = device_telemetry("node07", clock=1110, heat=91)
    records[7] = in_environment(host_record("node07", 0.8, telemetry=bad), torch="2.5.1")
    records[7] = replace(records[7], doubts=(Doubt(code="rank-skew", text="rank 5 is 20 % slower than the others"),))
    told = {one.host: one for one in judged(records).hosts}
    assert told["node07"].reasons[1:] == (
        "its slowest device ran at 1110 MHz, the fleet's median at 1400 MHz",
        "its hottest device had 91 °C, the fleet's median 60 °C",
        "rank 5 is 20 % slower than the others",
        "its torch is 2.5.1, the fleet's 2.6.0",
    )
    assert len(told["node03"].reasons) == 1
    assert not any(told[host].reasons for host in TEN if host not in ("node03", "node07"))


def test_a_host_that_failed_is_a_line_with_its_reason_and_the_others_are_judged() -> None:
    records = fleet_records(TEN)
    records[4] = replace(records[4], status="incomplete", ended="rank 0 was killed by SIGKILL")
    gone = HostRuns(host="node99", failed="host node99 cannot be entered through ssh")
    fleet = judge(FleetRuns(hosts=[*group_by_host(records), gone]))
    assert fleet.exit_code == 6
    assert {one.host: one.reasons for one in fleet.hosts_with("failed")} == {
        "node04": (f"run {records[4].run_id} is incomplete (rank 0 was killed by SIGKILL)",),
        "node99": ("host node99 cannot be entered through ssh",),
    }
    assert len(fleet.hosts_with("ok")) == 9
    nobody = judge(FleetRuns(hosts=[HostRuns(host="a", failed="gone")]))
    assert (nobody.exit_code, nobody.median) == (6, None)


def test_hosts_that_left_no_run_at_all_are_missed() -> None:
    assert judged(fleet_records(TEN), wanted=[""] * 10).exit_code == 0
    fleet = judged(fleet_records(TEN), wanted=[""] * 12)
    assert said(fleet, "fault") == ["12 hosts are expected and only 10 have a run"]
    assert fleet_view.headline(fleet).startswith("not accepted; faults of the fleet as a whole: 1; judged hosts: 10")
    assert fleet.exit_code == 6
    named = judged(fleet_records(TEN), wanted=["node01.example.com", "node77", "node04", "10.0.0.9"])
    assert said(named, "fault") == ["2 of 4 expected hosts have no run: node77, 10.0.0.9"]


def test_few_hosts_say_what_can_be_said() -> None:
    one, two, three = (dict(list(TWO_SLOW.items())[2 : 2 + count]) for count in (1, 2, 3))
    assert judged(fleet_records(one)).exit_code == 7
    assert "one host has nothing to be compared with" in said(judged(fleet_records(one)), "doubt")[0]
    apart = judged(fleet_records(two))
    assert (apart.exit_code, {host.verdict for host in apart.hosts}) == (7, {"ok"})
    assert "two hosts do not tell which of them is right" in said(apart, "doubt")[0]
    assert judged(fleet_records({"a": 1.0, "b": 1.0})).exit_code == 0
    noisy = judged(fleet_records({"a": 1.0, "b": 1.02}))
    assert (noisy.exit_code, {host.verdict for host in noisy.hosts}) == (7, {"ok"})
    assert "a lies −2.0 % from b, and their runs are too noisy to tell" in said(noisy, "doubt")[0]
    assert judged(fleet_records({"a": 1.0, "b": 1.02}), threshold=0.1).exit_code == 0
    named = judged(fleet_records(three))
    assert ([host.host for host in named.hosts_with("slow")], named.exit_code) == (["node03"], 6)
    assert "are too few to tell how far good ones lie apart" in said(named, "note")[0]


def test_a_fleet_that_is_slow_as_a_whole_is_found_by_what_the_site_expects() -> None:
    records = fleet_records(TEN)
    expected = Expected(workload="resnet50", recipe="quick", value=72.0, within_percent=5.0)
    fleet = judged(records, expected=[expected])
    assert fleet.exit_code == 6
    assert "the fleet as a whole is slow: its median lies −1" in said(fleet, "fault")[0]
    assert judged(records, expected=[replace_expected(expected, value=64.0)]).exit_code == 0
    for other in ({"workload": "vit"}, {"recipe": "fill"}, {"device": "H100"}, {"topology": "1x8"}, {"metric": "mfu"}):
        assert judged(records, expected=[replace_expected(expected, **other)]).expected is None
    alone = judged(records[:1], expected=[replace_expected(expected, value=64.0)])
    assert alone.exit_code == 0
    assert judged(records[:1], expected=[expected]).exit_code == 6


def replace_expected(one: Expected, **changes: object) -> Expected:
    return msgspec.structs.replace(one, **changes)


def test_repeats_of_a_host_are_one_line_and_other_runs_of_it_do_not_spoil_it() -> None:
    records = fleet_records(TEN)
    records += [replace(one, run_id=f"{one.run_id}-{again}") for one in records for again in (2, 3)]
    records.append(replace(records[0], run_id="torn", status="incomplete"))
    fleet = judged(records)
    assert (len(fleet.hosts), fleet.exit_code) == (10, 0)
    assert all(len(one.runs) == 3 for one in fleet.hosts)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"trainmark": "0.0.9"}, "was made by trainmark 0.0.9 and most others by 0.1.0"),
        ({"plan": {"precision": "bf16"}}, "has another plan than run resnet50-quick-node"),
        ({"plan": {"recipe": {"batch_per_device": 64}}}, "batch_per_device 64 and 32"),
        ({"timeline": "two hosts"}, "ran on 2 hosts at once (node03, elsewhere)"),
        ({"timeline": "no host"}, "names no host"),
    ],
)
def test_a_run_that_is_not_as_the_others_is_refused_by_its_name(changes: dict[str, object], sentence: str) -> None:
    records = fleet_records(TEN)
    ranks = records[3].timeline.ranks
    if changes.get("timeline") == "two hosts":
        changes = {
            "timeline": replace(records[3].timeline, ranks=(*ranks, replace(ranks[0], rank=1, host="elsewhere")))
        }
    elif changes.get("timeline") == "no host":
        changes = {"timeline": replace(records[3].timeline, ranks=(replace(ranks[0], host=""),))}
    records[3] = host_record("node03", **changes)
    with pytest.raises(UsageError) as refused:
        judged(records)
    assert f"run {records[3].run_id} " in str(refused.value)
    assert sentence in str(refused.value)


def test_a_document_of_the_fleet_has_every_host() -> None:
    links = PairsDone(hosts=tuple(TEN), pairs=tuple(pair_links(10)))
    document = to_json(judge(FleetRuns(hosts=group_by_host(fleet_records(TEN)), links=links)))
    assert (document["outcome"], len(document["hosts"]), len(document["links"]["cables"])) == ("accepted", 10, 10)


# The statistics behind it


def alarms(hosts: int, spread: float, fleets: int, seed: int = 1) -> int:
    dice = np.random.default_rng(seed)
    drawn = dice.normal(0, spread, (fleets, hosts))
    return sum(any(outliers.find_outliers(values, [0.003] * hosts, floor=FLOOR).named) for values in drawn)


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "fleets"), [(3, 600), (10, 600), (30, 400), (1000, 25)])
def test_clean_fleets_accuse_hardly_anybody(hosts: int, fleets: int) -> None:
    """One in a hundred is allowed; four times as many would be seen here, and bench/fleet.py counts more of them."""
    assert alarms(hosts, 0.02, fleets) <= 0.01 * fleets + 3 * math.sqrt(0.01 * fleets)


def test_many_slow_hosts_do_not_hide_behind_each_other() -> None:
    dice = np.random.default_rng(2)
    values = dice.normal(0, 0.01, 100)
    values[:30] -= 0.12
    named = outliers.find_outliers(values, [0.003] * 100, floor=FLOOR).named
    assert all(named[:30]) and not any(named[30:])


def test_a_host_that_is_known_worse_than_the_others_is_given_more_room() -> None:
    values = [0.0, 0.005, -0.005, 0.004, -0.004, 0.003, -0.003, 0.002, -0.002, 0.001, -0.08]
    assert outliers.find_outliers(values, [0.003] * 11, floor=FLOOR).named[-1]
    assert not outliers.find_outliers(values, [0.003] * 10 + [0.06], floor=FLOOR).named[-1]


# Links


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 10, 33])
def test_in_every_round_nobody_has_two_partners_and_in_all_of_them_everybody_met(nodes: int) -> None:
    found = plan_rounds(nodes, all_rounds(nodes))
    for pairs in found:
        assert len({node for pair in pairs for node in pair}) == 2 * len(pairs)
    met = Counter(pair for pairs in found for pair in pairs)
    assert met == Counter((one, other) for one in range(nodes) for other in range(one + 1, nodes))


def test_of_many_nodes_about_twice_the_logarithm_of_rounds_is_enough() -> None:
    assert (usual_rounds(9), usual_rounds(100), usual_rounds(1000)) == (9, 14, 20)
    hosts = [f"node{number:03}" for number in range(1000)]
    found = outliers.judge_links(hosts, pair_links(1000, thin={17: 6.0, 900: 2.5}))
    assert [cable.host for cable in found.cables if cable.slow] == ["node017", "node900"]
    assert (found.pairs, found.slow_paths) == (20 * 500, ())


@pytest.mark.parametrize("nodes", [3, 4, 10])
def test_a_thin_cable_is_named_and_its_partners_are_not(nodes: int) -> None:
    hosts = [f"node{number}" for number in range(nodes)]
    found = outliers.judge_links(hosts, pair_links(nodes, thin={1: 4.0}))
    assert [cable.host for cable in found.cables if cable.slow] == ["node1"]
    assert (found.pairs, found.slow_paths) == (nodes * (nodes - 1) / 2, ())


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_bad_path_between_two_good_cables_is_named(nodes: int) -> None:
    found = outliers.judge_links([f"node{number}" for number in range(nodes)], pair_links(nodes, way=(1, 2)))
    assert [path.hosts for path in found.slow_paths] == [("node1", "node2")]
    assert not any(cable.slow for cable in found.cables)


def with_links(**words: object) -> Fleet:
    links = PairsDone(hosts=tuple(TEN), pairs=tuple(pair_links(10, **words)))  # type: ignore[arg-type]
    return judge(FleetRuns(hosts=group_by_host(fleet_records(TEN)), links=links))


def test_a_fleet_whose_only_problem_is_a_slow_path_is_inconclusive() -> None:
    fleet = with_links(way=(2, 5))
    assert fleet.exit_code == 7
    [told] = said(fleet, "doubt")
    assert told.startswith("the path between hosts node02 and node05 carries 3.01 GB/s, 70 % less than the cables")
    assert said(fleet, "note")[-1].endswith("the slowest pair of good cables is node02 and node05 with 3.01 GB/s")
    assert fleet_view.headline(fleet).startswith("inconclusive; slow paths: 1; judged hosts: 10")
    assert [path["hosts"] for path in to_json(fleet)["links"]["slow_paths"]] == [("node02", "node05")]
    assert with_links(way=(2, 5), thin={7: 4.0}).exit_code == 6, "a slow cable outweighs the doubt"


def test_a_slow_path_is_a_skipped_test_that_a_good_fleet_passes() -> None:
    bad, good = (fromstring(fleet_view.to_junit(with_links(way=way))) for way in ((2, 5), None))
    skipped = [case for case in bad.iter("testcase") if case.find("skipped") is not None]
    assert [case.get("name") for case in skipped] == ["the paths between hosts"]
    assert bad.find(".//failure") is None
    names = [[case.get("name") for case in tests.iter("testcase")] for tests in (bad, good)]
    assert names[0] == names[1] and len(names[0]) == 22
    assert good.find(".//skipped") is None


def test_a_pair_that_was_measured_again_counts_by_its_better_time() -> None:
    hosts = [f"node{number}" for number in range(8)]
    disturbed = pair_links(8, way=(2, 5))
    again = [pair for pair in pair_links(8) if (pair.first, pair.second) == (2, 5)]
    found = outliers.judge_links(hosts, [*disturbed, *again])
    assert (found.pairs, found.slow_paths) == (28, ()) and found.slowest[2] > 9


def test_pairs_to_be_measured_again_are_sorted_into_rounds_without_a_common_node() -> None:
    pairs = [(0, 1), (1, 2), (3, 4), (0, 2), (5, 6)]
    found = split_into_rounds(pairs)
    assert sorted(pair for one in found for pair in one) == sorted(pairs)
    assert all(len({node for pair in one for node in pair}) == 2 * len(one) for one in found)


def test_two_nodes_have_one_way_and_nothing_to_hold_it_against() -> None:
    found = outliers.judge_links(["a", "b"], pair_links(2))
    assert (any(cable.slow for cable in found.cables), found.slow_paths, found.pairs) == (False, (), 1)
    assert summarise_pairs(pair_links(2), 1) == "nodes 0 and 1 carry 10 GB/s"


# Their arithmetic


def verified(hosts: list[str], verdict: str = "equal", wrong_rank: int | None = None) -> VerifyDocument:
    differences = [BitDifference(kind="repeat", round=2, rank=wrong_rank, step=3, stage="loss")] if wrong_rank else []
    told = VerifyDocument(
        verify_id="v1", created="2026-01-01T00:00:00Z", trainmark="0", plan={}, device="a device", torch="2",
        hosts=hosts, rounds=2, steps=30, hashed=9, verdict=verdict, sentence="", differences=differences,
    )  # fmt: skip
    return msgspec.structs.replace(told, sentence=verification.describe(told))


def with_proofs(*told: VerifyDocument) -> Fleet:
    return judged(fleet_records(TEN), verifies=told)


def test_a_fleet_whose_arithmetic_was_proved_on_every_host_is_accepted() -> None:
    fleet = with_proofs(verified([*TEN]))
    assert fleet.outcome == "accepted"
    assert "verify v1 of 2026-01-01 on 10 of 10 hosts: 2 rounds of 30 steps on 10 ranks" in fleet_view.render(fleet)


def test_a_host_that_computes_wrongly_fails_the_fleet_and_is_named() -> None:
    fleet = with_proofs(verified([*TEN], "wrong", wrong_rank=4))
    assert fleet.exit_code == 6
    shown = " ".join(fleet_view.render(fleet).split())
    assert "round 2, step 3, rank 4 on node04: loss is not what" in shown
    assert "not accepted; verifies with wrong arithmetic: 1; judged hosts: 10" in shown
    cases = {case.get("name"): case for case in fromstring(fleet_view.to_junit(fleet)).iter("testcase")}
    assert [name for name, case in cases.items() if case.find("failure") is not None] == ["the arithmetic"]
    assert "rank 4 on node04" in fleet_view.render_page(fleet, language="en", trainmark="0", made="2026-01-01")


def test_hosts_that_nobody_verified_and_proofs_that_are_open_leave_the_fleet_open() -> None:
    some = with_proofs(verified([host for host in TEN if host != "node09"]))
    assert some.exit_code == 7
    assert "the arithmetic was not verified on hosts node09" in fleet_view.render(some)
    assert with_proofs(verified([*TEN], "incomplete")).exit_code == 7
    with pytest.raises(UsageError, match="none of which is in this fleet"):
        with_proofs(verified(["elsewhere"]))
