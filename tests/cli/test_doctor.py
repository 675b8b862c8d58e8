"""The doctor measures links through the same launch as a run, and says in a word how it stands and what would help."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli

from trainmark.cli import doctor
from trainmark.run import check, launch, meeting, ssh
from trainmark.run.link_probe import SIZES_BYTES
from trainmark.run.place import Place
from trainmark.run.site import Site
from trainmark.spec.errors import NotReadyError, UsageError
from trainmark.spec.plan import Plan
from trainmark.spec.topology import Topology


def rows(sizes: int = len(SIZES_BYTES)) -> list[dict[str, Any]]:
    return [
        {"bytes": size, "repeats": 3, "median_s": 0.002, "best_s": 0.001, "bus_gigabytes_per_s": size / 0.001 / 1e9}
        for size in SIZES_BYTES[:sizes]
    ]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, Path]]:
    """Plans that were to be probed; every probe goes well."""
    plans: list[tuple[Plan, Path]] = []

    def probe_only(plan: Plan, store: Path, **meeting: object) -> tuple[list[dict[str, Any]], int, str]:
        plans.append((plan, store))
        return rows(), 0, ""

    monkeypatch.setattr(launch, "probe_only", probe_only)
    return plans


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return doctor.run(parser.parse_args(words))


def test_the_links_of_a_topology_are_summed_up_and_shown_by_size(
    asked: list[tuple[Plan, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--topology", "1x2", "--platform", "cpu") == 0
    out, err = capsys.readouterr()
    assert out.startswith("links: ok\n  all-reduce among 2 ranks on 1 host: 2.0 ms for 4 KiB, 67 GB/s for 64 MiB\n")
    assert len(out.splitlines()) == 2 + 1 + 2 + len(SIZES_BYTES)
    assert err == ""
    [(plan, store)] = asked
    assert (plan.topology, plan.platform) == ("1x2", "cpu")
    assert store == tmp_path / "store"


@pytest.mark.usefixtures("asked")
def test_json_holds_every_section_with_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--topology", "1x2", "--platform", "cpu", "--json") == 0
    [section] = json.loads(capsys.readouterr().out)["sections"]
    assert (section["name"], section["verdict"], section["remedy"]) == ("links", "ok", "")
    assert section["results"] == rows()


def test_a_link_too_slow_for_large_messages_is_doubted_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "probe_only", lambda *words, **more: (rows(3), 0, ""))
    assert call("--topology", "1x2", "--platform", "cpu") == 0
    out = capsys.readouterr().out
    assert out.startswith("links: doubt\n")
    assert "messages above 64 KiB were left out, as 2 s were not enough for them; see what else is running" in out


def test_a_probe_that_failed_is_told_in_its_sentence_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "probe_only", lambda *words, **more: ([], 4, "rank 1 was killed by SIGKILL"))
    assert call("--topology", "1x2", "--platform", "cpu") == 4
    assert capsys.readouterr().out == "links: failed\n  rank 1 was killed by SIGKILL\n"


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this machine did at its meeting with the others of its job."""
    log: list[str] = []

    class Parties:
        def __init__(self, place: Place) -> None:
            log.append(f"party {place.party} of {place.parties} joined")

        def conclude(self, exit_code: int) -> None:
            log.append(f"concluded with {exit_code}")

        def leave(self) -> None:
            log.append("left")

    monkeypatch.setattr(meeting, "Meeting", Parties)
    return log


@pytest.mark.parametrize(("node", "told"), [(0, True), (1, False)])
@pytest.mark.parametrize("words", [(), ("--json",)])
@pytest.mark.usefixtures("asked")
def test_of_several_machines_only_the_first_tells_the_results(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    met: list[str],
    node: int,
    told: bool,
    words: tuple[str, ...],
) -> None:
    job = {"PET_NNODES": "2", "PET_NODE_RANK": str(node), "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "a"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert call("--topology", "2x2", "--platform", "cpu", *words) == 0
    assert bool(capsys.readouterr().out) == told
    assert met == [f"party {node} of 2 joined", *(["concluded with 0"] if told else []), "left"]


@pytest.mark.usefixtures("met")
def test_a_machine_that_is_not_the_first_says_on_stderr_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "probe_only", lambda *words, **more: ([], 4, "the leader was lost"))
    assert call("--topology", "2x2", "--platform", "cpu", "--json") == 4
    assert capsys.readouterr() == ("", "trainmark: the leader was lost\n")


def test_one_rank_has_no_link_and_nothing_is_started(
    asked: list[tuple[Plan, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--topology", "1x1", "--platform", "cpu") == 0
    assert "one rank, which exchanges with nobody" in capsys.readouterr().out
    assert asked == []


def test_the_links_between_hosts_are_asked_of_their_own_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, list[str], str]] = []

    def ask_hosts(
        hosts: str, words: list[str], topology: Topology, site: Site, *, quiet: bool
    ) -> tuple[dict[str, Any], int]:
        started.append((hosts, words, str(topology)))
        section = {"name": "links", "verdict": "ok", "sentence": "as seen there", "exit_code": 0, "results": rows(4)}
        return {"sections": [section]}, 0

    monkeypatch.setattr(ssh, "ask_hosts", ask_hosts)
    assert call("--topology", "2x2", "--hosts", "a,b", "--platform", "cpu") == 0
    assert started == [("a,b", ["doctor", "--topology", "2x2", "--platform", "cpu"], "2x2")]
    out = capsys.readouterr().out
    assert "all-reduce among 4 ranks on 2 hosts: 2.0 ms for 4 KiB, 0.26 GB/s for 256 KiB" in out
    assert "see whether the ranks use the network meant for them" in " ".join(out.split())


def test_an_answer_of_hosts_that_holds_no_links_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "ask_hosts", lambda *words, **more: ({"sections": []}, 0))
    with pytest.raises(NotReadyError, match="the same version of trainmark"):
        call("--topology", "2x2", "--hosts", "a,b", "--platform", "cpu")


def test_a_probe_of_hosts_that_was_interrupted_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ssh, "ask_hosts", lambda *words, **more: (None, 130))
    assert call("--topology", "2x2", "--hosts", "a,b", "--platform", "cpu") == 130
    assert "ended before the links were measured" in capsys.readouterr().out


def test_hosts_need_a_topology() -> None:
    with pytest.raises(UsageError, match="say which, such as --topology 2x8"):
        call("--hosts", "a,b")


def test_without_a_topology_the_machine_is_checked_as_before_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked: list[Plan] = []
    monkeypatch.setattr("trainmark.data.embedded.ensure", lambda name, root, say: None)
    monkeypatch.setattr(check, "machine", lambda plan, store: checked.append(plan))
    assert call("--platform", "cpu") == 0
    assert capsys.readouterr().out == "machine: ok\n  ready to train resnet50 in fp32 on platform cpu\n"
    assert [plan.recipe_name for plan in checked] == ["quick"]


def test_a_machine_that_is_not_ready_says_why_and_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(plan: Plan, store: Path) -> None:
        raise NotReadyError("/store has 1 MiB free and this run may need 64")

    monkeypatch.setattr("trainmark.data.embedded.ensure", lambda name, root, say: None)
    monkeypatch.setattr(check, "machine", refuse)
    assert call("--platform", "cpu") == 3
    assert capsys.readouterr().out == "machine: failed\n  /store has 1 MiB free and this run may need 64\n"


def test_two_real_ranks_of_this_machine_are_probed(cli: Cli) -> None:
    done = cli("doctor", "--topology", "1x2", "--platform", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    [section] = json.loads(done.stdout)["sections"]
    assert section["name"] == "links"
    assert section["sentence"].startswith("all-reduce among 2 ranks on 1 host: ")
    assert section["results"][0]["bytes"] == 4096
    assert all(row["bus_gigabytes_per_s"] > 0 for row in section["results"])
