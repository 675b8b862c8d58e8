"""The rendered TrainJob has only fields Kubeflow Trainer knows, and its container's command makes a run of two pods."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import TINY_RUN, Cli
from support import plain_yaml

# What the TrainJob of Kubeflow Trainer v2.4 (trainer.kubeflow.org/v1alpha1) may hold: a mapping's fields, [items of a
# list], or the type of a value. Of the pod's own types only what a training job has a use for.
ENVIRONMENT = [{"name": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}]
QUANTITIES = {"*": int}
POD = {
    "volumes": [{"name": str, "emptyDir": {"medium": str}, "persistentVolumeClaim": {"claimName": str}}],
    "containers": [{"name": str, "volumeMounts": [{"name": str, "mountPath": str}]}],
}
METADATA = {"name": str, "namespace": str}
JOBS = [{"name": str, "template": {"spec": {"template": {"spec": POD}}}}]
TRAIN_JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": METADATA,
    "spec": {
        "runtimeRef": {"name": str, "apiGroup": str, "kind": str},
        "trainer": {
            "image": str,
            "command": [str],
            "args": [str],
            "env": ENVIRONMENT,
            "numNodes": int,
            "numProcPerNode": int,
            "resourcesPerNode": {"requests": QUANTITIES, "limits": QUANTITIES},
        },
        "runtimePatches": [
            {"manager": str, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": JOBS}}}},
        ],
    },
}
SECRET = {"apiVersion": str, "kind": str, "metadata": METADATA, "stringData": {"*": str}}
STEPS = 2
PER_DEVICE = 8


def unknown(value: Any, schema: Any, path: str = "") -> list[str]:
    """Where the document has a field or a type that the schema does not."""
    if isinstance(schema, dict) and isinstance(value, dict):
        found = []
        for key, inner in value.items():
            if key not in schema and "*" not in schema:
                found.append(f"{path}.{key} is no field")
            else:
                found += unknown(inner, schema.get(key, schema.get("*")), f"{path}.{key}")
        return found
    if isinstance(schema, list) and isinstance(value, list):
        return [line for number, item in enumerate(value) for line in unknown(item, schema[0], f"{path}[{number}]")]
    if isinstance(schema, type) and type(value) is schema:
        return []
    return [f"{path} is {value!r}"]


def rendered(cli: Cli, *words: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The secret and the job."""
    _, *plan_words = TINY_RUN
    said = cli("launch", "render", "kubernetes", *plan_words, "--image", "example.com/trainmark:1", *words)
    assert said.returncode == 0, said.stderr
    secret, job = plain_yaml.documents(said.stdout)
    return secret, job


def test_the_published_schema_knows_every_field(cli: Cli) -> None:
    whole = ("--data-claim", "datasets", "--namespace", "benchmarks", "--data", "/data/imagenet")
    secret, document = rendered(cli, "--platform", "nvidia", "--topology", "2x8", *whole)
    assert unknown(document, TRAIN_JOB) == []
    assert unknown(secret, SECRET) == []
    assert (document["apiVersion"], document["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
    spec = document["spec"]
    assert spec["runtimeRef"]["name"] == "torch-distributed"
    assert (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]) == (2, 8)
    assert re.fullmatch(r"[a-z0-9.-]+\.[a-z]+/[a-z-]+", spec["runtimePatches"][0]["manager"]), "a path below a domain"
    # those of the job are set by the runtime, which refuses a TrainJob that sets them
    assert not any(variable["name"].startswith("PET_") for variable in spec["trainer"].get("env", []))


def test_what_is_mounted_is_a_volume_of_the_pod(cli: Cli) -> None:
    _, document = rendered(cli, "--topology", "2x1", "--data-claim", "datasets", "--data", "/data/imagenet")
    [patch] = document["spec"]["runtimePatches"]
    [job] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (job["name"], container["name"]) == ("node", "node"), "as the torch-distributed runtime names them"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_the_containers_command_makes_one_run_of_two_pods(
    cli: Cli, environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    words = ("--data", pictures, "--steps", str(STEPS), "--set", "target=101", "--topology", "2x1")
    secret, job = rendered(cli, *words, "--store", tmp_path / "claim")
    trainer = job["spec"]["trainer"]
    [variable] = trainer["env"]
    command = [word.replace("$$", "$") for word in (*trainer["command"], *trainer["args"])]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = str(Path(sys.executable).parent)  # where `trainmark` was installed, too
    pods = [
        subprocess.Popen(
            command,
            env={
                **environment,
                "PATH": f"{here}:{os.environ['PATH']}",
                "OMP_NUM_THREADS": "1",
                variable["name"]: secret["stringData"][variable["valueFrom"]["secretKeyRef"]["key"]],
                "PET_NNODES": str(trainer["numNodes"]),
                "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                "PET_NODE_RANK": str(node),
                "PET_MASTER_ADDR": "localhost",
                "PET_MASTER_PORT": str(port),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(trainer["numNodes"])
    ]
    try:
        said = [pod.communicate(timeout=120)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    assert [pod.returncode for pod in pods] == [0, 0], said
    [path] = (tmp_path / "claim" / "records").glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["status"] == "valid", said
    ranks = record["series"]["ranks"]
    assert [sum(count * items for count, items in rank["items"]) for rank in ranks] == 2 * [STEPS * PER_DEVICE]
