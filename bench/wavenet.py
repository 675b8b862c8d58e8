"""WaveNet's training step beside the plainest loop, and its generation beside the textbook's, each in one run.

    python bench/wavenet.py [--layers 12] [--clips 2] [--samples 10240] [--rounds 3]
    python bench/wavenet.py --generation [--layers 12] [--sentences 16]

Training: two processes hold the same weights and the same batch and take turns. `plain` is the network with
`implementation=plain`, Adam and torch's defaults; `ours` is what a trainmark worker does. Both lose the same on the
same batch, step after step. Generation: `naive` computes the network over all it hears for every sample, `textbook`
keeps the past of each layer in a queue; both make one sentence, one sample after the other, and ours makes several
sentences at once. Given the same draws all make the same samples. Ratios are of medians over turns; on a machine with
other load, OMP_NUM_THREADS=1 keeps threads from waiting for each other.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import figures
import torch
import torch.nn.functional as F
import turns
from torch import Tensor, nn

from trainmark import workloads
from trainmark.data.mel import MEL
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train.stepper import Stepper
from trainmark.workloads.wavenet import generate, vocoder
from trainmark.workloads.wavenet.layers import HALF
from trainmark.workloads.wavenet.model import CONTEXT, WaveNet, WaveNetSizes, bias_of
from trainmark.workloads.wavenet.workload import WINDOW, SoundBatch

STEPS_A_TURN, COMPARED = 4, 5
BAR = 12_000
"""Samples a second that generation at 12 layers is to reach on two quiet cores."""


def some_batch(clips: int, samples: int) -> SoundBatch:
    generator = torch.Generator().manual_seed(1)
    return SoundBatch(
        sound=0.05 * torch.randn(clips, samples + 1, generator=generator),
        mel=torch.randn(clips, 80, samples // MEL.hop + 2 * CONTEXT, generator=generator),
        judged=torch.ones(clips, samples, dtype=torch.bool),
        judged_on_host=(samples,) * clips,
        gain=1.0,
        count=clips,
        global_count=clips,
    )


def recipe_of(layers: int) -> Any:
    reference: Any = workloads.load("wavenet").recipes["reference"]
    return replace(reference, layers=layers, cycles=layers // 6)


def plain_step(recipe: Any, batch: SoundBatch) -> Callable[[], float]:
    workload: Any = workloads.load("wavenet")
    model = workload.build(replace(recipe, implementation="plain")).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    average = [weight.detach().clone() for weight in model.parameters()]
    steps = 0

    def step() -> float:
        nonlocal steps
        optimizer.zero_grad()
        loss = workload.loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_gradient_norm)
        optimizer.step()
        decay = min(recipe.average_decay, (1 + steps) / (10 + steps))
        steps += 1
        with torch.no_grad():
            for kept, weight in zip(average, model.parameters(), strict=True):
                kept.mul_(decay).add_(weight, alpha=1 - decay)
        return float(loss.detach())

    return step


def our_step(recipe: Any, batch: SoundBatch) -> Callable[[], float]:
    workload = workloads.load("wavenet")
    device = Platform(files.load("cpu")).open(0)
    precision = Precision.parse("fp32")
    device.set_precision(precision)
    stepper = Stepper(
        workload.build(recipe).train(),
        optimizer=partial(workload.optimizer, recipe=recipe),
        loss=workload.loss,
        precision=precision,
        device=device,
        clip_gradient_norm=recipe.clip_gradient_norm,
        average_decay=recipe.average_decay,
    )
    stepper.set_learning_rate(recipe.learning_rate)
    return lambda: float(stepper.step(batch))


def serve(kind: str, layers: int, clips: int, samples: int) -> None:
    torch.manual_seed(0)
    recipe = recipe_of(layers)
    step = (plain_step if kind == "plain" else our_step)(recipe, some_batch(clips, samples))
    losses: list[float] = []
    # several steps a turn: the first finds caches as the other process left them
    turns.serve(lambda: losses.extend(step() for _ in range(STEPS_A_TURN)), lambda s: (s / STEPS_A_TURN, losses))


def compare_training(layers: int, clips: int, samples: int, rounds: int) -> None:
    tuned = {**os.environ, **files.load("cpu").host_settings}
    words = [__file__, "--layers", str(layers), "--clips", str(clips), "--samples", str(samples), "--child"]
    children = {
        "plain": turns.Child([*words, "plain"], os.environ),
        "ours": turns.Child([*words, "ours"], tuned),
    }
    answers: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in children}
    turns.settle(children.values())
    for _ in range(rounds):
        for name, child in children.items():
            answers[name].append(child.turn(0))
    for child in children.values():
        child.close()
    losses = [said[-1][1] for said in answers.values()]
    losses = [of[:COMPARED] for of in losses]  # later on Adam has made other steps of what was only rounding
    for theirs, ours in zip(*losses, strict=True):
        if not math.isclose(theirs, ours, rel_tol=1e-3):
            raise SystemExit(f"the losses differ: {theirs} and {ours}")
    seconds = {name: [answer[0] for answer in said] for name, said in answers.items()}
    pairs = [theirs / ours for theirs, ours in zip(seconds["plain"], seconds["ours"], strict=True)]
    median = {name: statistics.median(of) for name, of in seconds.items()}
    figures.note("wavenet over plain", median["plain"] / median["ours"])
    print(
        f"training, {layers} layers, {clips} x {samples} samples: plain {clips * samples / median['plain']:,.0f}, "
        f"ours {clips * samples / median['ours']:,.0f} samples/s, ratio {median['plain'] / median['ours']:.2f} "
        f"(rounds {min(pairs):.2f} to {max(pairs):.2f}), losses equal over {len(losses[0])} steps",
        flush=True,
    )


def draw(outputs: Tensor, noise: generate.Noise, at: int) -> Tensor:
    drawn = generate.draw(outputs.detach().numpy(), noise.gumbel[at].numpy(), noise.logistic[at].numpy())
    return torch.from_numpy(drawn)


class Textbook:
    """One sample after the other with a queue for the past of each layer, weight norm removed beforehand."""

    def __init__(self, network: WaveNet) -> None:
        self.network = network
        self.weights = [
            [
                *layer.conv.weight.detach().unbind(2),
                layer.conv1x1_out.weight.detach()[:, :, 0],
                layer.conv1x1_skip.weight.detach()[:, :, 0],
            ]
            for layer in network.layers
        ]
        self.first = network.first_conv.weight.detach()[:, :, 0]
        self.last = [conv.weight.detach()[:, :, 0] for conv in network.last_convs]

    @torch.no_grad()
    def generate(self, mel: Tensor, noise: generate.Noise, samples: int) -> Tensor:
        network, clips = self.network, len(mel)
        frames = network.upsample_net.conv_in(mel)
        c = torch.stack([network.upsample_net.upsample(clip) for clip in frames])
        heard = [F.conv1d(c, layer.conv1x1c.weight, bias_of(layer.conv)) for layer in network.layers]
        size = network.sizes.residual
        queues = [[torch.zeros(clips, size)] * (2 * layer.dilation) for layer in network.layers]
        sample, found = torch.zeros(clips, 1), []
        for at in range(samples):
            x = F.linear(sample, self.first, bias_of(network.first_conv))
            total = torch.zeros(clips, network.sizes.skip)
            for number, layer in enumerate(network.layers):
                oldest, older, newest, out, skip = self.weights[number]
                queue = queues[number]
                z = F.linear(queue[0], oldest) + F.linear(queue[layer.dilation], older) + F.linear(x, newest)
                z = z + heard[number][:, :, at]
                queue.append(x)
                del queue[0]
                signal, opening = z.chunk(2, 1)
                h = torch.tanh(signal) * torch.sigmoid(opening)
                total = total + F.linear(h, skip, bias_of(layer.conv1x1_skip))
                x = (x + F.linear(h, out, bias_of(layer.conv1x1_out))) * HALF
            hidden = F.relu(total * math.sqrt(1 / network.sizes.layers))
            inner, outer = network.last_convs
            hidden = F.relu(F.linear(hidden, self.last[0], bias_of(inner)))
            outputs = F.linear(hidden, self.last[1], bias_of(outer))
            drawn = draw(outputs, noise, at)
            found.append(drawn)
            sample = drawn[:, None]
        return torch.stack(found, 1)


@torch.no_grad()
def naive(network: WaveNet, mel: Tensor, noise: generate.Noise, samples: int) -> Tensor:
    """For every sample, the network over all that it hears."""
    c = torch.stack([network.upsample_net.upsample(clip) for clip in network.upsample_net.conv_in(mel)])
    heard = [layer.conv1x1c(c) for layer in network.layers]
    weights = [layer.conv.weight for layer in network.layers]
    sound = torch.zeros(len(mel), samples + 1)
    for at in range(samples):
        now = slice(max(0, at + 1 - network.sizes.receptive_field), at + 1)
        x, total = network.first_conv(sound[:, None, now]), torch.zeros(())
        for layer, weight, conditioning in zip(network.layers, weights, heard, strict=True):
            padded = F.pad(x, (2 * layer.dilation, 0))
            z = F.conv1d(padded, weight, layer.conv.bias, dilation=layer.dilation) + conditioning[:, :, now]
            signal, opening = z.chunk(2, 1)
            h = torch.tanh(signal) * torch.sigmoid(opening)
            total = total + layer.conv1x1_skip(h)
            x = (x + layer.conv1x1_out(h)) * HALF
        sound[:, at + 1] = draw(network.head(total)[:, :, -1], noise, at)
    return sound[:, 1:]


def compare_generation(layers: int, sentences: int, rounds: int) -> None:
    torch.manual_seed(0)
    network = WaveNet(WaveNetSizes(layers=layers, cycles=layers // 6), for_speech=True)
    textbook = Textbook(network)
    generator = torch.Generator().manual_seed(2)
    few, shown = 1, 128
    mel = torch.randn(1, 80, few + 2 * CONTEXT, generator=generator)
    chance = generate.draw_noise(few * MEL.hop, 1, network.sizes.mixtures, generator)
    theirs = textbook.generate(mel, chance, shown)
    if not torch.allclose(theirs, naive(network, mel, chance, shown), atol=1e-3):
        raise SystemExit("by the same draws the naive loop and the textbook's make other samples")
    ours = generate.generate(network, mel, chance)[:, :shown]
    if not torch.allclose(theirs, ours, atol=1e-3):
        raise SystemExit(f"by the same draws we make other samples: {(theirs - ours).abs().max():.2g}")
    mels = [torch.randn(80, 64 + 4 * number, generator=generator) - 5 for number in range(sentences)]
    samples = sum(mel.shape[1] for mel in mels) * MEL.hop
    threads = torch.get_num_threads()

    def one_by_one(loop: Callable[[], Tensor]) -> int:
        torch.set_num_threads(1)  # of products of one row no other core can take a part
        made = loop()
        torch.set_num_threads(threads)
        return made.shape[1]

    def all_at_once() -> int:
        vocoder.speak(network, mels)
        return samples

    calls: dict[str, Callable[[], int]] = {
        "naive": partial(one_by_one, partial(naive, network, mel, chance, shown)),
        "textbook": partial(one_by_one, partial(textbook.generate, mel, chance, few * MEL.hop)),
        "ours": all_at_once,
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            made = call()
            rates[name].append((made / (time.perf_counter() - began), made / (time.process_time() - began_cpu)))
    wall, cpu = ({name: statistics.median(pair[k] for pair in of) for name, of in rates.items()} for k in (0, 1))
    print(
        f"generation, {layers} layers, {sentences} sentences of {samples / MEL.rate:.0f} s together, {threads} threads:"
    )
    for name in calls:
        print(
            f"  {name:8} {wall[name]:8,.0f} samples/s ({wall[name] / wall['naive']:.0f}x naive, "
            f"{wall[name] / wall['textbook']:.0f}x textbook, {wall[name] / BAR:.2f} of the bar of {BAR:,}); "
            f"{cpu[name]:,.0f} a second of one core's time ({cpu[name] / cpu['naive']:.0f}x, "
            f"{cpu[name] / cpu['textbook']:.0f}x)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--clips", type=int, default=2)
    parser.add_argument("--samples", type=int, default=WINDOW, help="of a clip (default: as the recipes have it)")
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generation", action="store_true", help="measure generation and not training")
    parser.add_argument("--child", choices=("plain", "ours"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(args.child, args.layers, args.clips, args.samples)
    elif args.generation:
        compare_generation(args.layers, args.sentences, args.rounds)
    else:
        compare_training(args.layers, args.clips, args.samples, args.rounds)


if __name__ == "__main__":
    main()
