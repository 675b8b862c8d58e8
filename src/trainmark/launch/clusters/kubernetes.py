"""Kubernetes: the run as a TrainJob of Kubeflow Trainer v2, one pod per node, identified by PET_ variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from trainmark.launch.cluster_env import (
    PORT,
    SECRET,
    ClusterEnv,
    make_node_env,
    make_secret,
    read_number,
    set_leader,
)
from trainmark.launch.cluster_job import MAX_NAME_LENGTH, ClusterJob, check_option, describe_job, option
from trainmark.platforms import files
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import Topology

PRIORITY = 1
RENDERS = "a TrainJob for Kubeflow Trainer v2"
PULL_S = 900.0
"""How long pods wait for each other: one may still pull its image."""
API = "trainer.kubeflow.org/v1alpha1"
VERSION = "v2.4"
"""The version of Kubeflow Trainer whose fields these are; runtimePatches came with v2.2."""

_FIRST_POD = "jobset.sigs.k8s.io/jobset-name={name},batch.kubernetes.io/job-completion-index=0"
_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


def detect(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    """Each process is a node, by the PET_ variables of torchrun, which Kubernetes jobs and our ssh launcher set."""
    if "PET_NNODES" not in environ:
        return None
    nodes, node = (read_number(environ, name, "PET_") for name in ("PET_NNODES", "PET_NODE_RANK"))
    each = environ.get("PET_NPROC_PER_NODE", str(topology.devices_per_node))
    if each.isdigit() and (nodes, int(each)) != (topology.nodes, topology.devices_per_node):
        raise NotReadyError(f"{topology} requested, the job has {nodes} nodes with {each} processes each")
    if nodes != topology.nodes:
        raise NotReadyError(f"{topology} requested, the job has {nodes} nodes")
    env = make_node_env(topology, "kubernetes", node)
    if env.launchers == 1:
        return env
    if "PET_MASTER_ADDR" not in environ:
        raise NotReadyError("PET_NNODES is set and PET_MASTER_ADDR is not: the address of node 0 is needed")
    given = read_number(environ, "PET_MASTER_PORT", "PET_") if "PET_MASTER_PORT" in environ else port
    return set_leader(env, environ["PET_MASTER_ADDR"], given or PORT)


@dataclass(frozen=True, kw_only=True)
class KubernetesRequest:
    """What the job asks of the cluster beyond nodes."""

    name: str | None = option("--name", "the job's name (default: from the plan)")
    image: str = option("--image", "a container image with trainmark in it", metavar="IMAGE", default=...)
    namespace: str | None = option("--namespace", "where the job lives (default: kubectl's)")
    runtime: str = option("--runtime", "a ClusterTrainingRuntime (default: %(default)s)", default="torch-distributed")
    claim: str | None = option("--data-claim", "a PersistentVolumeClaim with the data; records are kept on it, too")
    mount: str | None = option(
        "--mount", "where the claim appears in the pods (default: the folder above --data)", metavar="DIR"
    )
    resource: str | None = option("--device-resource", "a device's name in the cluster (default: the platform file's)")


REQUEST = KubernetesRequest


def render(request: KubernetesRequest, job: ClusterJob, say: Callable[[str], None]) -> str:
    options = job.options
    store, mount = options.store, request.mount
    if request.claim is not None:
        mount = mount or choose_mount(options.data)
        store = store or f"{mount.rstrip('/')}/trainmark"
    elif mount is not None:
        raise UsageError("--mount says where a claim appears; name the claim with --data-claim")
    if store is None:
        say("the records stay in the pods and are lost with them; keep them with --data-claim, or --store")
    resource = request.resource or files.load(job.plans[0].platform).kubernetes_resource
    patient = replace(options, store=store, join_timeout_s=options.join_timeout_s or PULL_S)
    job = replace(job, options=patient, given_name=request.name)
    return render_manifest(job, replace(request, mount=mount, resource=resource))


def choose_mount(data: str | None) -> str:
    """The folder above the data, so that the data is on the claim."""
    if data is None:
        return "/data"
    parent = str(PurePosixPath(data).parent)
    if parent == "/":
        raise UsageError(f"--data {data} has no folder above it to mount the claim at; add --mount")
    return parent


def render_manifest(job: ClusterJob, request: KubernetesRequest) -> str:
    """Documents in YAML's JSON notation, below comments that say how to use them."""
    _check(job, request)
    lines = [
        *describe_job(job),
        "",
        "submit:  kubectl create -f FILE",
        f"watch:   kubectl logs -f -l {_FIRST_POD.format(name=job.name)}",
        "again:   kubectl delete -f FILE first, or render it with another --name: a finished job keeps its name",
        f"The fields are those of Kubeflow Trainer {VERSION}; its cluster needs v2.2 or newer.",
    ]
    documents = [_make_train_job(job, request)]
    if job.topology.nodes > 1:
        lines += [
            "The pods prove a secret to each other before they talk, made at random when this file was rendered:",
            "keep the file to yourself, and render another where somebody else has seen it.",
        ]
        documents.insert(0, _make_secret_document(job, request))
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "---\n".join(map(_dump, documents))


def _make_metadata(job: ClusterJob, request: KubernetesRequest) -> dict[str, str]:
    return {"name": job.name} | ({} if request.namespace is None else {"namespace": request.namespace})


def _make_secret_document(job: ClusterJob, request: KubernetesRequest) -> dict[str, Any]:
    metadata = _make_metadata(job, request)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"secret": make_secret()}}


def _make_train_job(job: ClusterJob, request: KubernetesRequest) -> dict[str, Any]:
    topology = job.topology
    trainer: dict[str, Any] = {
        "image": request.image,
        "numNodes": topology.nodes,
        "numProcPerNode": topology.devices_per_node,
        # not torchrun: trainmark starts the workers of its pod
        "command": job.command[:1],
        "args": [word.replace("$", "$$") for word in job.command[1:]],  # Kubernetes' way to write one $
    }
    if topology.nodes > 1:
        secret = {"secretKeyRef": {"name": job.name, "key": "secret"}}
        trainer["env"] = [{"name": SECRET, "valueFrom": secret}]
    if not job.on_cpu and request.resource is not None:
        devices = {request.resource: topology.devices_per_node}
        trainer["resourcesPerNode"] = {"requests": devices, "limits": devices}
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": _make_metadata(job, request),
        "spec": {
            # the cluster's recipe for torch jobs: it gives each pod the PET_ variables that tell trainmark its place
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": request.runtime,
            },
            "trainer": trainer,
            "runtimePatches": [_make_patch(request)],
        },
    }


def _make_patch(request: KubernetesRequest) -> dict[str, Any]:
    """What the pods get beyond the cluster's recipe: collectives keep the buffers of one node in shared memory, of
    which pods have little; the claim has the data, and keeps the records."""
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108 - in the pods
    if request.claim is not None:
        volumes.append({"name": "trainmark", "persistentVolumeClaim": {"claimName": request.claim}})
        mounts.append({"name": "trainmark", "mountPath": request.mount or "/data"})
    pod = {"volumes": volumes, "containers": [{"name": "node", "volumeMounts": mounts}]}
    pods = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": "trainmark.dev/render",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [pods]}}},
    }


def _dump(document: dict[str, Any]) -> str:
    """JSON, with escapes for unprintable characters, some of which YAML takes for line breaks."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("a word of this run cannot be written in YAML: it is not valid Unicode") from None
    return "".join(sign if sign.isprintable() or sign == "\n" else _escape(sign) for sign in text)


def _check(job: ClusterJob, request: KubernetesRequest) -> None:
    a_name = "a name of Kubernetes: small letters, digits, '-'"
    check_option("--name", job.name, _LABEL, f"{a_name}, beginning with a letter")
    if len(job.name) > MAX_NAME_LENGTH:
        raise UsageError(f"--name {job.name!r} has {len(job.name)} letters; a job's name may have {MAX_NAME_LENGTH}")
    for flag, text in (
        ("--namespace", request.namespace),
        ("--runtime", request.runtime),
        ("--data-claim", request.claim),
    ):
        if text is not None:
            check_option(flag, text, _NAME, a_name)
    check_option("--image", request.image, r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,499}", "the name of a container image")
    if request.resource is not None:
        a_resource = "a resource such as example.com/gpu"
        check_option("--device-resource", request.resource, rf"{_NAME}/[A-Za-z0-9._-]+", a_resource)
    elif not job.on_cpu:
        raise UsageError(f"platform {job.plans[0].platform} has no resource name of its devices; add --device-resource")
    if request.mount is not None:
        check_option("--mount", request.mount, r"/[^:]+", "a folder from the root on, without ':'")


def _escape(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"
