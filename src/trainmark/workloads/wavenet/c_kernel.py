"""The generating loop in C: compiled by the machine's own compiler when it is first wanted, where there is one.

Each stretch of sound is made by one thread from beginning to end, so cores never wait for each other. It is built
anew in every process that wants it, in half a second, into a folder of its own: nothing that lay there before is run.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainmark.workloads.wavenet.layers import HALF
from trainmark.workloads.wavenet.model import HOP, WaveNet, bias_of

SOURCE = Path(__file__).with_name("generate.c")
# what -ffast-math stands for, one by one: that word itself would have every tiny number in this process taken for 0
REORDERED = ("associative-math", "reciprocal-math", "finite-math-only", "no-math-errno", "no-trapping-math")
FLAGS = ("-O3", "-march=native", *(f"-f{word}" for word in REORDERED), "-fno-signed-zeros", "-shared", "-fPIC")
BLOCK = 32
"""Outputs whose weights lie together, by `generate.c`; channels are filled up with 0 to as many."""
MAX_ROWS, FEW_ROWS = 8, 4
"""Stretches that one call makes side by side: 1, 4 or 8."""


class BuildResult(NamedTuple):
    """The compiled loop, or why there is none."""

    call: Any
    reason: str


@cache
def build() -> BuildResult:
    """Compiles the loop once a process."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))), None)
    if compiler is None:
        return BuildResult(None, "there is no C compiler")
    with tempfile.TemporaryDirectory(prefix="trainmark-") as folder:
        library = Path(folder) / "generate.so"
        try:
            said = subprocess.run(
                [compiler, *FLAGS, "-o", str(library), str(SOURCE)], capture_output=True, text=True, timeout=120
            )
            if said.returncode:
                return BuildResult(None, f"{compiler} refused: {said.stderr.partition(chr(10))[0]}")
            call = ctypes.CDLL(str(library)).generate
        except (OSError, subprocess.SubprocessError, AttributeError) as error:
            return BuildResult(None, f"{compiler} made nothing that can be loaded: {error}")
    call.restype = None
    return BuildResult(call, "")


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("layers", "channels", "gate", "skip", "mixtures", "outputs")),
        *((name, ctypes.c_void_p) for name in ("dilations", "first", "first_bias", "hear", "both", "both_bias")),
        *((name, ctypes.c_void_p) for name in ("inner", "inner_bias", "outer", "outer_bias")),
    )


class Kernel:
    """A network's weights as the loop in C takes them."""

    def __init__(self, network: WaveNet) -> None:
        sizes = network.sizes
        self._kept: list[Tensor] = []  # what C holds addresses of
        channels, skip = _pad_channels(sizes.residual), _pad_channels(sizes.skip)
        self._mixtures, self._half = sizes.mixtures, _pad_channels(sizes.gate // 2)
        layers = network.layers
        hear = [_pad_gate(torch.cat(_split_taps(layer.conv.weight, channels), 1), self._half) for layer in layers]
        out = [_pad_weight(HALF * layer.conv1x1_out.weight[:, :, 0], channels, self._half) for layer in layers]
        past = [_pad_weight(layer.conv1x1_skip.weight[:, :, 0], skip, self._half) for layer in layers]
        biases = [
            torch.cat(
                [
                    _pad_weight(HALF * bias_of(layer.conv1x1_out), channels),
                    _pad_weight(bias_of(layer.conv1x1_skip), skip),
                ]
            )
            for layer in layers
        ]
        inner, outer = network.last_convs
        outputs = _pad_channels(3 * sizes.mixtures)
        self._biases = torch.stack([_pad_gate(bias_of(layer.conv), self._half) for layer in layers]).contiguous()
        self._network = _Network(
            layers=sizes.layers,
            channels=channels,
            gate=2 * self._half,
            skip=skip,
            mixtures=sizes.mixtures,
            outputs=outputs,
            dilations=self._keep(torch.tensor([layer.dilation for layer in layers], dtype=torch.int32)),
            first=self._keep(_pad_weight(network.first_conv.weight[:, 0, 0], channels)),
            first_bias=self._keep(_pad_weight(bias_of(network.first_conv), channels)),
            hear=self._keep_all([_pack(weight) for weight in hear]),
            both=self._keep_all([_pack(torch.cat(pair)) for pair in zip(out, past, strict=True)]),
            both_bias=self._keep_all(biases),
            inner=self._keep(_pack(_pad_weight(math.sqrt(1 / sizes.layers) * inner.weight[:, :, 0], skip, skip))),
            inner_bias=self._keep(_pad_weight(bias_of(inner), skip)),
            outer=self._keep(_pack(_pad_weight(outer.weight[:, :, 0], outputs, skip))),
            outer_bias=self._keep(_pad_weight(bias_of(outer), outputs)),
        )
        self._layers = sizes.layers
        held = sum(2 * layer.dilation for layer in layers) * channels
        self._room = held + channels * 4 + 3 * self._half + channels + 3 * skip + outputs

    def generate(self, projected: Tensor, spread: Tensor, which: Tensor, where: Tensor, threads: int) -> Tensor:
        """Sound (stretches, samples).

        `projected` (stretches, frames with REACH more on either side, layers, gate) is what frames give to layers and
        `spread` (frames, HOP, window) how; the draws are those of `generate.Chance`.
        """
        stretches, frames = len(projected), len(spread)
        found = torch.empty(stretches, frames * HOP)
        gumbel, logistic = -(-which.log()).log(), where.log() - torch.log1p(-where)
        conditioning = _pad_gate(projected.movedim(-1, 0), self._half).movedim(0, -1)
        rows = MAX_ROWS if stretches >= MAX_ROWS * threads else FEW_ROWS if stretches > threads else 1
        groups = [range(first, min(first + rows, stretches)) for first in range(0, stretches, rows)]

        def make(group: Sequence[int]) -> None:
            count = FEW_ROWS * math.ceil(len(group) / FEW_ROWS) if rows > 1 else 1
            numbers = torch.tensor([*group, *[group[0]] * (count - len(group))])  # the last ones are not kept
            sound = torch.empty(count, frames * HOP)
            parts = [conditioning[numbers], gumbel[:, numbers], logistic[:, numbers]]
            given = [part.float().contiguous() for part in parts]
            room = torch.zeros(count * self._room)
            tensors = (given[0], self._biases, spread_, given[1], given[2], sound, room)
            addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
            build().call(ctypes.byref(self._network), count, frames, *addresses)
            found[list(group)] = sound[: len(group)]

        spread_ = spread.float().contiguous()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(make, groups))
        return found

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()

    def _keep_all(self, tensors: Sequence[Tensor]) -> int:
        return self._keep(torch.tensor([self._keep(tensor) for tensor in tensors], dtype=torch.int64))


def _pad_channels(channels: int) -> int:
    return BLOCK * math.ceil(channels / BLOCK)


def _pad_weight(weight: Tensor, outputs: int, inputs: int | None = None) -> Tensor:
    """With 0 for channels that are not there."""
    if inputs is None:
        return F.pad(weight, (0, outputs - len(weight)))
    return F.pad(weight, (0, inputs - weight.shape[1], 0, outputs - len(weight)))


def _split_taps(weight: Tensor, channels: int) -> list[Tensor]:
    """(outputs, inputs) of the oldest, the older and the newest sample."""
    return [F.pad(tap, (0, channels - tap.shape[1])) for tap in weight.unbind(2)]


def _pad_gate(weight: Tensor, half: int) -> Tensor:
    """Either half of a gate's outputs, filled up by itself."""
    return torch.cat([F.pad(part, (*(0, 0) * (part.dim() - 1), 0, half - len(part))) for part in weight.chunk(2)])


def _pack(weight: Tensor) -> Tensor:
    """(outputs, inputs), block after block of outputs, with the weights of an input together."""
    outputs, inputs = weight.shape
    return weight.view(outputs // BLOCK, BLOCK, inputs).transpose(1, 2).contiguous()
