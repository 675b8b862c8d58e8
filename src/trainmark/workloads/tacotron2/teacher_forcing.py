"""The decoder's two LSTMs under teacher forcing, with hand-written gradients.

Work without feedback leaves the loops: the prenet and its share of the attention LSTM's input are one GEMM before them;
the second LSTM does not feed the first, so it runs after it with its input as one GEMM; the projections follow at the
end. Factors of a step's gradient that do not depend on later steps are computed for many steps at once, and each
weight's gradient is one GEMM over all steps. Dropout is applied to the hidden states inside the recurrences, exactly as
when decoding step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.workloads.tacotron2.matmuls import Matmul, Pointwise, is_on_cpu, widen


def chunk_elements(like: Tensor) -> int:
    """Chunk size of the backward pass: large enough to amortise calls, and on a CPU small enough for its cache.
    Elsewhere launches cost more than 200 MB of memory."""
    return 1 << 20 if is_on_cpu(like) else 1 << 24


class LSTMWeights(NamedTuple):
    """Parameters of one LSTM cell; gates in the order input, forget, cell, output."""

    input: Tensor
    hidden: Tensor
    bias: Tensor

    @classmethod
    def of(cls, cell: nn.LSTMCell) -> LSTMWeights:
        return cls(cell.weight_ih, cell.weight_hh, cell.bias_ih + cell.bias_hh)


def run_teacher_forced(
    frames: Tensor,
    memory: Tensor,
    keys: Tensor,
    padding: Tensor,
    *,
    attention_rnn: LSTMWeights,
    decoder_rnn: LSTMWeights,
    query: Tensor,
    location: Tensor,
    energy: Tensor,
    drop: float,
    pointwise: Pointwise,
) -> tuple[Tensor, Tensor]:
    """From prenet outputs (frames, clips, width) and the encoder's memory (clips, symbols, width) to the inputs of both
    projections, (frames, clips, hidden + width), and the attention weights, (frames, clips, symbols).
    `pointwise` is the loops' work between matmuls, compiled or not."""
    kind = frames.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else frames.dtype
    width = frames.shape[2]
    steps, clips, _ = frames.shape
    hidden = attention_rnn.hidden.shape[1]

    def random_mask(units: int) -> Tensor | None:
        """Dropout mask of the hidden states for all steps."""
        return F.dropout(torch.ones(steps, clips, units, device=frames.device), drop) if drop else None

    known = F.linear(frames, attention_rnn.input[:, :width], attention_rnn.bias)
    fed_back = torch.cat((attention_rnn.hidden, attention_rnn.input[:, width:]), 1)
    kept = random_mask(hidden)
    with torch.autocast(kind, enabled=False):
        states, alignment = AttentionLoop.apply(  # type: ignore[no-untyped-call]
            known, fed_back, query, location, energy, keys, memory, padding, kept, dtype, pointwise
        )

    known = F.linear(states, decoder_rnn.input, decoder_rnn.bias)
    kept = random_mask(decoder_rnn.hidden.shape[1])
    with torch.autocast(kind, enabled=False):
        said = LstmLoop.apply(known, decoder_rnn.hidden, kept, dtype, pointwise)  # type: ignore[no-untyped-call]
    return torch.cat((said, states[..., hidden:]), 2), alignment


def allocate_steps(steps: int, *shape: int, keep: bool, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for every step, or one reused step if no gradient needs it."""
    dtype = dtype or widen(like.dtype)
    return torch.empty(steps if keep else 1, *shape, dtype=dtype, device=like.device).expand(steps, *shape)


class LstmLoop(torch.autograd.Function):
    """An LSTM whose input GEMM is done; the recurrent state is the one after dropout."""

    @staticmethod
    def forward(
        ctx: Any, known: Tensor, weight: Tensor, kept: Tensor | None, dtype: torch.dtype, pointwise: Pointwise
    ) -> Tensor:
        steps, clips, gates = known.shape
        weight = weight.to(dtype)
        recurrent = Matmul(weight, clips)
        states = torch.empty(steps + 1, clips, gates // 4, dtype=dtype, device=known.device)
        states[0].zero_()
        cell = LSTMStep(known, kept, keep=any(ctx.needs_input_grad), pointwise=pointwise)
        before, *after = states.unbind(0)
        for step, (x, state) in enumerate(zip(known.to(dtype).unbind(0), after, strict=True)):
            cell.forward(step, x, recurrent(before), state)
            before = state
        ctx.save_for_backward(weight, states, *cell.saved)
        ctx.pointwise = pointwise
        return states[1:].to(known.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        weight, states, *saved = ctx.saved_tensors
        dtype = states.dtype
        steps, clips, hidden = gradient.shape
        recurrent = Matmul(weight.t(), clips)
        cell = CellGradient(saved, dtype, ctx.pointwise)
        arriving = gradient.to(widen(gradient.dtype)).unbind(0)
        back = torch.zeros(clips, hidden, dtype=dtype, device=gradient.device)
        for step in reversed(range(steps)):
            back = recurrent(cell.backward(step, arriving[step], back))
        gates = cell.gates.view(steps * clips, -1)
        # autograd casts each gradient to the dtype of its input
        return (
            cell.gates,
            gates.t() @ states[:-1].view(steps * clips, hidden),
            None,
            None,
            None,
        )


class LSTMStep:
    """The pointwise part of an LSTM step, in float32 at least, saving activations for its gradient."""

    def __init__(self, known: Tensor, kept: Tensor | None, *, keep: bool, pointwise: Pointwise) -> None:
        self._cell = pointwise.cell if keep else pointwise.cell.forward  # not compiled where steps share memory
        steps, clips, four = known.shape
        gates = allocate_steps(steps, clips, four, keep=keep, like=known)
        cells = allocate_steps(steps + 1, clips, four // 4, keep=keep, like=known)
        cells[0].zero_()
        self.saved = gates, cells, kept
        self._gates, self._cells = gates.unbind(0), cells.unbind(0)
        self._kept = None if kept is None else kept.unbind(0)

    def forward(self, step: int, known: Tensor, fed_back: Tensor, state: Tensor) -> None:
        """From the two summands of the gates to the hidden state, written into `state`."""
        kept = None if self._kept is None else self._kept[step]
        self._cell(known, fed_back, self._cells[step], kept, self._gates[step], self._cells[step + 1], state)


class CellGradient:
    """Backward pass of `LSTMStep`, last step first.

    With the cell's gradient c and the hidden state's h: the output gate gets h times a factor, c grows by h times a
    factor, and the other three gates get c times factors. These factors are computed for many steps at once.
    """

    def __init__(self, saved: Sequence[Tensor], dtype: torch.dtype, pointwise: Pointwise) -> None:
        self._part = pointwise.cell_gradient
        acted, cells, self._kept = saved
        self._acted, self._cells = acted, cells
        steps, clips, four = acted.shape
        self._chunk = max(1, chunk_elements(acted) // (clips * four))
        self._first = steps
        self._factors = torch.empty_like(acted[: self._chunk])
        self.gates = torch.empty(steps, clips, four, dtype=dtype, device=acted.device)
        """Gradients of the gates' sums."""
        self._carried = torch.zeros_like(cells[0])

    def backward(self, step: int, arriving: Tensor, back: Tensor, asked: Tensor | None = None) -> Tensor:
        """Gradients of the step's gates from the summands of its hidden state's gradient."""
        if step < self._first:
            self._prepare(max(0, step + 1 - self._chunk), step + 1)
        place = step - self._first
        to_cell, forget, known, gates = self._to_cell[place], self._forget[place], self._known[place], self.gates[step]
        self._part(arriving, back, asked, to_cell, forget, self._carried, known, gates)
        return gates

    def _prepare(self, first: int, end: int) -> None:
        steps, clips, hidden = end - first, *self._carried.shape
        shape = (steps, clips, 4, hidden)
        i, f, g, o = self._acted[first:end].view(shape).unbind(2)
        before, after = self._cells[first:end], self._cells[first + 1 : end + 1]
        known = self._factors[:steps].view(shape)
        to_i, to_f, to_g, to_o = known.unbind(2)
        torch.addcmul(i, torch.mul(g, i, out=to_i), g, value=-1, out=to_g)
        squashed = torch.tanh(after)
        to_cell = torch.addcmul(o, torch.mul(squashed, o, out=to_o), squashed, value=-1)
        torch.mul(before, f, out=to_f)
        for gate, to_gate in ((i, to_i), (f, to_f), (o, to_o)):
            to_gate.addcmul_(to_gate, gate, value=-1)
        if self._kept is not None:
            to_o.mul_(self._kept[first:end])
            to_cell.mul_(self._kept[first:end])
        self._first = first
        self._to_cell, self._forget, self._known = to_cell.unbind(0), f.unbind(0), known.unbind(0)


class AttentionLoop(torch.autograd.Function):
    """The attention LSTM: its state is the query, and the context is part of the next input.

    The states it returns are (hidden, context) of each step.
    """

    @staticmethod
    def forward(
        ctx: Any,
        known: Tensor,
        weight: Tensor,
        query: Tensor,
        location: Tensor,
        energy: Tensor,
        keys: Tensor,
        memory: Tensor,
        padding: Tensor,
        kept: Tensor | None,
        dtype: torch.dtype,
        pointwise: Pointwise,
    ) -> tuple[Tensor, Tensor]:
        steps, clips, gates = known.shape
        hidden, symbols, channels, device = gates // 4, memory.shape[1], keys.shape[2], known.device
        weight, query, seen = weight.to(dtype), query.to(dtype), memory.to(dtype)
        recurrent, asking = Matmul(weight, clips), Matmul(2 * query, clips)
        states = torch.empty(steps + 1, clips, weight.shape[1], dtype=dtype, device=device)
        states[0].zero_()
        keep = any(ctx.needs_input_grad)
        ctx.pointwise = pointwise
        cell = LSTMStep(known, kept, keep=keep, pointwise=pointwise)
        to_energies: Any = pointwise.energies if keep else pointwise.energies.forward
        to_weights: Any = pointwise.weights if keep else pointwise.weights.forward
        # tanh(x) is 2 sigmoid(2x) - 1, and softmax is invariant to a shift of all energies
        wide = widen(dtype)
        location, energy = location.to(wide), energy.to(wide)
        history = AttentionHistory(steps, clips, symbols, location.shape[2], keep=keep, like=known)
        to_features = (2 * location).view(channels, -1).t().contiguous()
        keys_, energy_ = (2 * keys.to(wide)).reshape(clips * symbols, channels), 2 * energy
        hiding = energy.new_zeros(clips, symbols).masked_fill_(padding, -torch.inf)
        acted = allocate_steps(steps, clips, symbols, channels, keep=keep, like=known, dtype=dtype)
        felt = energy.new_empty(clips, symbols, channels)
        alignment = energy.new_empty(steps, clips, symbols)

        asked, shown = states[1:, :, :hidden].unbind(0), states[1:, :, hidden:].unsqueeze(2).unbind(0)
        stored, weights_of = acted.unbind(0), alignment.unbind(0)
        before, *after = states.unbind(0)
        for step, (x, state) in enumerate(zip(known.to(dtype).unbind(0), after, strict=True)):
            cell.forward(step, x, recurrent(before), asked[step])
            torch.addmm(keys_, history.features(step), to_features, out=felt.view(-1, channels))
            weights = weights_of[step]
            energies = to_energies(felt, asking(asked[step]), energy_, hiding, stored[step])
            to_weights(energies, weights, *history.places(step))
            torch.bmm(weights.to(dtype).unsqueeze(1), seen, out=shown[step])
            before = state
        ctx.save_for_backward(
            weight, query, location, energy, seen, states, acted, alignment, history.padded, *cell.saved
        )
        ctx.set_materialize_grads(False)  # the published loss does not use the alignment
        return states[1:].to(known.dtype), alignment

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, to_alignment: Tensor | None) -> Any:
        weight, query, location, energy, seen, states, acted, alignment, padded, *saved = ctx.saved_tensors
        dtype = states.dtype
        steps, clips, _, channels = acted.shape
        hidden = query.shape[1]
        recurrent, asking = Matmul(weight.t(), clips), Matmul(query.t(), clips)
        cell = CellGradient(saved, dtype, ctx.pointwise)
        attention = AttentionGradient(acted, alignment, padded, location, energy, ctx.pointwise)
        to_query = torch.empty(steps, clips, channels, dtype=dtype, device=acted.device)
        to_shown = torch.empty(steps, clips, states.shape[2] - hidden, dtype=dtype, device=acted.device)
        seen_turned = seen.transpose(1, 2)
        arriving = (torch.zeros_like(states[1:]) if gradient is None else gradient).to(widen(dtype))
        arriving_hidden, arriving_shown = arriving[..., :hidden].unbind(0), arriving[..., hidden:].unbind(0)
        back = torch.zeros(clips, states.shape[2], dtype=dtype, device=acted.device)
        for step in reversed(range(steps)):
            shown = torch.add(arriving_shown[step], back[:, hidden:], out=to_shown[step])
            to_weights = torch.bmm(shown.unsqueeze(1), seen_turned).squeeze(1)
            if to_alignment is not None:
                to_weights = to_weights + to_alignment[step]
            attention.backward(step, to_weights, to_query[step])
            asked = asking(to_query[step])
            back = recurrent(cell.backward(step, arriving_hidden[step], back[:, :hidden], asked))
        to_location, to_energy, to_keys = attention.sums()
        rows = steps * clips
        gates = cell.gates.view(rows, -1)
        return (
            cell.gates,
            gates.t() @ states[:-1].view(rows, -1),
            to_query.view(rows, -1).t() @ states[1:, :, :hidden].reshape(rows, -1),
            to_location,
            to_energy,
            to_keys,
            torch.bmm(alignment.permute(1, 2, 0).to(dtype), to_shown.transpose(0, 1)),
            *(None,) * 4,
        )


class AttentionHistory:
    """The previous attention weights and their running sum, padded for the convolution."""

    def __init__(self, steps: int, clips: int, symbols: int, taps: int, *, keep: bool, like: Tensor) -> None:
        side = (taps - 1) // 2
        self.padded = allocate_steps(steps + 1, clips, 2, symbols + taps - 1, keep=keep, like=like)
        self.padded[..., :side].zero_()
        self.padded[..., side + symbols :].zero_()
        self.padded[0].zero_()
        inner = self.padded[..., side : side + symbols]
        self._last, self._sum = inner[:, :, 0].unbind(0), inner[:, :, 1].unbind(0)
        self._windows = windows(self.padded, taps).unbind(0)
        self._features = self.padded.new_empty(clips, symbols, 2, taps)

    def features(self, step: int) -> Tensor:
        """The window around each symbol: (clips x symbols, 2 x taps)."""
        return self._features.copy_(self._windows[step]).view(-1, self._features.shape[2] * self._features.shape[3])

    def places(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Views of the running sum, and of the step's weights and the sum after it."""
        return self._sum[step], self._last[step + 1], self._sum[step + 1]


def windows(padded: Tensor, taps: int) -> Tensor:
    """(steps, clips, 2, length) as the view (steps, clips, symbols, 2, taps) of all windows."""
    return padded.unfold(3, taps, 1).permute(0, 1, 3, 2, 4)


class AttentionGradient:
    """Backward pass of attention, last step first.

    With e the gradient of a step's energies, the gradients of its query and of the previous weights are matmuls of e
    with matrices that do not depend on e. These are computed for many steps at once: for each symbol the derivative of
    its energy by its features, up to a factor per channel that is applied to the sums, and its row for the padded
    previous weights, with that for their running sum beside it.
    """

    def __init__(
        self,
        acted: Tensor,
        alignment: Tensor,
        padded: Tensor,
        location: Tensor,
        energy: Tensor,
        pointwise: Pointwise,
    ) -> None:
        self._pointwise = pointwise
        steps, clips, symbols, channels = acted.shape
        self._acted, self._padded = acted, padded
        self._taps, length = location.shape[2], padded.shape[3]
        self._factor = 4 * energy
        """tanh'(x) is 4 s (1 - s), with s = sigmoid(2x)."""
        rows = location.view(channels, -1).t() * self._factor
        self._chunk = max(1, min(steps, chunk_elements(acted) // (clips * symbols * channels)))
        self._first = steps
        self._spreading = Matmul(rows, self._chunk * clips * symbols)
        self._felt = energy.new_empty(self._chunk, clips, symbols, channels)
        # always zero outside each symbol's window
        self._matrix = energy.new_zeros(self._chunk, clips, symbols, 2 * length)
        self._bands = self._matrix.as_strided(
            (self._chunk, clips, symbols, 2, self._taps),
            (clips * symbols * 2 * length, symbols * 2 * length, 2 * length + 1, length, 1),
        )
        self._felt_of, self._matrix_of = self._felt.unbind(0), self._matrix.unbind(0)
        self._energies = energy.new_empty(self._chunk, clips, symbols)
        self._alignment = alignment.unbind(0)
        self._carried = energy.new_zeros(clips, symbols)
        self._to_sum = torch.zeros_like(self._carried)
        self._to_keys = energy.new_zeros(clips, symbols, channels)
        self._to_energy = torch.zeros_like(energy)
        self._to_location = energy.new_zeros(channels, 2 * self._taps)

    def backward(self, step: int, to_weights: Tensor, to_query: Tensor) -> None:
        """Writes the gradient of the step's query, from that of its attention weights by its context."""
        if step < self._first:
            self._prepare(max(0, step + 1 - self._chunk), step + 1)
        place = step - self._first
        weights, energies = self._alignment[step], self._energies[place]
        self._pointwise.energy_gradient(self._carried, to_weights, weights, energies)
        row = energies.unsqueeze(1)
        asked = torch.bmm(row, self._felt_of[place]).squeeze(1)
        symbols, length, side = weights.shape[1], self._padded.shape[3], (self._taps - 1) // 2
        both = torch.bmm(row, self._matrix_of[place]).squeeze(1)
        before, summed = both[:, side : side + symbols], both[:, length + side : length + side + symbols]
        self._pointwise.query_gradient(asked, self._factor, before, summed, self._to_sum, self._carried, to_query)
        if place == 0:
            self._add_up()

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the filters, the energy weights and the keys."""
        to_location = (self._to_location * self._factor[:, None]).view(-1, 2, self._taps)
        return to_location, 2 * self._to_energy, self._to_keys * self._factor

    def _prepare(self, first: int, end: int) -> None:
        acted = self._acted[first:end].to(self._felt.dtype)
        felt = torch.addcmul(acted, acted, acted, value=-1, out=self._felt[: end - first])
        bands = self._bands[: end - first]
        bands.copy_(self._spreading(felt.view(-1, felt.shape[3])).view(bands.shape))
        self._first, self._end = first, end

    def _add_up(self) -> None:
        """Adds a finished chunk to the gradients of keys and weights."""
        first, end = self._first, self._end
        energies, channels = self._energies[: end - first], self._felt.shape[3]
        self._to_energy.addmv_(self._acted[first:end].to(self._felt.dtype).view(-1, channels).t(), energies.view(-1))
        felt = self._felt[: end - first].mul_(energies.unsqueeze(3))
        self._to_keys.add_(felt.sum(0))
        seen = windows(self._padded[first:end], self._taps).reshape(-1, self._to_location.shape[1])
        self._to_location.addmm_(felt.view(-1, channels).t(), seen)
