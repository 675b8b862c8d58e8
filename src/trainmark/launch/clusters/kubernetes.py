"""Kubernetes: the run as a TrainJob of Kubeflow Trainer v2, one pod per node, identified by PET_ variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from trainmark.launch import secret
from trainmark.launch.cluster_env import PORT, ClusterEnv, RenderedRun, make_node_env, read_number, set_leader
from trainmark.launch.cluster_job import MAX_NAME_LENGTH, ClusterJob, check_option, describe_job, make_job, option
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


def render(request: KubernetesRequest, run: RenderedRun, say: Callable[[str], None]) -> str:
    options = run.options
    store, mount = options.store, request.mount
    if request.claim is not None:
        mount = mount or choose_mount(options.data)
        store = store or f"{mount.rstrip('/')}/trainmark"
    elif mount is not None:
        raise UsageError("--mount says where a claim appears; name the claim with --data-claim")
    if store is None:
        say("the records stay in the pods and are lost with them; keep them with --data-claim, or --store")
    resource = request.resource or files.load(run.plans[0].platform).kubernetes_resource
    patient = replace(options, store=store, join_timeout_s=options.join_timeout_s or PULL_S)
    job = make_job(replace(run, options=patient), request.name)
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
    _check(job, request)
    lines = [
        *(f"# {line}" for line in describe_job(job)),
        "#",
        "# submit:  kubectl create -f FILE",
        f"# watch:   kubectl logs -f -l {_FIRST_POD.format(name=job.name)}",
        "# again:   kubectl delete -f FILE first, or render it with another --name: a finished job keeps its name",
        f"# The fields are those of Kubeflow Trainer {VERSION}; its cluster needs v2.2 or newer.",
        *(_render_secret(job, request) if job.topology.nodes > 1 else ()),
        f"apiVersion: {API}",
        "kind: TrainJob",
        *_render_metadata(job, request),
        "spec:",
        "  # the cluster's recipe for torch jobs: it gives each pod the PET_ variables that tell trainmark its place",
        "  runtimeRef:",
        '    apiGroup: "trainer.kubeflow.org"',
        '    kind: "ClusterTrainingRuntime"',
        f"    name: {_quote(request.runtime)}",
        *_render_trainer(job, request),
        *_render_patches(request),
    ]
    return "\n".join([*lines, ""])


def _render_metadata(job: ClusterJob, request: KubernetesRequest) -> list[str]:
    lines = ["metadata:", f"  name: {_quote(job.name)}"]
    if request.namespace is not None:
        lines += [
            "  # where the job, its secret and the claim below live",
            f"  namespace: {_quote(request.namespace)}",
        ]
    return lines


def _render_secret(job: ClusterJob, request: KubernetesRequest) -> list[str]:
    return [
        "# what the pods prove to each other before they talk, made at random when this file was rendered; keep the",
        "# file to yourself, and render another where somebody else has seen it",
        'apiVersion: "v1"',
        "kind: Secret",
        *_render_metadata(job, request),
        "stringData:",
        f"  secret: {_quote(secret.make())}",
        "---",
    ]


def _render_trainer(job: ClusterJob, request: KubernetesRequest) -> list[str]:
    topology = job.topology
    lines = [
        "  trainer:",
        "    # an image with trainmark in it",
        f"    image: {_quote(request.image)}",
        f"    # pods, and workers in each: the topology {topology}",
        f"    numNodes: {topology.nodes}",
        f"    numProcPerNode: {topology.devices_per_node}",
        "    # not torchrun: each pod's trainmark starts the pod's workers",
        f"    command: [{_quote(job.command[0])}]",
        "    # the words of the run; $$ is Kubernetes' way to write one $",
        "    args:",
        *(f"      - {_quote(word.replace('$', '$$'))}" for word in job.command[1:]),
    ]
    if topology.nodes > 1:
        lines += [
            "    env:",
            f"      - name: {_quote(secret.VARIABLE)}",
            "        valueFrom:",
            "          secretKeyRef:",
            f"            name: {_quote(job.name)}",
            '            key: "secret"',
        ]
    if not job.on_cpu and request.resource is not None:
        lines += [
            "    # devices of each pod, by the cluster's name for them; add cpu and memory if pods must ask for them",
            "    resourcesPerNode:",
        ]
        for kind in ("requests", "limits"):
            lines += [f"      {kind}:", f"        {_quote(request.resource)}: {topology.devices_per_node}"]
    return lines


def _render_patches(request: KubernetesRequest) -> list[str]:
    volumes = [
        "# collectives keep the buffers of one node in shared memory, of which pods have little",
        '- name: "shared-memory"',
        '  emptyDir: {medium: "Memory"}',
    ]
    mounts = ['- name: "shared-memory"', '  mountPath: "/dev/shm"']
    if request.claim is not None:
        volumes += [
            "# the data, and the place for the records",
            '- name: "trainmark"',
            f"  persistentVolumeClaim: {{claimName: {_quote(request.claim)}}}",
        ]
        mounts += ['- name: "trainmark"', f"  mountPath: {_quote(request.mount or '/data')}"]
    pod = [
        "volumes:",
        *_indent(2, volumes),
        "containers:",
        '  - name: "node"',
        "    volumeMounts:",
        *_indent(6, mounts),
    ]
    return [
        "  # what the pods get beyond the cluster's recipe",
        "  runtimePatches:",
        "    # whose patch this is: any name below a domain",
        '    - manager: "trainmark.dev/render"',
        "      trainingRuntimeSpec:",
        "        template:",
        "          spec:",
        "            replicatedJobs:",
        '              - name: "node"',
        "                template:",
        "                  spec:",
        "                    template:",
        "                      spec:",
        *_indent(24, pod),
    ]


def _indent(width: int, lines: Iterable[str]) -> list[str]:
    return [" " * width + line for line in lines]


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


def _quote(text: str) -> str:
    """A YAML string on one line: quoted as JSON, with escapes for unprintable characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} cannot be written in YAML: it is not valid Unicode") from None
    return "".join(sign if sign.isprintable() else _escape(sign) for sign in json.dumps(text, ensure_ascii=False))


def _escape(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"
