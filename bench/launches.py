"""What a step asks of a device beside plain implementations: launches, bytes that cross to it, waits of its host.

    python bench/launches.py [--workloads resnet50,tacotron2] [--precision fp32] [--frames]

Ours is counted on shapes alone, with the reference recipe and one batch a step, as `trainmark plan --flops` does it.
`plain` is the network of the other benchmarks here, trained on a small real batch on the CPU, parameter by parameter:
launches do not depend on how large a batch is, but for our loss over a vocabulary, computed in chunks. Llama 8B has
none. `to device` is the batch and what else crosses in a step; `waits` are operators at which the host waits for the
device. For Tacotron2, clips of 24 frames here, the launches of one more frame are told, from two lengths, and those it
takes with `compiled=blocks`, whose parts are compiled here, for the CPU, to see how many kernels each comes to.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import decoder
import figures
import tacotron2
import torch
import vision
import wavenet
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from trainmark import workloads
from trainmark.features.flops import counted_step
from trainmark.features.flops.operator_count import OperatorCount
from trainmark.features.flops.step_count import BACKWARD, FORWARD, UPDATE, CountedStep, StepCount
from trainmark.record.precision import Precision
from trainmark.workloads.tacotron2.workload import SpeechBatch, blank_clips

FRAMES = (24, 48)
"""Lengths of which the difference is taken."""
FULL = Precision.parse("fp32")


def ours(name: str, precision: Precision) -> CountedStep:
    workload: Any = workloads.load(name)
    recipe = replace(workload.recipes["reference"], accumulate=1)
    with counted_step.fake_device():
        batch = clips(FRAMES[0]) if name == "tacotron2" else workload.blank_batch(recipe)
    return counted_step.count_batches(workload, recipe, precision, [batch])[0]


def clips(frames: int) -> SpeechBatch:
    return blank_clips(tacotron2.RECIPE.batch_per_device, frames, tacotron2.SYMBOLS)


def our_clips(frames: int, precision: Precision) -> StepCount:
    with counted_step.fake_device():
        batch = clips(frames)
    return counted_step.count_batches(workloads.load("tacotron2"), tacotron2.RECIPE, precision, [batch])[0].count


def counted(step: Callable[[], object]) -> StepCount:
    """Of a step on real tensors of the CPU, after one that makes the optimizer's state."""
    step()
    with OperatorCount(device=torch.device("cpu")) as counter:
        step()
    return counter.result()


def plain_images(name: str) -> StepCount:
    return counted(vision.plain_step(name, FULL, vision.images(2, vision.reference(name))))


def plain_text() -> StepCount:
    recipe = replace(decoder.reference(1), context=64)
    return counted(decoder.plain_step(recipe, FULL, decoder.text(recipe)))


def plain_sound() -> StepCount:
    recipe: Any = workloads.load("wavenet").recipes["reference"]
    return counted(wavenet.plain_step(recipe, wavenet.some_batch(1, 1024)))


def plain_clips(frames: int) -> StepCount:
    return counted(tacotron2.textbook_step(FULL, tacotron2.some_batch(1, frames)))


PLAIN: Mapping[str, Callable[[], StepCount]] = {
    **{name: lambda name=name: plain_images(name) for name in vision.WORKLOADS},  # type: ignore[misc]
    "gpt124m": plain_text,
    "wavenet": plain_sound,
    "tacotron2": lambda: plain_clips(FRAMES[0]),
}


def parts(count: StepCount) -> Counter[str]:
    found: Counter[str] = Counter()
    for launch, times in count.launches:
        found[launch.part] += times
    return found


def a_frame(count: Callable[[int], StepCount]) -> str:
    """Launches that one frame more takes."""
    few, many = (parts(count(frames)) for frames in FRAMES)
    each = {part: (many[part] - few[part]) / (FRAMES[1] - FRAMES[0]) for part in (FORWARD, BACKWARD)}
    return f"{each[FORWARD]:.1f} forward, {each[BACKWARD]:.1f} backward"


@dataclass
class PartCalls:
    """One of the parts that are compiled: how often it was called, and what it launched while it was not."""

    part: Any
    calls: int = 0
    launched: int = 0
    given: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> Any:
        self.given = self.given or tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
        with OperatorCount(device=torch.device("cpu")) as counter:
            out = self.part.forward(*args)
        self.calls += 1
        self.launched += counter.result().launched
        return out

    def kernels(self) -> int:
        """What torch's compiler makes of it."""
        with torch.no_grad():
            code = run_and_get_code(torch.compile(self.part.forward), *self.given)[1]
        return sum(len(re.findall(r"^\s+(?:cpp_fused\w*|extern_kernels\.\w+)\(", text, re.MULTILINE)) for text in code)


def compiled_clips(frames: int) -> tuple[int, list[PartCalls]]:
    """What is launched beside the parts on the way there and back, and the parts."""
    workload: Any = workloads.load("tacotron2")
    model = workload.build(tacotron2.RECIPE).train()
    called = [PartCalls(part) for part in model.blocks]
    for part in called:
        part.part._compiled_call_impl = part
    with OperatorCount(device=torch.device("cpu")) as counter:
        workload.loss(model, tacotron2.some_batch(1, frames)).backward()
    return counter.result().launched - sum(part.launched for part in called), called


def a_compiled_frame() -> float:
    """Launches that one frame more takes where the parts between products are compiled."""
    (few, called), (many, _) = map(compiled_clips, FRAMES)
    kernels = sum(part.calls * part.kernels() for part in called) / FRAMES[0]
    return (many - few) / (FRAMES[1] - FRAMES[0]) + kernels


def waits(count: StepCount) -> str:
    return ", ".join(f"{times} {name}" for name, times in count.waits) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", default=",".join(workloads.names()))
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--frames", action="store_true", help="only the launches of a frame of Tacotron2")
    args = parser.parse_args()
    precision, names = Precision.parse(args.precision), args.workloads.split(",")
    if not args.frames:
        print(
            f"{'':10} {'plain':>6} {'ours':>6} {'forward':>8} {'backward':>9} {'update':>7} {'to device MB':>13}  waits"
        )
    for name in names if not args.frames else ():
        step = ours(name, precision)
        found = parts(step.count)
        plain = f"{PLAIN[name]().launched}" if name in PLAIN else ""
        numbers = f"{plain:>6} {step.count.launched:6} {found[FORWARD]:8} {found[BACKWARD]:9} {found[UPDATE]:7}"
        crossed = (step.batch_bytes + step.count.copied_bytes) / 1e6
        print(f"{name:10} {numbers} {crossed:13.2f}  {waits(step.count)}", flush=True)
    if "tacotron2" in names:
        print(f"a frame of tacotron2: {a_frame(lambda frames: our_clips(frames, precision))}")
        print(f"              plain: {a_frame(plain_clips)}")
        compiled = a_compiled_frame()
        figures.note("tacotron2 launches a frame", compiled)
        print(f"    compiled=blocks: {compiled:.1f} in all")


if __name__ == "__main__":
    main()
