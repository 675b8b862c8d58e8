"""The doctor draws a machine on one screen, and measures links through the same launch as a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Cli
from rich.cells import cell_len
from support.fleets import pair_links

from trainmark.features.doctor import command as doctor, screen as doctor_screen
from trainmark.features.hosts import remote_run
from trainmark.features.links import measure
from trainmark.features.links.probe import SIZES_BYTES
from trainmark.launch import cluster_env, coordinator
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.record import links
from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import Plan, Topology
from trainmark.record.site import Site
from trainmark.view.terminal import TerminalWriter


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

    def probe_only(plan: Plan, store: Path, **coordinator: object) -> measure.ProbeResult:
        plans.append((plan, store))
        return measure.ProbeResult(results=msgspec.convert(rows(), tuple[links.AllReduce, ...]))

    monkeypatch.setattr(measure, "probe_links", probe_only)
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
    assert len(out.partition("network: ")[0].splitlines()) == 2 + 1 + 2 + len(SIZES_BYTES)
    assert err == ""
    [(plan, store)] = asked
    assert (plan.topology, plan.platform) == ("1x2", "cpu")
    assert store == tmp_path / "store"


def probe(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    """Every probe finds this."""
    monkeypatch.setattr(measure, "probe_links", lambda *words, **more: measure.ProbeResult(**found))


def test_slow_links_are_doubted_with_a_remedy_and_a_failed_probe_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probe(monkeypatch, results=msgspec.convert(rows(3), tuple[links.AllReduce, ...]))
    assert call("--topology", "1x2", "--platform", "cpu") == 0
    out = capsys.readouterr().out
    assert out.startswith("links: doubt\n")
    assert "messages above 64 KiB were left out, as 2 s were not enough for them; see what else is running" in out
    probe(monkeypatch, exit_code=4, sentence="rank 1 was killed by SIGKILL")
    assert call("--topology", "1x2", "--platform", "cpu") == 4
    assert capsys.readouterr().out.startswith("links: failed\n  rank 1 was killed by SIGKILL\nnetwork: ")


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What this machine did at its coordinator with the others of its job."""
    log: list[str] = []

    class Launchers:
        def __init__(self, place: ClusterEnv, **more: object) -> None:
            self.env = place
            log.append(f"launcher {place.launcher} of {place.launchers} joined")

        def finish(self, exit_code: int) -> None:
            log.append(f"concluded with {exit_code}")

        def leave(self) -> None:
            log.append("left")

    monkeypatch.setattr(coordinator, "Coordinator", Launchers)
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
    assert met == [f"launcher {node} of 2 joined", *(["concluded with 0"] if told else []), "left"]


@pytest.mark.usefixtures("met")
def test_a_machine_that_is_not_the_first_says_on_stderr_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    probe(monkeypatch, exit_code=4, sentence="the leader was lost")
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

    monkeypatch.setattr(remote_run, "query_hosts", ask_hosts)
    assert call("--topology", "2x2", "--hosts", "a,b", "--platform", "cpu") == 0
    assert started == [("a,b", ["doctor", "--topology", "2x2", "--platform", "cpu"], "2x2")]
    out = capsys.readouterr().out
    assert "all-reduce among 4 ranks on 2 hosts: 2.0 ms for 4 KiB, 0.26 GB/s for 256 KiB" in out
    assert "see whether the ranks use the network meant for them" in " ".join(out.split())


def test_an_answer_of_hosts_that_holds_no_links_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_run, "query_hosts", lambda *words, **more: ({"sections": []}, 0))
    with pytest.raises(NotReadyError, match="the same version of trainmark"):
        call("--topology", "2x2", "--hosts", "a,b", "--platform", "cpu")


SECTIONS = [
    CheckResult(name="devices", group="Device", verdict="ok", sentence="8 x 昇腾 910B, 64 GiB", facts={"count": 8}),
    CheckResult(name="sensors", group="Device", verdict="unknown", sentence="no power: npu-smi is not installed"),
    CheckResult(
        name="governor",
        group="Host",
        verdict="doubt",
        sentence="powersave: the cores may not reach their full clock, and this is told at some length",
        remedy="echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    ),
    CheckResult(
        name="matmul fp16",
        group="Speed",
        verdict="ok",
        sentence="240 TFLOP/s ±0.4 %, 75 % of 320 (data sheet)",
        facts={"share_of_peak": 0.75},
    ),
]
FAILED = CheckResult(
    name="store", group="Site", verdict="failed", sentence="cannot be \x1b[2J[bold]written", remedy="mv", exit_code=3
)


KEYS = ("name", "group", "verdict", "sentence", "remedy", "exit_code", "facts")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was to be examined; it always finds the same."""
    every: list[object] = []

    def examine(store: Path, platform: str | None, probe_s: float) -> list[CheckResult]:
        every.append((store, platform, probe_s))
        return [*SECTIONS, FAILED] if platform == "broken" else SECTIONS

    monkeypatch.setattr(doctor, "examine", examine)
    return every


@pytest.mark.parametrize(("words", "probe_s"), [((), 20.0), (("--quick",), 2.0), (("--no-probe",), 0.0)])
def test_without_a_topology_the_machine_is_examined(
    looked_at: list[object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    probe_s: float,
) -> None:
    assert call(*words) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "ready; 1 doubt, 1 unknown"
    assert err == ""
    assert looked_at == [(tmp_path / "store", None, probe_s)]


@pytest.mark.usefixtures("looked_at")
def test_a_machine_that_could_not_run_says_so_last_and_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--platform", "broken") == 3
    assert capsys.readouterr().out.splitlines()[-1] == "not ready; 1 failed, 1 doubt, 1 unknown"


@pytest.mark.usefixtures("looked_at")
def test_json_holds_the_whole_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--platform", "broken", "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["ready"], document["summary"]) == (False, "not ready; 1 failed, 1 doubt, 1 unknown")
    for shown, result in zip(document["sections"], [*SECTIONS, FAILED], strict=True):
        assert shown == {name: getattr(result, name) for name in KEYS} | {"results": [], "pairs": [], "hosts": []}


def screen(width: int = 80, *, color: bool = False, encoding: str = "utf-8") -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    return doctor_screen.render_machine(writer, [*SECTIONS, FAILED], "not ready; 1 failed")


def test_each_group_has_a_heading_and_each_section_a_verdict_a_name_and_a_sentence() -> None:
    shown = screen(120)
    assert [line for line in shown.splitlines() if line and line[0] != " "] == [
        "Device",
        "Host",
        "Speed",
        "Site",
        "not ready; 1 failed",
    ]
    assert "\n  ok       devices      8 x 昇腾 910B, 64 GiB\n" in shown
    assert "\n  ok       matmul fp16  240 TFLOP/s ±0.4 %, 75 % of 320 (data sheet)\n" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_screen_fits_the_width_and_the_encoding_and_leaves_remedies_whole(width: int, encoding: str) -> None:
    shown = screen(width, encoding=encoding)
    shown.encode(encoding)
    [remedy] = [section.remedy for section in SECTIONS if section.remedy]
    assert remedy in shown
    assert all(cell_len(line) <= width for line in shown.splitlines() if remedy not in line)


def test_hostile_text_on_the_screen_is_shown_and_not_obeyed() -> None:
    assert "\x1b" not in screen()
    assert "[bold]written" in screen()


def test_the_interfaces_are_told_with_the_links_and_a_missing_one_fails(
    monkeypatch: pytest.MonkeyPatch,
    asked: list[tuple[Plan, Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("--topology", "1x2", "--platform", "cpu", "--json") == 0
    assert [section["name"] for section in json.loads(capsys.readouterr().out)["sections"]] == ["links", "network"]
    (tmp_path / "site.toml").write_text('[network]\ninterface = "nowhere0"\n')
    monkeypatch.setenv("TRAINMARK_CONFIG", str(tmp_path / "site.toml"))
    assert call("--topology", "1x2", "--platform", "cpu") == 3
    assert "network: failed\n  trainmark.toml names interface 'nowhere0'" in capsys.readouterr().out
    assert len(asked) == 2


def test_this_machine_is_examined_by_the_command(cli: Cli) -> None:
    done = cli("doctor", "--no-probe", "--platform", "cpu", "--json")
    assert done.returncode in (0, 3), done.stderr
    document = json.loads(done.stdout)
    assert document["ready"] == (done.returncode == 0)
    names = [section["name"] for section in document["sections"]]
    for name in ("devices", "torch", "sensors", "memory", "/dev/shm", "limits", "governor", "load", "store"):
        assert name in names
    assert not any("could not be checked" in section["sentence"] for section in document["sections"])


def test_two_real_ranks_of_this_machine_are_probed(cli: Cli) -> None:
    done = cli("doctor", "--topology", "1x2", "--platform", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    section = json.loads(done.stdout)["sections"][0]
    assert section["name"] == "links"
    assert section["sentence"].startswith("all-reduce among 2 ranks on 1 host: ")
    assert section["results"][0]["bytes"] == 4096
    assert all(row["bus_gigabytes_per_s"] > 0 for row in section["results"])


def test_pairs_of_nodes_are_shown_slowest_first_and_named_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def probe_only(plan: Plan, store: Path, **words: object) -> measure.ProbeResult:
        asked.append(words["pair_rounds"])
        return measure.ProbeResult(pairs=tuple(pair_links(3, thin={2: 1.5})), hosts=("a", "b", "c"))

    monkeypatch.setattr(measure, "probe_links", probe_only)
    monkeypatch.setattr(cluster_env, "detect_env", lambda topology, *words: cluster_env.make_local_env(topology))
    assert call("--topology", "3x1", "--platform", "cpu", "--pairs") == 0
    out = capsys.readouterr().out
    assert "3 pairs of nodes in 3 rounds: the median one carries 1.5 GB/s, the slowest, nodes" in out
    assert out.index("–2") < out.index("0–1")
    assert call("--topology", "3x1", "--platform", "cpu", "--pairs", "--rounds", "2", "--json") == 0
    section = json.loads(capsys.readouterr().out)["sections"][0]
    assert (section["hosts"], len(section["pairs"]), asked) == (["a", "b", "c"], 3, [3, 2])
    assert call("--topology", "1x2", "--platform", "cpu", "--pairs") == 0
    assert "1x2 has one node, and no pair of them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--pairs"], "--pairs needs a topology"),
        (["--topology", "2x1", "--rounds", "2"], "--rounds needs --pairs"),
        (["--rounds", "0", "--topology", "2x1", "--pairs"], "a number of at least 1"),
        (["--hosts", "a,b"], "needs a topology, such as --topology 2x8"),
        (["--topology", "1x2", "--quick"], "leave them out with --topology"),
        (["--topology", "1x2", "--no-probe"], "leave them out with --topology"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        call(*words)
