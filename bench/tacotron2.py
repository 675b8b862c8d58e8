"""Tacotron2's training step beside a textbook decoder that does everything in one loop, in one run.

    python bench/tacotron2.py [--batches 8,16,32] [--frames 200,600] [--precisions fp32,bf16] [--rounds 2] [--peers]
    python bench/tacotron2.py --pieces

Two processes hold the same weights and the same batch and take turns: `textbook` is the network with
`implementation=plain`, one loop over the frames with two nn.LSTMCell and autograd, in float32 and by torch's defaults;
`ours` is what a trainmark worker does. Dropout, loss, clipping and
optimizer are the same. Ratios are of median seconds a step, always over the textbook in float32; the memory of each
process is its peak. The share of the matmul peak is by the FLOPs of the network's mathematics. `--peers` lets NVIDIA's
network take turns too, where torchaudio is installed, which has it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
from collections.abc import Callable, Sequence
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
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train.stepper import Stepper
from trainmark.workloads.tacotron2 import matmuls, workload
from trainmark.workloads.tacotron2.model import Sizes
from trainmark.workloads.tacotron2.workload import SpeechBatch

SYMBOLS = 100
RECIPE: Any = workloads.load("tacotron2").recipes["reference"]


def some_batch(clips: int, frames: int) -> SpeechBatch:
    return SpeechBatch(
        text=torch.randint(1, 148, (clips, SYMBOLS)),
        symbols=(SYMBOLS,) * clips,
        mels=torch.randn(frames, clips, 80) - 5,
        frames=torch.full((clips,), frames),
        frames_on_host=(frames,) * clips,
        numbers=tuple(range(clips)),
        count=clips,
        global_count=clips,
    )


def textbook_step(precision: Precision, batch: SpeechBatch) -> Callable[[], None]:
    model = workloads.load("tacotron2").build(replace(RECIPE, implementation="plain")).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RECIPE.learning_rate, weight_decay=RECIPE.weight_decay)
    loss = workloads.load("tacotron2").loss

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), RECIPE.clip_gradient_norm)
        optimizer.step()

    return step


def peer_step(network: Callable[[], nn.Module], batch: SpeechBatch) -> Callable[[], None]:
    """As its users train it: torch's defaults, and the published loss."""
    model = network().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RECIPE.learning_rate, weight_decay=RECIPE.weight_decay)
    mels = batch.mels.permute(1, 2, 0).contiguous()
    symbols, ends = torch.tensor(batch.symbols), torch.zeros(len(batch.symbols), mels.shape[2])
    ends[:, -1] = 1

    def step() -> None:
        optimizer.zero_grad()
        mel, refined, gate, _ = model(batch.text, symbols, mels, batch.frames)
        loss = F.mse_loss(mel, mels) + F.mse_loss(refined, mels) + F.binary_cross_entropy_with_logits(gate, ends)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), RECIPE.clip_gradient_norm)
        optimizer.step()

    return step


def our_step(precision: Precision, batch: SpeechBatch) -> Callable[[], None]:
    workload = workloads.load("tacotron2")
    device = Platform(files.load("cpu")).open(0)
    device.set_precision(precision)
    stepper = Stepper(
        workload.build(RECIPE).train(),
        optimizer=partial(workload.optimizer, recipe=RECIPE),
        loss=workload.loss,
        precision=precision,
        device=device,
        clip_gradient_norm=RECIPE.clip_gradient_norm,
    )

    def step() -> None:
        stepper.step(batch)

    return step


def serve(kind: str, precision: Precision, clips: int, frames: int) -> None:
    torch.manual_seed(0)
    steps = {"textbook": textbook_step, "ours": our_step}
    make = steps[kind] if kind in steps else lambda _, batch: peer_step(peers.speech_networks()[kind], batch)
    step = make(precision, some_batch(clips, frames))
    turns.serve(step, lambda seconds: (seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def compare(clips: int, frames: int, precisions: list[Precision], rounds: int, others: Sequence[str]) -> None:
    tuned = {**os.environ, **files.load("cpu").host_settings}
    command = [__file__, "--batches", str(clips), "--frames", str(frames), "--child"]
    children = {"textbook": turns.Child([*command, "textbook", "--precisions", "fp32"], os.environ)}
    for kind in others:
        children[kind] = turns.Child([*command, kind, "--precisions", "fp32"], os.environ)
    for precision in precisions:
        children[precision.name] = turns.Child([*command, "ours", "--precisions", precision.name], tuned)
    answers: dict[str, list[tuple[float, float]]] = {name: [] for name in children}
    peaks = []
    turns.settle(children.values())
    for _ in range(rounds):
        peaks.append(turns.matmul_peak(torch.float32))
        for name, child in children.items():
            answers[name].append(child.turn(0))
    for child in children.values():
        child.close()
    seconds = {name: [answer[0] for answer in said] for name, said in answers.items()}
    memory = {name: max(answer[1] for answer in said) for name, said in answers.items()}
    for precision in precisions:
        name = precision.name
        pairs = [theirs / ours for theirs, ours in zip(seconds["textbook"], seconds[name], strict=True)]
        median = {kind: statistics.median(seconds[kind]) for kind in ("textbook", name)}
        rate = clips * frames / median[name]
        share = (
            rate * workload.training_flops_per_frame(Sizes(), symbols=SYMBOLS, frames=frames) / statistics.median(peaks)
        )
        print(
            f"batch {clips:3}, {frames} frames, {name:9}: textbook {median['textbook']:6.2f} s, "
            f"ours {median[name]:6.2f} s ({rate:,.0f} frames/s), ratio {median['textbook'] / median[name]:.2f} "
            f"(rounds {min(pairs):.2f} to {max(pairs):.2f}), "
            f"memory {memory[name]:.2f} against {memory['textbook']:.2f} GiB, "
            f"{100 * share:.0f} % of the float32 matmul peak of {statistics.median(peaks) / 1e9:.0f} GFLOP/s",
            *(
                f"\n  {kind} {statistics.median(seconds[kind]):.2f} s, "
                f"ratio {statistics.median(seconds[kind]) / median[name]:.2f}, memory {memory[kind]:.2f} GiB"
                for kind in others
            ),
            flush=True,
        )
        if name == "fp32":
            figures.note(f"tacotron2 {clips} {frames} over textbook", median["textbook"] / median[name])
            figures.note(f"tacotron2 {clips} {frames} memory", memory[name] / memory["textbook"])


def pieces() -> None:
    """The one operator our step replaces, beside torch's; medians of calls by turns."""
    ways: dict[str, dict[str, Callable[[], object]]] = {}
    for clips in (8, 16, 32):
        given, weight = torch.randn(clips, 1536), torch.randn(4096, 1536)
        packed = matmuls.Matmul(weight, clips)
        ways[f"the attention recurrence's product, batch {clips}"] = {
            "plain": partial(F.linear, given, weight),
            "ours": partial(packed, given),
        }
    turns.race(ways, 31)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", default="8,16,32")
    parser.add_argument("--frames", default="200,600")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pieces", action="store_true", help="measure a part of the step by itself")
    parser.add_argument("--peers", action="store_true", help="race NVIDIA's network too, as torchaudio has it")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    precisions = [Precision.parse(word) for word in args.precisions.split(",")]
    batches, frames = ([int(word) for word in words.split(",")] for words in (args.batches, args.frames))
    if args.child:
        serve(args.child, precisions[0], batches[0], frames[0])
        return
    if args.pieces:
        pieces()
        return
    for clips in batches:
        for count in frames:
            compare(clips, count, precisions, args.rounds, list(peers.speech_networks()) if args.peers else [])


if __name__ == "__main__":
    main()
