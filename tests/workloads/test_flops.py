"""FLOPs of an item are those torch's counter finds, and those the published rows are held to."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainmark import workloads
from trainmark.workloads.tacotron2 import workload
from trainmark.workloads.tacotron2.model import Sizes, Tacotron2, padding_mask

SMALL = Sizes(encoder=8, prenet=6, attention_rnn=10, decoder_rnn=14, attention=4, postnet=12)


def count_flops(symbols: int, frames: int) -> int:
    """Of a step on one clip, frame by frame as the paper has it."""
    torch.manual_seed(0)
    model = Tacotron2(SMALL)
    text, mels = torch.ones(1, symbols, dtype=torch.long), torch.randn(frames, 1, SMALL.bands)
    with FlopCounterMode(display=False) as counter:
        memory = model.read(text, [symbols])
        keys, padding, state = model.decoder.keys(memory), padding_mask(text, [symbols]), model.decoder.start(memory)
        said = []
        for frame in model.decoder.prenet(mels):
            mel, gate, state = model.decoder.step(frame, state, memory, keys, padding)
            said.append(mel + gate)
        (model.postnet(torch.stack(said, 2)).sum() + state.history.sum()).backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("symbols", [5, 9])
def test_each_further_frame_of_tacotron2_costs_what_its_shapes_say(symbols: int) -> None:
    assert (count_flops(symbols, 8) - count_flops(symbols, 4)) / 4 == workload.flops_per_frame(SMALL, symbols)


def test_each_further_letter_costs_what_the_shapes_of_the_encoder_say() -> None:
    def letters(count: int) -> int:
        # the counter does not know oneDNN's recurrence, which takes float32, only the products it is made of
        model = Tacotron2(SMALL).double()
        with FlopCounterMode(display=False) as counter:
            model.decoder.keys(model.read(torch.ones(1, count, dtype=torch.long), [count])).sum().backward()
        return int(counter.get_total_flops())

    assert (letters(9) - letters(5)) / 4 == workload.flops_per_symbol(SMALL)


@pytest.mark.parametrize("name", workloads.names())
def test_the_reference_networks_take_the_flops_published_rows_are_held_to(name: str) -> None:
    workload = workloads.load(name)
    found = workload.flops_per_item(workload.recipes["reference"])
    assert found == pytest.approx(workload.facts.flops_per_item, rel=0.005)


def test_counting_leaves_the_random_numbers_of_training_alone() -> None:
    workload = workloads.load("vit")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    workload.flops_per_item(workload.recipes["smoke"])
    assert torch.equal(before, torch.get_rng_state())
