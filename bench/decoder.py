"""Training-step speed and memory of gpt124m beside the plainest eager loop, in one run, and its share of the peak.

    python bench/decoder.py [--precisions fp32,bf16] [--windows 1] [--rounds 5] [--seconds 15] [--compiled]

Two processes hold the same network: `plain` scores every token of the batch over the whole vocabulary at once, with
torch's cross entropy, default optimizer and default allocator; `ours` is what a trainmark worker does. They take turns,
so that both see the same machine; the ratio is that of the medians. Memory is the most each process held. The peak is
the best of several large matrix products in the same type. `--compiled` takes our blocks through torch.compile.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import turns

from trainmark import workloads
from trainmark.platforms import files
from trainmark.platforms.matmul_probe import choose_matmul_type
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train.setup import build_stepper
from trainmark.workloads.decoder.model import per_token
from trainmark.workloads.decoder.workload import TextBatch

WORKLOAD = workloads.load("gpt124m")


def reference(windows: int) -> Any:
    return replace(WORKLOAD.recipes["reference"], batch_per_device=windows)


def text(recipe: Any) -> TextBatch:
    windows = recipe.batch_per_device
    tokens = torch.randint(recipe.vocabulary, (windows, recipe.context + 1))
    return TextBatch(tokens=tokens, count=windows, global_count=windows)


def plain_step(recipe: Any, precision: Precision, batch: TextBatch) -> Callable[[], None]:
    """What the first page of a tutorial does."""
    model = WORKLOAD.build(recipe).to(getattr(torch, precision.weights))
    optimizer = WORKLOAD.optimizer(model.parameters(), replace(recipe, optimizer_kind="plain"))
    read, wanted = batch.tokens[:, :-1], batch.tokens[:, 1:].flatten()

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(read).flatten(0, 1).float(), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def our_step(recipe: Any, precision: Precision, batch: TextBatch, compiled: str = "no") -> Callable[[], None]:
    """What a trainmark worker does."""
    device = Platform(files.load("cpu")).open(0)
    device.set_precision(precision)
    stepper = build_stepper(WORKLOAD, replace(recipe, compiled=compiled), precision, device, world=1)

    def step() -> None:
        stepper.step(batch)

    return step


STEPS: dict[str, Callable[[Any, Precision, TextBatch], Callable[[], None]]] = {
    "plain": plain_step,
    "ours": our_step,
    "compiled": partial(our_step, compiled="blocks"),
}


def serve(kind: str, precision: Precision, windows: int) -> None:
    """A child: for every line it reads, trains for that many seconds and answers with seconds a step and its memory."""
    torch.manual_seed(0)
    recipe = reference(windows)
    step = STEPS[kind](recipe, precision, text(recipe))
    step()
    turns.serve(step, lambda seconds: (seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def compare(precision: Precision, args: argparse.Namespace) -> None:
    tuned = {**os.environ, **files.load("cpu").host_settings}
    command = [__file__, "--precisions", precision.name, "--windows", str(args.windows)]
    children = {
        kind: turns.Child([*command, "--child", kind], environment)
        for kind, environment in (("plain", dict(os.environ)), (args.kind, tuned))
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in children}
    memory, peaks = dict.fromkeys(children, 0.0), []
    for _ in range(args.rounds):
        for kind, child in children.items():
            took, memory[kind] = child.turn(args.seconds)
            seconds[kind].append(took)
        peaks.append(turns.matmul_peak(choose_matmul_type(Platform(files.load("cpu")).open(0), precision)))
    for child in children.values():
        child.close()
    recipe, peak = reference(args.windows), statistics.median(peaks)
    tokens = args.windows * recipe.context
    rate = {kind: tokens / statistics.median(values) for kind, values in seconds.items()}
    pairs = [plain / ours for plain, ours in zip(seconds["plain"], seconds[args.kind], strict=True)]
    print(
        f"gpt124m {precision.name:9} {args.windows} windows: plain {rate['plain']:.0f}, {args.kind} "
        f"{rate[args.kind]:.0f} tokens/s, ratio {rate[args.kind] / rate['plain']:.2f} (rounds {min(pairs):.2f} to "
        f"{max(pairs):.2f}); memory {memory['plain'] / 2**30:.2f} and {memory[args.kind] / 2**30:.2f} GiB; "
        f"{100 * per_token(recipe).attention * rate[args.kind] / peak:.0f} % of the matmul peak of "
        f"{peak / 1e9:.1f} GFLOP/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--windows", type=int, default=1, help="of 1024 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--compiled", action="store_const", dest="kind", const="compiled", default="ours")
    parser.add_argument("--child", choices=STEPS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    precisions = [Precision.parse(word) for word in args.precisions.split(",")]
    if args.child:
        serve(args.child, precisions[0], args.windows)
        return
    for precision in precisions:
        compare(precision, args)


if __name__ == "__main__":
    main()
