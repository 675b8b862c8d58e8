"""Training-step speed of the vision workloads beside the plainest eager loop, in one run, and their share of the peak.

    python bench/vision.py [--precisions fp32,bf16] [--batch 16] [--rounds 5] [--seconds 6] [--compiled] [--peers]

Processes hold the same network: `plain` is contiguous NCHW tensors, torch's default optimizer and the default
allocator; `ours` is what a trainmark worker does, normalising and, where the recipe says so, mixing pictures included.
They take turns, so that both see the same machine; the ratio is that of the medians. The peak is the best of several
large matrix products in the same type. A batch is one step: gradients are not accumulated. `--compiled` takes ours
through torch.compile. `--peers` lets torchvision's and timm's own networks take turns too, where they are installed, as
their users train them: in NCHW and in channels_last, with the default allocator and optimizer, pictures normalised
beforehand.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import figures
import peers
import torch
import torch.nn.functional as F
import turns
from torch import nn

from trainmark import workloads
from trainmark.data.input_pool import ImageBatch
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train.setup import build_stepper
from trainmark.workloads.segmenter.batches import CropBatch, SegmenterRecipe
from trainmark.workloads.vision import SoftBatch, normalise

WORKLOADS = ("resnet50", "vit", "segmenter")
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


def reference(name: str) -> Any:
    """The recipe both sides train by, with one batch a step."""
    return replace(workloads.load(name).recipes["reference"], accumulate=1)


def scenes(batch: int, recipe: SegmenterRecipe) -> CropBatch:
    size = recipe.image_px
    return CropBatch(
        images=torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8).permute(0, 3, 1, 2),
        labels=torch.randint(0, recipe.classes, (batch, size, size), dtype=torch.uint8),
        extents=((size, size),) * batch,
        recipe=recipe,
        count=batch,
        global_count=batch,
    )


def images(batch: int, recipe: Any) -> ImageBatch | CropBatch:
    if isinstance(recipe, SegmenterRecipe):
        return scenes(batch, recipe)
    size = recipe.image_px
    pixels = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    batched: dict[str, Any] = {
        "images": pixels,
        "labels": torch.randint(0, recipe.classes, (batch,)),
        "count": batch,
        "global_count": batch,
    }
    return (
        SoftBatch(**batched, mix_draws=(0.7, 0.5, 0.5, 0.5), recipe=recipe)
        if recipe.has_mixing
        else ImageBatch(**batched)
    )


def plain_loss(model: nn.Module, x: torch.Tensor, batch: Any, recipe: Any) -> torch.Tensor:
    if isinstance(recipe, SegmenterRecipe):
        return F.cross_entropy(model(x).float(), batch.labels.long(), ignore_index=255)
    return F.cross_entropy(model(x).float(), batch.labels, label_smoothing=recipe.label_smoothing)


def plain_step(
    name: str, precision: Precision, batch: Any, network: Callable[[], nn.Module] | None = None, layout: str = "nchw"
) -> Callable[[], None]:
    """What the first page of a tutorial does, with the workload's network or another for the same task."""
    workload, recipe = workloads.load(name), reference(name)
    weights, shape = getattr(torch, precision.weights), LAYOUTS[layout]
    model = (network() if network else workload.build(recipe)).to(weights).to(memory_format=shape)  # type: ignore[call-overload]
    optimizer = workload.optimizer(model.parameters(), replace(recipe, optimizer_kind="plain"))
    x = normalise(batch.images, torch.float32).contiguous(memory_format=shape).to(weights)
    autocast = getattr(torch, precision.autocast) if precision.autocast else torch.bfloat16

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast, enabled=precision.autocast is not None):
            loss = plain_loss(model, x, batch, recipe)
        loss.backward()  # type: ignore[no-untyped-call]
        if recipe.clip_gradient_norm:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_gradient_norm)
        optimizer.step()

    return step


def our_step(name: str, precision: Precision, batch: Any, compiled: str = "no") -> Callable[[], None]:
    """What a trainmark worker does."""
    device = Platform(files.load("cpu")).open(0)
    device.set_precision(precision)
    recipe = replace(reference(name), compiled=compiled)
    stepper = build_stepper(workloads.load(name), recipe, precision, device, world=1)

    def step() -> None:
        stepper.step(batch)

    return step


STEPS: dict[str, Callable[[str, Precision, Any], Callable[[], None]]] = {
    "plain": plain_step,
    "ours": our_step,
    "compiled": partial(our_step, compiled="yes"),
}


def peer_steps(name: str) -> dict[str, Callable[[str, Precision, Any], Callable[[], None]]]:
    """Steps of other packages' networks, by package and layout."""
    return {
        f"{package}/{layout}": partial(plain_step, network=network, layout=layout)
        for package, network in peers.image_networks(name).items()
        for layout in LAYOUTS
    }


def serve(kind: str, name: str, precision: Precision, batch: int) -> None:
    """A child: for every line it reads, trains for that many seconds and answers with seconds a step."""
    torch.manual_seed(0)
    make = STEPS[kind] if kind in STEPS else peer_steps(name)[kind]
    step = make(name, precision, images(batch, reference(name)))
    turns.serve(step)


def peak_flops(precision: Precision) -> float:
    """The best rate of a large matrix product in the type the precision computes in; float32 where it is emulated."""
    dtype = torch.float32 if emulated(precision) else getattr(torch, precision.computes_in)
    return turns.matmul_peak(dtype)


def compare(name: str, precision: Precision, args: argparse.Namespace) -> None:
    batch = args.batch if precision.computes_in == "float32" or not emulated(precision) else min(2, args.batch)
    tuned = {**os.environ, **files.load("cpu").host_settings}
    command = [__file__, "--workload", name, "--precisions", precision.name, "--batch", str(batch)]
    others = ["plain", *(peer_steps(name) if args.peers else ())]
    children = {kind: turns.Child([*command, "--child", kind], os.environ) for kind in others}
    children[args.kind] = turns.Child([*command, "--child", args.kind], tuned)
    seconds: dict[str, list[float]] = {kind: [] for kind in children}
    peaks = []
    turns.settle(children.values())
    for _ in range(args.rounds):
        for kind, child in children.items():
            seconds[kind].append(child.turn(args.seconds))
        peaks.append(peak_flops(precision))
    for child in children.values():
        child.close()
    flops, peak = workloads.load(name).flops_per_item(reference(name)), statistics.median(peaks)
    ours = seconds[args.kind]
    rate = batch / statistics.median(ours)
    note = " in float32, by which this CPU emulates it" if emulated(precision) else ""
    print(
        f"{name} {precision.name} batch {batch}: {args.kind} {rate:.2f} images/s, "
        f"{100 * flops * rate / peak:.0f} % of the matmul peak of {peak / 1e9:.1f} GFLOP/s{note}"
    )
    figures.note(f"{name} share of peak", 100 * flops * rate / peak)
    for kind in others:
        figures.note(f"{name} over {kind}", statistics.median(seconds[kind]) / statistics.median(ours))
        pairs = [theirs / our for theirs, our in zip(seconds[kind], ours, strict=True)]
        print(
            f"  {kind:27} {batch / statistics.median(seconds[kind]):6.2f} images/s, "
            f"ratio {statistics.median(seconds[kind]) / statistics.median(ours):.2f} "
            f"(rounds {min(pairs):.2f} to {max(pairs):.2f})",
            flush=True,
        )


def emulated(precision: Precision) -> bool:
    return Platform(files.load("cpu")).open(0).emulates(precision)


def pieces() -> None:
    """Parts of ViT-B/16's step, each in the ways one could do it."""
    workload, recipe = workloads.load("vit"), reference("vit")
    model = workload.build(recipe)
    x = torch.randn(4, 3, recipe.image_px, recipe.image_px)
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    last = copy.deepcopy(first).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    limit = recipe.clip_gradient_norm
    ways: dict[str, dict[str, Callable[[], object]]] = {
        "clipping": {
            "torch's": lambda: nn.utils.clip_grad_norm_(model.parameters(), limit),
            "one flat vector": lambda: flat.mul_((limit / (flat.norm() + 1e-6)).clamp(max=1.0)),
        },
        "AdamW": {
            kind: workload.optimizer(model.parameters(), replace(recipe, optimizer_kind=kind)).step
            for kind in ("plain", "foreach", "fused")
        },
        "patches of 4 pictures, there and back": {
            "NCHW": lambda: first(x).sum().backward(),
            "channels_last": lambda: last(x.to(memory_format=torch.channels_last)).sum().backward(),
        },
    }
    turns.race(ways, 11)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", choices=WORKLOADS)
    parser.add_argument("--precisions", default="fp32,amp-bf16,bf16")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--compiled", action="store_const", dest="kind", const="compiled", default="ours")
    parser.add_argument("--peers", action="store_true", help="race torchvision's and timm's networks too")
    parser.add_argument("--pieces", action="store_true", help="measure parts of ViT's step by themselves")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    precisions = [Precision.parse(word) for word in args.precisions.split(",")]
    if args.pieces:
        pieces()
        return
    if args.child:
        serve(args.child, args.workload, precisions[0], args.batch)
        return
    for name in [args.workload] if args.workload else WORKLOADS:
        for precision in precisions:
            compare(name, precision, args)


if __name__ == "__main__":
    main()
