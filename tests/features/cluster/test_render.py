"""What is rendered says what was meant, to real shells and to whoever reads YAML, whatever the words hold."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import plain_yaml

from trainmark.launch import cluster_job as jobs, planning
from trainmark.launch.clusters import kubernetes, slurm
from trainmark.launch.options import RunOptions
from trainmark.record.errors import UsageError

HOSTILE = (
    "a b",
    "$(touch owned)",
    "`touch owned`",
    "$HOME",
    "$(HOSTNAME)/$$",
    "'; touch owned; '",
    '"; touch owned; "',
    "line\nbreak",
    "#SBATCH --uid=0",
    "{a: b}",
    "- x: &y",
    "tab\tand\x7f\x85\u2028",
    "ünïcode 🙂",
    "\\n \\",
    "%j",
)

RECORDER = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done >> "$SAID"
"""


def a_job(topology: str = "2x2", platform: str = "cpu", **given: Any) -> jobs.ClusterJob:
    plan = planning.make_plan("resnet50", RunOptions(recipe="smoke", topology=topology, platform=platform))
    return jobs.ClusterJob(plans=(plan,), options=RunOptions(**{"workloads": ("resnet50",), **given}))


def hostile_job() -> jobs.ClusterJob:
    return a_job(settings=HOSTILE)


def said_to(program: str, script: str, folder: Path, shell: str = "bash") -> list[str]:
    """What a real shell hands to a program of this name when it runs the script."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in (program, "trainmark"):
        (folder / "bin" / name).write_text(RECORDER)
        (folder / "bin" / name).chmod(0o755)
    (folder / "said").unlink(missing_ok=True)
    ended = subprocess.run(
        [shell, "-c", script],
        cwd=folder,
        env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SAID": str(folder / "said")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert not (folder / "owned").exists()
    return (folder / "said").read_bytes().decode().split("\0")[:-1]


def directives(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script, flags=re.MULTILINE))


# Slurm


def test_sbatch_is_asked_for_the_topology_and_its_devices() -> None:
    found = directives(slurm.render_script(a_job("2x8", "nvidia"), slurm.SlurmRequest()))
    assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-node"]) == ("2", "1", "8")
    assert found["job-name"] == "trainmark-resnet50-smoke-2x8"
    assert "exclusive" in found
    assert not {"time", "partition", "account", "cpus-per-task"} & set(found)


def test_what_the_user_wants_of_slurm_is_asked_for() -> None:
    request = slurm.SlurmRequest(time="1-12:00:00", partition="gpu", account="mine", gpus_per_node=4, cpus_per_task=16)
    script = slurm.render_script(a_job("2x8", "nvidia"), request)
    found = directives(script)
    assert (found["time"], found["partition"], found["account"]) == ("1-12:00:00", "gpu", "mine")
    assert (found["gpus-per-node"], found["cpus-per-task"]) == ("4", "16")
    assert "exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=16 " in script, "a step inherits nothing"


def test_every_line_for_sbatch_stands_below_its_comment_and_above_the_first_command() -> None:
    lines = slurm.render_script(a_job(), slurm.SlurmRequest(venv="/opt/trainmark")).splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    asked = [number for number, line in enumerate(lines) if re.match("##?SBATCH", line)]
    assert asked
    assert max(asked) < first_command
    assert all(lines[number - 1].startswith("# ") for number in asked)


def test_bash_hands_srun_the_words_as_they_are(tmp_path: Path) -> None:
    words = said_to("srun", slurm.render_script(hostile_job(), slurm.SlurmRequest()), tmp_path)
    assert words[words.index("trainmark") :] == hostile_job().command


def test_no_script_or_manifest_moves_the_cursor_of_whoever_shows_it() -> None:
    job = a_job(settings=("a\x1b[2J\x07\x9b\u202eb",), store="/s\x1b]0;x\x07tore")
    texts = [
        slurm.render_script(job, slurm.SlurmRequest(venv="/v\x1b[1m", array=4)),
        kubernetes.render_manifest(job, kubernetes.KubernetesRequest(image="i", mount="/m\x1b[1m")),
    ]
    assert all(sign.isprintable() or sign == "\n" for text in texts for sign in text)


def test_the_virtual_environment_is_entered_first(tmp_path: Path) -> None:
    venv = tmp_path / "it's mine"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text("touch entered\n")
    said_to("srun", slurm.render_script(a_job(), slurm.SlurmRequest(venv=str(venv))), tmp_path)
    assert (tmp_path / "entered").exists()


def test_a_virtual_environment_that_is_not_there_ends_the_script() -> None:
    script = slurm.render_script(a_job(), slurm.SlurmRequest(venv="/not/there"))
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert ended.returncode != 0
    assert "/not/there/bin/activate" in ended.stderr


@pytest.mark.parametrize(
    ("request_", "option"),
    [
        (slurm.SlurmRequest(time="soon"), "--time"),
        (slurm.SlurmRequest(time="1:00:00\ntouch owned"), "--time"),
        (slurm.SlurmRequest(partition="gpu\ntouch owned"), "--partition"),
        (slurm.SlurmRequest(account="a b"), "--account"),
        (slurm.SlurmRequest(gpus_per_node=-1), "--gpus-per-node"),
        (slurm.SlurmRequest(cpus_per_task=0), "--cpus-per-task"),
    ],
)
def test_what_could_leave_its_line_is_refused(request_: slurm.SlurmRequest, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        slurm.render_script(a_job(), request_)


def test_a_path_with_a_line_break_stays_inside_its_comment(tmp_path: Path) -> None:
    job = a_job()
    plan = replace(job.plans[0], data=replace(job.plans[0].data, folder="/data\ntouch owned\n"))
    assert said_to("srun", slurm.render_script(replace(job, plans=(plan,)), slurm.SlurmRequest()), tmp_path)
    assert "data /data?touch owned?" in kubernetes.render_manifest(
        replace(job, plans=(plan,)), kubernetes.KubernetesRequest(image="i")
    )


def variable_of(program: str, script: str, folder: Path, said: str = "") -> str:
    """What a program of this name finds in TRAINMARK_SECRET when a shell runs the script and hears `said`."""
    (folder / program).write_text('#!/bin/sh\nprintf %s "$TRAINMARK_SECRET" > seen\n')
    (folder / program).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", script], cwd=folder, env={"PATH": path}, input=said, text=True, check=True)
    return (folder / "seen").read_text()


def test_the_nodes_of_a_job_get_a_secret_that_nobody_finds_in_its_script(tmp_path: Path) -> None:
    script = slurm.render_script(a_job(), slurm.SlurmRequest())
    first, second = (variable_of("srun", script, tmp_path) for _ in range(2))
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert first != second, "every job has its own"
    assert variable_of("srun", slurm.render_script(a_job("1x2"), slurm.SlurmRequest()), tmp_path) == "", (
        "nobody to meet"
    )


# Kubernetes


def test_pods_get_the_secret_of_their_manifest_and_every_manifest_has_its_own() -> None:
    request = kubernetes.KubernetesRequest(image="i", namespace="mine")
    secrets = []
    for _ in range(2):
        secret, job = plain_yaml.documents(kubernetes.render_manifest(a_job(), request))
        [variable] = job["spec"]["trainer"]["env"]
        reference = variable["valueFrom"]["secretKeyRef"]
        assert (variable["name"], reference["name"]) == ("TRAINMARK_SECRET", secret["metadata"]["name"])
        assert (secret["kind"], secret["metadata"]["namespace"]) == ("Secret", "mine")
        secrets.append(secret["stringData"][reference["key"]])
    assert secrets[0] != secrets[1]
    assert all(re.fullmatch("[0-9a-f]{64}", secret) for secret in secrets)
    [alone] = plain_yaml.documents(kubernetes.render_manifest(a_job("1x2"), request))
    assert "env" not in alone["spec"]["trainer"]


def test_yaml_holds_the_words_as_they_are() -> None:
    trainer = plain_yaml.read(kubernetes.render_manifest(hostile_job(), kubernetes.KubernetesRequest(image="i")))[
        "spec"
    ]["trainer"]
    assert [word.replace("$$", "$") for word in (*trainer["command"], *trainer["args"])] == hostile_job().command


def test_devices_the_cluster_has_no_name_for_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="platform nvidia has no resource name of its devices"):
        kubernetes.render_manifest(a_job("2x8", "nvidia"), kubernetes.KubernetesRequest(image="i"))


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"image": "two words"}, "--image"),
        ({"namespace": "Mine"}, "--namespace"),
        ({"runtime": "a\nb"}, "--runtime"),
        ({"claim": "-x"}, "--data-claim"),
        ({"claim": "x", "mount": "data"}, "--mount"),
        ({"resource": "gpu"}, "--device-resource"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(changes: dict[str, str], option: str) -> None:
    with pytest.raises(UsageError, match=option):
        kubernetes.render_manifest(a_job(), kubernetes.KubernetesRequest(**{"image": "i", **changes}))


@pytest.mark.parametrize("name", ["1st", "Big", "a" * 54, "a.b"])
def test_a_name_that_no_pod_can_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        kubernetes.render_manifest(replace(a_job(), given_name=name), kubernetes.KubernetesRequest(image="i"))


def test_bytes_that_are_no_text_cannot_become_yaml() -> None:
    with pytest.raises(UsageError, match="not valid Unicode"):
        kubernetes.render_manifest(a_job(workloads=("\udcff",)), kubernetes.KubernetesRequest(image="i"))


# The name
