"""DistillMOS, a network that predicts how listeners would rate speech; its weights are read, its package is not run.

The package imports a library that does not load beside every torch, so the network is written out here; parameters have
the names and shapes of its file.
"""

from __future__ import annotations

import math
from importlib import metadata, util
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKAGE = "distillmos"
RATE = 16_000
WINDOW = 122_880
"""Samples per input of the network: 7.68 s."""
HOP = 16_000
"""Largest hop between the windows of a longer sound; their scores are averaged."""
CHANNELS, WIDTH, HEADS, LAYERS, STEPS = 256, 200, 8, 7, 384


def find_weights() -> Path | None:
    """Where the installed package keeps its weights; None where it is not installed."""
    found = util.find_spec(PACKAGE)
    folders = found.submodule_search_locations if found else None
    path = Path(next(iter(folders))) / "weights" / "distill_mos_v7.pt" if folders else None
    return path if path and path.is_file() else None


def title() -> str:
    return f"DistillMOS {metadata.version(PACKAGE)} (distill_mos_v7)"


class Spectrum(nn.Module):
    """Convolutions over a compressed complex spectrum, 20 ms every 10 ms."""

    def __init__(self) -> None:
        super().__init__()
        widths = (2, 64, 64, 128, 256, 256, CHANNELS)
        layers: list[nn.Module] = []
        for place, (before, after) in enumerate(pairwise(widths)):
            stride = (2 if place else 1, 2 if place == len(widths) - 2 else 1)
            layers += [nn.Conv2d(before, after, 3, stride=stride, padding=(0, 1)), nn.LeakyReLU(0.1)]
        self.cnn = nn.Sequential(*layers)

    def forward(self, sound: Tensor) -> Tensor:
        padded = F.pad(sound, (80, 80), mode="reflect")
        window = torch.hann_window(320, device=sound.device)
        spectrum = torch.view_as_real(torch.stft(padded, 320, 160, 320, window, center=False, return_complex=True))
        loudness = spectrum.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        compressed = loudness**0.3 * spectrum / loudness
        return self.cnn(compressed.permute(0, 3, 1, 2)).flatten(1, -2)  # type: ignore[no-any-return]


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        turns = torch.arange(STEPS)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(2 * STEPS) / WIDTH))
        self.pe: Tensor
        self.register_buffer("pe", torch.stack([turns.sin(), turns.cos()], -1).reshape(1, STEPS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe


class Encoder(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.position_encoding = Positions()
        self.linear_proj = nn.Linear(inputs, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.linear_proj(self.norm(x).transpose(1, 2))
        return self.transformer_encoder(self.position_encoding(narrow))  # type: ignore[no-any-return]


class AttentionPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, 1)
        self.linear3 = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.linear2(F.relu(self.linear1(x))).softmax(1)
        return self.linear3((weights * x).sum(1))[:, 0]  # type: ignore[no-any-return]


class OpinionHead(nn.Module):
    def __init__(self, inputs: int = 4 * CHANNELS) -> None:
        super().__init__()
        self.norm_input, self.transformer = nn.BatchNorm1d(inputs), Encoder(inputs)
        self.norm_trans, self.pool = nn.BatchNorm1d(WIDTH), AttentionPool()

    def forward(self, x: Tensor) -> Tensor:
        heard = self.transformer(self.norm_input(x)).transpose(1, 2)
        return torch.sigmoid(self.pool(self.norm_trans(heard).transpose(1, 2)))


class DistillMos(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cnn, self.transformer_pool_attn = Spectrum(), OpinionHead()

    @classmethod
    def read(cls, file: Path) -> DistillMos:
        model = cls()
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True)["model"])
        return model.eval()

    @torch.no_grad()
    def predict(self, sound: Tensor) -> float:
        """The score, from 1 to 5, of a sound (samples) at 16 kHz; a short one is repeated, as silence would
        lower it."""
        windows = torch.stack([part / (part.abs().max() + 1e-8) for part in cut_windows(sound)])
        return float((1 + 4 * self.transformer_pool_attn(self.cnn(windows))).mean())


def cut_windows(sound: Tensor) -> list[Tensor]:
    """Cuts a sound into windows."""
    if not len(sound):
        raise ValueError("the sound is empty")
    whole = sound.repeat(-(-WINDOW // len(sound)))[: max(len(sound), WINDOW)]
    spare = len(whole) - WINDOW
    count = -(-spare // HOP) + 1
    firsts = [int(spare * place / (count - 1)) if count > 1 else 0 for place in range(count)]
    return [whole[first : first + WINDOW] for first in firsts]
