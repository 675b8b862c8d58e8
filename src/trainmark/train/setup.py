"""Opens everything that a plan names - data, device, process group, model - as a job for the loop."""

from __future__ import annotations

import os
import platform as host_platform
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy
import psutil
import torch
from torch import Tensor, distributed, nn

import trainmark
from trainmark import features, workloads
from trainmark.platforms import files
from trainmark.platforms.platform import Device, Platform, read_cpu_name
from trainmark.record import cores
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.events import DeviceOpening, EnvironmentSeen, EventWriter, Resumed, Saved
from trainmark.record.machine import CpuInfo, DeviceInfo, PlatformInfo
from trainmark.record.plan import Plan, Topology
from trainmark.record.precision import Precision
from trainmark.record.recipe import Recipe, from_values
from trainmark.record.record import Evaluation
from trainmark.train import checkpoint, collectives, loop, step_check
from trainmark.train.clock import Clock
from trainmark.train.collectives import Collectives, RankGroup
from trainmark.train.monitor import Monitor
from trainmark.train.parallel import DataParallel, OneDevice, convert_batch_norms
from trainmark.train.precision_proof import Proof
from trainmark.train.ranks import Ranks
from trainmark.train.schedule import Position, Schedule
from trainmark.train.stepper import Stepper
from trainmark.train.transfers import make_losses
from trainmark.workloads import pieces, weights
from trainmark.workloads.workload import HearsMels, Share, Workload

VARIABLES = (
    "GLIBC_TUNABLES", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT",
    "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "MALLOC_CONF", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_WAIT_POLICY", "ONEDNN_MAX_CPU_ISA", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)  # fmt: skip
"""Variables known to change speed, beside those of the platform file. Any other may hold a secret and is not read."""

MODEL_FILE = Path("/sys/class/dmi/id/product_name")


def collect_environment(device: Device, *, emulated_precision: bool) -> EnvironmentSeen:
    file = device.platform.file
    variables = (*VARIABLES, *file.speed_variables, *filter(None, [file.visible_devices]))
    return EnvironmentSeen(
        trainmark=trainmark.__version__,
        python=host_platform.python_version(),
        torch=str(torch.__version__),  # a subclass of str
        numpy=numpy.__version__,
        os=f"{host_platform.system()} {host_platform.release()}",
        distribution=_read_distribution(),
        machine=_read_machine_model(),
        container=detect_container(),
        libc=" ".join(host_platform.libc_ver()),
        device=DeviceInfo(
            type=file.device_type,
            name=device.name(),
            count_visible=device.platform.device_count,
            memory_bytes=device.memory_capacity_bytes(),
            driver=device.platform.driver_version(),
            power_w=peak.power_w if (peak := file.peak(device.name())) else None,
            stand_in=device.is_stand_in,
        ),
        platform=PlatformInfo(
            name=file.name,
            sha256=file.sha256,
            content=file.text if file.is_own else None,
            plugin=file.plugin,
            plugin_version=device.platform.plugin_version(),
        ),
        cpu=CpuInfo(
            name=read_cpu_name(),
            logical_cores=psutil.cpu_count(),
            usable_cores=cores.count_usable_cores(),
            capability=torch.backends.cpu.get_cpu_capability(),
            memory_bytes=psutil.virtual_memory().total,
        ),
        threads=torch.get_num_threads(),
        variables={name: os.environ[name] for name in variables if name in os.environ},
        optimised_python=sys.flags.optimize,
        emulated_precision=emulated_precision,
    )


def _read_distribution() -> str:
    try:
        return host_platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def detect_container(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> str:
    """The container runtime, by the files it leaves inside."""
    if "KUBERNETES_SERVICE_HOST" in variables:
        return "kubernetes"
    marks = {"docker": ".dockerenv", "podman": "run/.containerenv"}
    return next((name for name, mark in marks.items() if (root / mark).exists()), "none")


def _read_machine_model() -> str:
    """The product name in the firmware, also of a virtual machine."""
    try:
        return MODEL_FILE.read_text(encoding="utf-8", errors="replace").strip()[:80]
    except OSError:
        return ""


def build_job(
    plan: Plan, ranks: Ranks, folder: Path, events: EventWriter, *, startup_ns: int, began_ns: int, compare: bool = True
) -> tuple[loop.Job, Position]:
    """The job of one rank and its start: the first step, or that of a checkpoint."""
    if ranks.world != Topology.parse(plan.topology).devices:
        raise NotReadyError(f"{plan.topology} requested, {ranks.world} ranks joined")
    workload = workloads.of_plan(plan)
    recipe = from_values(type(workload.recipes["reference"]), plan.recipe)

    # data workers are forked before any device is open or any thread has started
    tensor = recipe.tensor_parallel
    share = Share(rank=ranks.rank, world=ranks.world, local_ranks=ranks.local_ranks, tensor=tensor)
    data = workload.open_data(recipe, Path(plan.data.folder), share, plan.skip_bad)
    schedule = Schedule(
        recipe=recipe, limits=plan.limits, steps_per_epoch=data.steps_per_epoch, items_per_step=data.items_per_step
    )

    events.write(DeviceOpening(at_ns=time.perf_counter_ns()))
    device = open_device(plan, ranks)
    clock = Clock(device.marks, device.synchronize, startup_ns=startup_ns, began_ns=began_ns)
    collectives = join_ranks(device, ranks)
    if ranks.world > 1:
        for feature in features.offers("rank_check"):
            feature.check(device, collectives, ranks, events)
    initial = load_initial_weights(plan)
    precision = Precision.parse(plan.precision)
    comparison = step_check.StepComparison(
        workload=workload,
        recipe=recipe,
        precision=precision,
        device=device,
        data=data,
        build=partial(build_stepper, workload, replace(recipe, compiled="no")),
        events=events,
        rank=ranks.rank,
    )
    compared = comparison.write_before() if compare else None
    stepper = build_stepper(
        workload, recipe, precision, device, collectives.world, initial, clock, local_ranks=ranks.local_ranks
    )
    position = find_start(plan, folder / "checkpoints", stepper, events, collectives)
    monitor = Monitor(
        clock=clock,
        events=events,
        schedule=schedule,
        collectives=collectives,
        losses=make_losses(device),
        position=position,
    )

    heard = dict(workload.heard) if isinstance(workload, HearsMels) else {}
    made_by = {"workload": plan.workload, "recipe": dict(plan.recipe), "heard": heard}

    def save(at: Position) -> None:
        at.trained_s = monitor.trained_s()
        state = {"stepper": stepper.state(), "position": asdict(at), "made_by": made_by}
        rest, held = stepper.parallel.split(state)
        size_bytes = None
        if collectives.rank == 0 or held is not None:
            alive = partial(monitor.report_alive, "checkpoint", 0)
            saved = checkpoint.save(folder / "checkpoints", at.step, rest, held, collectives, alive)
            size_bytes = checkpoint.measure_size_bytes(saved) if collectives.rank == 0 else None
        collectives.barrier()
        clock.charge("checkpoint")
        events.write(Saved(step=at.step, phases_ns=clock.phases_ns, size_bytes=size_bytes))

    def compare_again(at: Position) -> None:
        if compared is not None:
            model = stepper.bare_model
            # no rank has the weights of a sharded network: there the step before training is repeated
            held = () if stepper.parallel.together else (*model.named_parameters(), *model.named_buffers())
            comparison.write_again(compared, at, {name: tensor.detach().cpu() for name, tensor in held})

    if ranks.rank == 0:
        events.write(collect_environment(device, emulated_precision=device.emulates(stepper.precision)))
    job = loop.Job(
        workload=workload,
        recipe=recipe,
        schedule=schedule,
        data=data,
        device=device,
        stepper=stepper,
        clock=clock,
        monitor=monitor,
        events=events,
        collectives=collectives,
        save=save,
        compare_again=compare_again,
        proof=Proof(stepper, events) if ranks.rank == 0 else None,
    )
    return job, position


def open_device(plan: Plan, ranks: Ranks) -> Device:
    platform = Platform(files.load(plan.platform))
    device = platform.open(ranks.local_rank)
    if device.is_cpu:
        torch.set_num_threads(cores.choose_threads(ranks.local_ranks))
    elif device.is_stand_in:
        torch.set_num_threads(1)  # threads would sleep between launches, and waking them takes longer than the work
    device.set_precision(Precision.parse(plan.precision))
    return device


def join_ranks(device: Device, ranks: Ranks) -> Collectives:
    if ranks.world == 1:
        return Collectives()
    store = collectives.open_store(ranks.world)
    distributed.init_process_group(
        device.platform.file.collectives, store=store, rank=ranks.rank, world_size=ranks.world
    )
    return RankGroup()


def load_initial_weights(plan: Plan) -> dict[str, Tensor] | None:
    """The initial weights of a plan, if unchanged since planning; a resumed run has its own."""
    if plan.init_from is None or plan.resume_from is not None:
        return None
    path = Path(plan.init_from)
    found = weights.read_weights(path)
    if weights.weights_sha256(weights.weights_file(path)) != plan.init_sha256:
        raise NotReadyError(f"{path} was changed after the run was planned; plan it again")
    return found


def build_stepper(
    workload: Workload,
    recipe: Recipe,
    precision: Precision,
    device: Device,
    world: int,
    initial: Mapping[str, Tensor] | None = None,
    clock: Clock | None = None,
    *,
    local_ranks: int = 1,
) -> Stepper:
    """The model with its optimizer; all ranks initialize the same weights from the seed, or load the same file."""
    torch.manual_seed(recipe.seed)
    if recipe.parallel != "ddp" and world > 1:
        for feature in features.offers("sharded_model"):
            sharded = feature.build(workload, recipe, precision, device, initial, clock, local_ranks)
            return _make_stepper(workload, recipe, precision, device, *sharded)
        raise UsageError(f"parallel={recipe.parallel} needs the feature sharding, which is not installed")
    model = workload.build(recipe)
    if initial is not None:
        weights.load_into(model, initial, "the file of --init-from", to_begin=True)
    form = torch.channels_last if recipe.memory_format == "channels_last" else torch.contiguous_format
    model = move_model(model, device.torch, form)
    if recipe.batch_norm == "all-devices" and world > 1:
        if recipe.accumulate > 1:
            raise UsageError(
                f"batch_norm=all-devices does not work with accumulate={recipe.accumulate}: ranks may split a short "
                "batch into different numbers of micro-batches and deadlock; set one of them to its default"
            )
        model = convert_batch_norms(model, device.torch.type == "cpu", clock.exchange if clock else nullcontext)
    compiled = recipe.compiled
    parallel = DataParallel(device, clock, compiled=compiled) if world > 1 else OneDevice(compiled=compiled)
    return _make_stepper(workload, recipe, precision, device, model, parallel)


def move_model(model: nn.Module, device: torch.device, form: torch.memory_format) -> nn.Module:
    """Moves a model; tied weights stay tied, although torch makes new parameters on devices of plugins."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    model = model.to(device).to(memory_format=form)  # type: ignore[call-overload]
    for first, *others in names.values():
        for module, _, own in (name.rpartition(".") for name in others):
            setattr(model.get_submodule(module), own, model.get_parameter(first))
    return model


def _make_stepper(
    workload: Workload, recipe: Recipe, precision: Precision, device: Device, model: nn.Module, parallel: OneDevice
) -> Stepper:
    return Stepper(
        model,
        optimizer=partial(workload.optimizer, recipe=recipe),
        loss=workload.loss,
        precision=precision,
        device=device,
        parallel=parallel,
        clip_gradient_norm=recipe.clip_gradient_norm,
        accumulate=recipe.accumulate,
        average_decay=recipe.average_decay,
    )


def find_start(plan: Plan, own: Path, stepper: Stepper, events: EventWriter, collectives: Collectives) -> Position:
    """The position at which this worker begins. A run with checkpoints was restarted, and continues from them."""
    [restarted] = collectives.reduce_max(collectives.rank == 0 and bool(weights.checkpoints(own)))
    if restarted:
        return resume_from_checkpoint(str(own), stepper, events, collectives)
    if plan.resume_from is None:
        return Position()
    position = resume_from_checkpoint(plan.resume_from, stepper, events, collectives)
    position.began_step, position.trained_s = position.step, 0.0
    return position


def resume_from_checkpoint(
    checkpoints: str, stepper: Stepper, events: EventWriter, collectives: Collectives
) -> Position:
    """Loads the newest whole checkpoint and returns its position."""
    began_ns = time.perf_counter_ns()
    sharded = stepper.parallel.together
    state, damaged = checkpoint.load_newest_on_all_ranks(Path(checkpoints), collectives, mapped=sharded)
    for sentence in damaged:
        print(sentence, file=sys.stderr)
    stepper.load_state(state["stepper"] if sharded else pieces.read_all(state["stepper"]))
    stepper.device.synchronize()
    took_ns = time.perf_counter_ns() - began_ns
    history = [Evaluation(**evaluation) for evaluation in state["position"].pop("history")]
    position = Position(history=history, **state["position"])
    events.write(Resumed(step=position.step, epoch=position.epoch, damaged=damaged, took_ns=took_ns))
    return position
