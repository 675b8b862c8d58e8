"""`trainmark fleet`: hosts by a stand-in for ssh, folders and runs become one judgement with its exit code."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import fromstring

import msgspec
import pytest
from support import fake_ssh
from support.fake_ssh import ARRIVE
from support.fleets import TEN, TWO_SLOW, fleet_records, host_record, pair_links

from trainmark.cli.main import main
from trainmark.features.fleet import hosts as fleets
from trainmark.record.links import PairLink
from trainmark.record.store import Store

RUN = ["fleet", "resnet50", "--platform", "cpu", "--steps", "60"]
Said = Callable[[], tuple[str, str]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "store")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake_ssh.install(tmp_path, monkeypatch)


def answers(world: Path, host: str, speed: float = 1.0, *, pairs: list[PairLink] | None = None) -> None:
    """A host that sends its record when it is to run, and what was measured when it is asked for links."""
    (world / f"{host}.record").write_text(host_record(host, speed).dumps() + "\n", encoding="utf-8")
    links = {"sentence": "", "results": [], "pairs": msgspec.to_builtins(pairs or []), "hosts": []}
    (world / f"{host}.links").write_text(json.dumps({"sections": [links]}) + "\n", encoding="utf-8")
    script = 'case "$command" in *doctor*) cat "$host.links";; *) cat "$host.record"; echo "$host" >> ran;; esac\n'
    (world / host).write_text(ARRIVE + script, encoding="utf-8")


def ran(world: Path) -> list[str]:
    """Who was run since the last time this was asked."""
    found = (world / "ran").read_text(encoding="utf-8").split() if (world / "ran").exists() else []
    (world / "ran").unlink(missing_ok=True)
    return sorted(found)


@pytest.mark.slow
def test_ten_hosts_of_which_two_are_slow_and_one_has_a_thin_cable(
    store: Store, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for host, speed in TWO_SLOW.items():
        answers(world, host, speed, pairs=pair_links(10, thin={5: 4.0}))
    page, tests = tmp_path / "fleet.html", tmp_path / "fleet.xml"
    hosts = ",".join(TWO_SLOW)
    words = [*RUN, "--hosts", hosts, "--links", "--jobs", "4", "--html", str(page), "--junit", str(tests)]
    assert main(words) == 6
    out, err = capsys.readouterr()
    assert "not accepted; slow hosts: 2; slow cables: 1; judged hosts: 10; the median is" in out
    assert "host node03: 55.8 images/s" in err and "10 of 10 done" in err
    assert "the cable of host node05 carries 4.01 GB/s, 60 % less" in out
    assert ran(world) == sorted(TWO_SLOW)
    assert len(store.run_ids()) == 10

    cases = {case.get("name"): case for case in fromstring(tests.read_text(encoding="utf-8")).iter("testcase")}
    assert len(cases) == 22
    assert {name for name, case in cases.items() if case.find("failure") is not None} == {
        "host node03", "host node07", "cable of host node05"
    }  # fmt: skip
    assert {case.get("classname") for case in cases.values()} == {"trainmark.fleet.resnet50.quick.1x1.fp32"}
    assert "resnet50-quick-node" not in tests.read_text(encoding="utf-8"), "names are the same from day to day"
    drawn = page.read_text(encoding="utf-8")
    named = [row for row in re.findall(r"<tr>.*?</tr>", drawn, re.DOTALL) if "slow 4.01" in row]
    assert len(named) == 1 and "node05" in named[0], "the host that is quick by itself has its cable marked"

    # the newest fleet again, without running anything
    assert main(["fleet", "--json", "--threshold", "15%"]) == 6
    document = json.loads(capsys.readouterr().out)
    assert [one["host"] for one in document["hosts"] if one["verdict"] == "slow"] == ["node07"]
    assert document["links"]["pairs"] == 45
    assert ran(world) == []


@pytest.mark.slow
def test_a_host_that_fails_is_a_line_and_the_same_command_again_runs_only_that_one(
    store: Store, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for host, speed in TEN.items():
        answers(world, host, speed)
    (world / "node02").write_text("echo 'ssh: connect: No route to host' >&2; exit 255\n", encoding="utf-8")
    (world / "node04").write_text(ARRIVE + "echo 'trainmark: no such device' >&2; exit 3\n", encoding="utf-8")
    broken = replace(host_record("node06"), status="incomplete", ended="rank 0 was killed by SIGKILL")
    (world / "record").write_text(broken.dumps() + "\n", encoding="utf-8")
    (world / "node06").write_text(ARRIVE + "cat record; exit 4\n", encoding="utf-8")
    words = [*RUN, "--hosts", ",".join(TEN)]
    assert main(words) == 6
    out, _ = capsys.readouterr()
    assert "host node02 failed: host node02 cannot be entered through ssh: ssh: connect: No route to host" in out
    assert "host node04 failed: host node04 ended with exit code 3: no such device" in out
    assert "host node06 failed: its run ended with exit code 4: rank 0 was killed by SIGKILL" in " ".join(out.split())
    assert "not accepted; failed hosts: 3; judged hosts: 10" in out
    assert len(ran(world)) == 7 and len(store.run_ids()) == 8

    store.path(broken.run_id).unlink()
    for host in ("node02", "node04", "node06"):
        answers(world, host)
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "7 of 10 hosts have a result from" in err and "accepted; judged hosts: 10" in out
    assert ran(world) == ["node02", "node04", "node06"]

    for path in store.records.glob("*.json"):
        path.unlink()
    assert main(words) == 0
    assert len(ran(world)) == 10, "a fleet that got to its end is not resumed"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_finished_before_the_fleet_was_ended_is_resumed(
    store: Store, world: Path, capsys: pytest.CaptureFixture[str], how: signal.Signals
) -> None:
    for host in ("a", "b", "c"):
        answers(world, host)
    (world / "c").write_text(ARRIVE + "touch waits; cat > /dev/null; exit 143\n", encoding="utf-8")
    words = [*RUN, "--hosts", "a,b,c"]
    fleet = subprocess.Popen(
        [sys.executable, "-m", "trainmark", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    with fleet:
        deadline = time.monotonic() + 60
        while not (world / "waits").exists() or len(found[0].done if (found := fleets.find_newest(store)) else ()) < 2:
            assert fleet.poll() is None and time.monotonic() < deadline, fleet.communicate()
            time.sleep(0.05)
        fleet.send_signal(how)
        fleet.communicate(timeout=60)
    assert fleet.returncode == (-how if how is signal.SIGKILL else 128 + how)
    assert ran(world) == ["a", "b"]
    answers(world, "c")
    assert main(words) == 0
    assert ran(world) == ["c"]
    assert "2 of 3 hosts have a result from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fleet", "--hosts", "a,b"], "a fleet runs one workload on every host, and none was named"),
        (["fleet", "resnet50", "vit", "--hosts", "a,b"], "and 2 were named"),
        ([*RUN, "--hosts", "a,b", "--topology", "2x1"], "topology 2x1 has several nodes"),
        ([*RUN, "--hosts", "a,a"], "host 'a' is named twice"),
        ([*RUN, "--hosts", "a;b"], "is no host name"),
        ([*RUN, "--hosts", "a,b", "--jobs", "0"], "--jobs must be at least 1"),
        (["fleet", "resnet50", "--recipe", "fill", "--hosts", "a,b"], "recipe fill searches a batch"),
        (["fleet", "resnet50", "--budget", "3m", "--hosts", "a,b"], "give all hosts the same"),
        (["fleet"], "holds no fleet yet"),
        (["fleet", "--links"], "--links measures the hosts of --hosts"),
        (["fleet", "--expect", "0"], "--expect 0 names no host"),
        (["fleet", "--threshold", "much"], "is not a share"),
        (["fleet", "nothing-like-that"], "no run 'nothing-like-that'"),
        (["fleet", "published:flagperf-a100-vit-1x1"], "is a published row, and only runs can stand here"),
        (["fleet", "resnet50", "--slurm", "4", "--json"], "--slurm prints a script and judges nothing"),
    ],
)
def test_words_that_make_no_fleet_are_refused(
    words: list[str], sentence: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_of_runs_is_judged_with_those_that_left_no_record_and_its_links(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = Store(tmp_path / "shared")
    for record in fleet_records(TEN):
        shared.add(record)
    assert main(["fleet", str(shared.folder), "--expect", "10"]) == 0
    assert "accepted; judged hosts: 10" in capsys.readouterr().out
    assert main(["fleet", str(shared.folder), "--expect", "11"]) == 6
    assert "11 hosts are expected and only 10 have a run" in capsys.readouterr().out

    document = {"sections": [{"pairs": msgspec.to_builtins(pair_links(10, way=(0, 9))), "hosts": list(TEN)}]}
    (shared.folder / "links.json").write_text(json.dumps(document), encoding="utf-8")
    assert main(["fleet", str(shared.folder)]) == 7, "one pair is not enough to fail by"
    assert "the path between hosts node00 and node09 carries 3." in capsys.readouterr().out

    (shared.folder / "links.json").write_text("{}", encoding="utf-8")
    assert main(["fleet", str(shared.folder)]) == 2
    assert "is not what 'trainmark doctor --pairs --json' prints" in capsys.readouterr().err
    (shared.folder / "links.json").unlink()
    (shared.runs / "torn-1").mkdir(parents=True)
    assert main(["fleet", str(shared.folder)]) == 6
    assert "run torn-1 has no record: it still runs, or ended too early" in capsys.readouterr().out
    (shared.records / "torn.json").write_text("{", encoding="utf-8")
    assert main(["fleet", str(shared.folder)]) == 2
    assert "torn.json is damaged" in capsys.readouterr().err
    assert main(["fleet", str(tmp_path), "x"]) == 2
    assert main(["fleet", str(tmp_path)]) == 2
    assert "holds no records of runs" in capsys.readouterr().err


@pytest.mark.slow
def test_judging_needs_no_torch(store: Store) -> None:
    store.add(host_record("node01"))
    code = f"import sys; from trainmark.cli.main import main; main(['fleet', {str(store.folder)!r}, '--json'])"
    said = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert said.stdout.splitlines()[-1] == "False", said.stderr


def test_runs_are_judged_by_the_site_s_own_figures(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for record in fleet_records(dict(list(TEN.items())[:4])):
        store.add(record)
    runs = store.run_ids()
    assert main(["fleet", *runs]) == 0
    (tmp_path / "trainmark.toml").write_text(
        '[[expected]]\nworkload = "resnet50"\nrecipe = "quick"\nvalue = 80\nwithin_percent = 10\n', encoding="utf-8"
    )
    assert main(["fleet", *runs]) == 6
    assert "the fleet as a whole is slow: its median lies −2" in capsys.readouterr().out
    assert main(["fleet", runs[0]]) == 6
    pages = sorted((store.folder / "reports").glob("*.html"))
    assert [page.stem[-7:] for page in pages] == ["1-hosts", "4-hosts"], "a part keeps the whole's"
    (tmp_path / "trainmark.toml").write_text('[[expected]]\nworkload = "resnet50"\nvalue = 80\n', encoding="utf-8")
    assert main(["fleet", *runs]) == 2
    assert "expected, entry 1: key 'recipe' is missing" in capsys.readouterr().err


def test_an_array_for_slurm_runs_the_plan_once_a_node_and_says_how_to_judge_it(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "it's shared"
    words = ["--slurm", "12", "--topology", "1x2", "--store", str(shared), "--partition", "gpu", "--venv", "/opt/tm"]
    assert main([*RUN, *words]) == 0
    script, err = capsys.readouterr()
    assert "#SBATCH --array=1-12\n" in script and "#SBATCH --nodes=1\n" in script and "--output=%x-%A_%a.out" in script
    assert "#SBATCH --partition=gpu" in script and ". /opt/tm/bin/activate" in script
    assert "srun --nodes=1 --ntasks=1" in script and "trainmark run resnet50" in script
    assert f"trainmark fleet {shared} --expect 12" in err
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert main([*RUN, "--slurm", "0"]) == 2
