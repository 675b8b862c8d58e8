"""Tacotron2: text to mel frames, with the parameter names of the public checkpoints.

The decoder here goes step by step, for inference and for training with `implementation=plain`; the fast implementation
of training is teacher_forcing.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from trainmark.workloads.tacotron2.matmuls import Pointwise, is_on_cpu, widen
from trainmark.workloads.tacotron2.teacher_forcing import LSTMWeights, run_teacher_forced


def diagonality(alignment: Tensor, frames: Tensor, symbols: Tensor) -> Tensor:
    """How close each clip's attention in `alignment` (clips, frames, symbols) is to the diagonal.

    With frames and symbols scaled to 0..1, this is 1 - 3 * (mean distance between a frame's position and its attended
    position): 1 for a diagonal, about 0 for uniform attention, below 0 for attention stuck at one end. A clip of one
    frame or one symbol gets 1.
    """
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    frame_at, read = _places(alignment.shape[1], frames)
    symbol_at, written = _places(alignment.shape[2], symbols)
    distance = (symbol_at[:, None] - frame_at[:, :, None]).abs().where(written[:, None], 0)
    only_one_way = (frames <= 1) | (symbols <= 1)
    return 1 - 3 * _mean((alignment * distance).sum(2), read, frames).where(~only_one_way, 0)


def off_diagonal(alignment: Tensor, frames: Tensor, symbols: Tensor, width: float = 0.2) -> Tensor:
    """Guided attention loss per clip: mean weight off the diagonal, which grows with the distance beyond `width`."""
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    frame_at, read = _places(alignment.shape[1], frames)
    symbol_at, _ = _places(alignment.shape[2], symbols)
    off = 1 - torch.exp(-((symbol_at[:, None] - frame_at[:, :, None]) ** 2) / (2 * width**2))
    return _mean((alignment * off).sum(2), read, frames)


def focus(alignment: Tensor, frames: Tensor, symbols: Tensor) -> Tensor:
    """Mean over frames of the largest weight, per clip: 1 if each frame attends to one symbol."""
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    _, read = _places(alignment.shape[1], frames)
    _, written = _places(alignment.shape[2], symbols)
    return _mean(alignment.where(written[:, None], 0).amax(2), read, frames)


def _on_one_device(alignment: Tensor, *lengths: Tensor) -> tuple[Tensor, ...]:
    return alignment.float(), *(length.to(alignment.device) for length in lengths)


def _places(most: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Position of each index within its clip, from 0 to 1, and whether it is in the clip."""
    numbers = torch.arange(most, device=lengths.device)
    return numbers / (lengths[:, None] - 1).clamp(min=1), numbers < lengths[:, None]


def _mean(values: Tensor, counted: Tensor, counts: Tensor) -> Tensor:
    # padding is replaced, not multiplied by 0, which would propagate NaN
    return values.where(counted, 0).sum(1) / counts.clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Layer sizes; the defaults are the published model."""

    symbols: int = 148
    bands: int = 80
    encoder: int = 512
    encoder_kernel: int = 5
    encoder_layers: int = 3
    prenet: int = 256
    attention_rnn: int = 1024
    decoder_rnn: int = 1024
    attention: int = 128
    location_filters: int = 32
    location_kernel: int = 31
    postnet: int = 512
    postnet_kernel: int = 5
    postnet_layers: int = 5


class Outputs(NamedTuple):
    """Outputs of a batch under teacher forcing."""

    mel: Tensor
    """(clips, bands, frames), before the postnet."""
    refined: Tensor
    """The same after the postnet."""
    gate: Tensor
    """(clips, frames): logits of the stop token."""
    alignment: Tensor
    """(clips, frames, symbols): attention weights."""
    strayed: Tensor | None = None
    """Guided attention loss per clip, if enabled."""


class SpokenMel(NamedTuple):
    """Outputs of free-running inference."""

    mel: Tensor
    """(clips, bands, frames), after the postnet; only the first `frames` of each clip are valid."""
    frames: list[int]
    alignment: Tensor
    finished: list[bool]
    """False if the limit on frames was reached before the stop token."""


class Linear(nn.Module):
    """A linear layer, named as in the public checkpoints."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, gain: str = "linear") -> None:
        super().__init__()
        self.linear_layer = nn.Linear(inputs, outputs, bias=bias)
        nn.init.xavier_uniform_(self.linear_layer.weight, nn.init.calculate_gain(gain))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_layer(x)  # type: ignore[no-any-return]


class Conv(nn.Module):
    """A same-padded 1-d convolution, named as in the public checkpoints."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, bias: bool = True, gain: str = "linear") -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)
        nn.init.xavier_uniform_(self.conv.weight, nn.init.calculate_gain(gain))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)  # type: ignore[no-any-return]


def conv_with_norm(inputs: int, outputs: int, kernel: int, gain: str) -> nn.Sequential:
    return nn.Sequential(Conv(inputs, outputs, kernel, gain=gain), nn.BatchNorm1d(outputs))


class TextEncoder(nn.Module):
    """Three convolutions and a bidirectional LSTM over the symbols."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, kernel = sizes.encoder, sizes.encoder_kernel
        self.convolutions = nn.ModuleList(
            conv_with_norm(width, width, kernel, "relu") for _ in range(sizes.encoder_layers)
        )
        self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)

    def forward(self, embedded: Tensor, lengths: Sequence[int]) -> Tensor:
        """(clips, width, symbols) to (clips, symbols, width)."""
        x = embedded
        for layer in self.convolutions:
            x = F.dropout(F.relu(layer(x)), 0.5, self.training)
        if min(lengths) == x.shape[2] and not is_on_cpu(x):  # no padding; a CPU's kernels round differently unpacked
            return self.lstm(x.transpose(1, 2))[0]  # type: ignore[no-any-return]
        # lengths stay on the host, which avoids a device sync
        packed = pack_padded_sequence(
            x.transpose(1, 2), torch.as_tensor(lengths), batch_first=True, enforce_sorted=False
        )
        read, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[2])
        return read


class Prenet(nn.Module):
    """Two layers whose dropout is always on, so that the decoder does not just copy the previous frame."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = (sizes.bands, sizes.prenet, sizes.prenet)
        self.layers = nn.ModuleList(Linear(a, b, bias=False) for a, b in pairwise(widths))
        self.dropout = 0.5

    def forward(self, frames: Tensor, kept: Sequence[Tensor] | None = None) -> Tensor:
        """`kept` are the dropout masks per layer; random if None."""
        x = frames
        for number, layer in enumerate(self.layers):
            x = F.relu(layer(x))
            x = F.dropout(x, self.dropout) if kept is None else x * (kept[number] / (1 - self.dropout)).to(x.dtype)
        return x


class LocationLayer(nn.Module):
    """Location features from previous attention weights."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.location_conv = Conv(2, sizes.location_filters, sizes.location_kernel, bias=False)
        self.location_dense = Linear(sizes.location_filters, sizes.attention, bias=False, gain="tanh")

    def forward(self, history: Tensor) -> Tensor:
        return self.location_dense(self.location_conv(history).transpose(1, 2))  # type: ignore[no-any-return]

    def fold(self) -> Tensor:
        """Convolution and dense layer folded into one: (attention, 2, kernel)."""
        dense, conv = self.location_dense.linear_layer.weight, self.location_conv.conv.weight
        return torch.einsum("af,fck->ack", dense, conv)


class Attention(nn.Module):
    """Location-sensitive attention."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.query_layer = Linear(sizes.attention_rnn, sizes.attention, bias=False, gain="tanh")
        self.memory_layer = Linear(sizes.encoder, sizes.attention, bias=False, gain="tanh")
        self.v = Linear(sizes.attention, 1, bias=False)
        self.location_layer = LocationLayer(sizes)

    def forward(self, query: Tensor, keys: Tensor, history: Tensor, padding: Tensor) -> Tensor:
        """Attention weights, from a query and `history`, the previous weights and their running sum."""
        energies = self.v(torch.tanh(self.query_layer(query).unsqueeze(1) + keys + self.location_layer(history)))
        energies = energies.squeeze(2).to(widen(energies.dtype))
        return torch.softmax(energies.masked_fill(padding, torch.finfo(energies.dtype).min), dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class DecoderState:
    """Recurrent state of the decoder."""

    attention: tuple[Tensor, Tensor]
    decoder: tuple[Tensor, Tensor]
    context: Tensor
    history: Tensor
    """(clips, 2, symbols): the previous attention weights, and their running sum."""


class Decoder(nn.Module):
    """An attention LSTM and a decoder LSTM: `step` is the published network, frame by frame."""

    def __init__(self, sizes: Sizes, hidden_dropout: float, plain: bool) -> None:
        super().__init__()
        self.plain = plain
        self.prenet = Prenet(sizes)
        self.attention_rnn = nn.LSTMCell(sizes.prenet + sizes.encoder, sizes.attention_rnn)
        self.attention_layer = Attention(sizes)
        self.decoder_rnn = nn.LSTMCell(sizes.attention_rnn + sizes.encoder, sizes.decoder_rnn)
        self.linear_projection = Linear(sizes.decoder_rnn + sizes.encoder, sizes.bands)
        self.gate_layer = Linear(sizes.decoder_rnn + sizes.encoder, 1, gain="sigmoid")
        self.hidden_dropout = hidden_dropout
        self.pointwise = Pointwise()

    def start(self, memory: Tensor) -> DecoderState:
        clips, symbols, width = memory.shape

        def zeros(*shape: int) -> Tensor:
            return memory.new_zeros(clips, *shape)

        hidden, said = self.attention_rnn.hidden_size, self.decoder_rnn.hidden_size
        return DecoderState(
            attention=(zeros(hidden), zeros(hidden)),
            decoder=(zeros(said), zeros(said)),
            context=zeros(width),
            history=zeros(2, symbols),
        )

    def step(
        self, frame: Tensor, state: DecoderState, memory: Tensor, keys: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """One frame: from the prenet's output of the previous frame to mel and gate."""
        hidden, cell = self.attention_rnn(torch.cat((frame, state.context), 1), state.attention)
        hidden = F.dropout(hidden, self.hidden_dropout, self.training)
        weights = self.attention_layer(hidden, keys, state.history, padding)
        context = torch.bmm(weights.to(memory.dtype).unsqueeze(1), memory).squeeze(1)
        said, said_cell = self.decoder_rnn(torch.cat((hidden, context), 1), state.decoder)
        said = F.dropout(said, self.hidden_dropout, self.training)
        summary = torch.cat((said, context), 1)
        after = DecoderState(
            attention=(hidden, cell),
            decoder=(said, said_cell),
            context=context,
            history=torch.stack((weights, state.history[:, 1] + weights), 1).to(memory.dtype),
        )
        return self.linear_projection(summary), self.gate_layer(summary).squeeze(1), after

    def keys(self, memory: Tensor) -> Tensor:
        """Attention keys."""
        return self.attention_layer.memory_layer(memory)  # type: ignore[no-any-return]

    def forward(self, memory: Tensor, padding: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All frames under teacher forcing: `frames` (frames, clips, prenet) are the prenet's outputs of the target.

        Mel (frames, clips, bands), gate (frames, clips) and attention weights (frames, clips, symbols).
        """
        if self.plain:
            return self._run_steps(memory, padding, frames)
        layer = self.attention_layer
        summaries, alignment = run_teacher_forced(
            frames,
            memory,
            self.keys(memory),
            padding,
            attention_rnn=LSTMWeights.of(self.attention_rnn),
            decoder_rnn=LSTMWeights.of(self.decoder_rnn),
            query=layer.query_layer.linear_layer.weight,
            location=layer.location_layer.fold(),
            energy=layer.v.linear_layer.weight.view(-1),
            drop=self.hidden_dropout if self.training else 0.0,
            pointwise=self.pointwise,
        )
        mel, gate = self.linear_projection.linear_layer, self.gate_layer.linear_layer
        # both projections as one matmul
        both = F.linear(summaries, torch.cat((mel.weight, gate.weight)), torch.cat((mel.bias, gate.bias)))
        return both[..., :-1], both[..., -1], alignment

    def _run_steps(self, memory: Tensor, padding: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, state = self.keys(memory), self.start(memory)
        mels, gates, alignment = [], [], []
        for frame in frames:
            mel, gate, state = self.step(frame, state, memory, keys, padding)
            mels.append(mel)
            gates.append(gate)
            alignment.append(state.history[:, 0])
        return torch.stack(mels), torch.stack(gates), torch.stack(alignment)


class Postnet(nn.Module):
    """Five convolutions that refine the decoder's frames."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [sizes.bands, *[sizes.postnet] * (sizes.postnet_layers - 1), sizes.bands]
        gains = ["tanh"] * (sizes.postnet_layers - 1) + ["linear"]
        self.convolutions = nn.ModuleList(
            conv_with_norm(a, b, sizes.postnet_kernel, gain)
            for (a, b), gain in zip(pairwise(widths), gains, strict=True)
        )

    def forward(self, mel: Tensor) -> Tensor:
        x = mel
        for layer in self.convolutions[:-1]:
            x = F.dropout(torch.tanh(layer(x)), 0.5, self.training)
        return F.dropout(self.convolutions[-1](x), 0.5, self.training)


class Tacotron2(nn.Module):
    def __init__(
        self,
        sizes: Sizes | None = None,
        *,
        hidden_dropout: float = 0.1,
        batch_norm_init: str = "ones",
        mask_padding: bool = False,
        guided_attention: float = 0.0,
        mel_bias_init: float = 0.0,
        plain: bool = False,
    ) -> None:
        """`plain` trains frame by frame, as published, by torch's operators and autograd; otherwise the loops of the
        decoder have hand-written gradients."""
        super().__init__()
        self.mask_padding = mask_padding
        self.guided_attention = guided_attention
        self.sizes = sizes = sizes or Sizes()
        self.embedding = nn.Embedding(sizes.symbols, sizes.encoder)
        bound = math.sqrt(3) * math.sqrt(2 / (sizes.symbols + sizes.encoder))
        nn.init.uniform_(self.embedding.weight, -bound, bound)
        self.encoder = TextEncoder(sizes)
        self.decoder = Decoder(sizes, hidden_dropout, plain)
        self.postnet = Postnet(sizes)
        if mel_bias_init:
            nn.init.constant_(self.decoder.linear_projection.linear_layer.bias, mel_bias_init)
        if batch_norm_init == "uniform":
            for module in self.modules():
                if isinstance(module, nn.BatchNorm1d):
                    nn.init.uniform_(module.weight)

    def forward(
        self,
        text: Tensor,
        lengths: Sequence[int],
        mels: Tensor,
        *,
        frames: Tensor | None = None,
        kept: Sequence[Tensor] | None = None,
    ) -> Outputs:
        """Teacher forcing on `mels` (frames, clips, bands): each frame is predicted from the true one before it.

        `lengths` are the symbols of each text, on the host; `frames` the length of each clip, for a network that masks
        padding; `kept` the prenet's dropout masks, random if None.
        """
        memory = self.read(text, lengths)
        before = torch.cat((torch.zeros_like(mels[:1]), mels[:-1])).to(memory.dtype)
        mel, gate, alignment = self.decoder(memory, padding_mask(text, lengths), self.decoder.prenet(before, kept))
        mel = mel.permute(1, 2, 0).contiguous()
        refined = mel + self.postnet(mel)
        wide = widen(mel.dtype)
        outputs = Outputs(mel.to(wide), refined.to(wide), gate.t().to(wide), alignment.transpose(0, 1))
        if frames is None:
            return outputs
        if self.guided_attention and self.training:
            symbols = torch.as_tensor(lengths, device=text.device)
            outputs = outputs._replace(strayed=self.guided_attention * off_diagonal(outputs.alignment, frames, symbols))
        return mask_outputs(outputs, frames) if self.mask_padding else outputs

    @property
    def blocks(self) -> list[nn.Module]:
        """Modules to compile separately: the pointwise work between the loops' matmuls."""
        return self.decoder.pointwise.parts()

    def read(self, text: Tensor, lengths: Sequence[int]) -> Tensor:
        """Encoder outputs (clips, symbols, width)."""
        return self.encoder(self.embedding(text).transpose(1, 2), lengths)  # type: ignore[no-any-return]

    @torch.no_grad()
    def speak(
        self,
        text: Tensor,
        lengths: Sequence[int],
        *,
        gate_threshold: float = 0.5,
        most_frames: int = 1000,
        generator: torch.Generator | None = None,
    ) -> SpokenMel:
        """Generates mel frames for each text, until its stop token or the limit.

        The prenet's dropout stays on, from `generator` (on the host) if given.
        """
        decoder, bands = self.decoder, self.sizes.bands
        memory = self.read(text, lengths)
        keys, padding, state = decoder.keys(memory), padding_mask(text, lengths), decoder.start(memory)
        clips = len(lengths)
        frame = memory.new_zeros(clips, bands)
        frames = torch.full((clips,), most_frames, device=text.device)
        open_ = torch.ones(clips, dtype=torch.bool, device=text.device)
        mels, looks = [], []
        for number in range(1, most_frames + 1):
            kept = None if generator is None else self._random_masks(clips, generator, memory)
            frame, gate, state = decoder.step(decoder.prenet(frame, kept), state, memory, keys, padding)
            mels.append(frame)
            looks.append(state.history[:, 0])
            ends = open_ & (torch.sigmoid(gate.float()) > gate_threshold)
            frames = torch.where(ends, number, frames)
            open_ = open_ & ~ends
            if not open_.any():
                break
        mel = torch.stack(mels, 2)
        mel = mel + self.postnet(mel)
        finished = [not still for still in open_.tolist()]
        return SpokenMel(mel.float(), [min(n, len(mels)) for n in frames.tolist()], torch.stack(looks, 1), finished)

    def _random_masks(self, clips: int, generator: torch.Generator, like: Tensor) -> list[Tensor]:
        prenet = self.decoder.prenet
        shape = (clips, self.sizes.prenet)
        return [(torch.rand(shape, generator=generator) >= prenet.dropout).to(like) for _ in prenet.layers]


def padding_mask(text: Tensor, lengths: Sequence[int]) -> Tensor:
    """True beyond a text's end: (clips, symbols)."""
    ends = torch.as_tensor(lengths, device=text.device)
    return torch.arange(text.shape[1], device=text.device)[None] >= ends[:, None]


def mask_outputs(outputs: Outputs, frames: Tensor) -> Outputs:
    """Replaces outputs beyond a clip's end by silence and a certain stop token."""
    beyond = torch.arange(outputs.gate.shape[1], device=frames.device)[None] >= frames[:, None]
    return outputs._replace(
        mel=outputs.mel.masked_fill(beyond[:, None], 0),
        refined=outputs.refined.masked_fill(beyond[:, None], 0),
        gate=outputs.gate.masked_fill(beyond, 1000),
    )
