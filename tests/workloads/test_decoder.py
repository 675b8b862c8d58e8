"""The decoder: its numbers are the published ones, its arithmetic the plain one's, its data the same everywhere."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.records import make_record
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from trainmark import workloads
from trainmark.data.text import language, make
from trainmark.data.text.token_files import INDEX, read_index
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.doubts import collect_doubts
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.recipe import apply_settings
from trainmark.record.record import Quality
from trainmark.record.sample import NetworkUsed
from trainmark.workloads.decoder import workload
from trainmark.workloads.decoder.model import (
    DecoderRecipe,
    TextDecoder,
    count_parameters,
    frequencies,
    nll_sum,
    per_token,
)
from trainmark.workloads.decoder.workload import TextBatch, TextData
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.weights import check_fit, load_into
from trainmark.workloads.workload import Progress, Share

NAMES = ("gpt124m", "llama8b")
TINY = DecoderRecipe(
    batch_per_device=4,
    learning_rate=1e-2,
    weight_decay=0.1,
    steps=10,
    target=1.0,
    layers=2,
    width=24,
    heads=6,
    kv_heads=2,
    ffn=40,
    vocabulary=416,
    context=16,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text") / "set"
    make.make(root, lines=400)
    return root


def recipe_of(name: str, recipe: str = "reference") -> Any:
    return workloads.load(name).recipes[recipe]


def on_meta(recipe: DecoderRecipe) -> TextDecoder:
    with torch.device("meta"):
        return TextDecoder(recipe)


# Published numbers


def test_the_networks_have_the_published_parameters_and_flops() -> None:
    for name, parameters, flops in (
        ("gpt124m", 123_532_032, (0.8544e9, 0.7412e9, 0.7978e9)),
        ("llama8b", 8_030_261_248, (57.91e9, 48.18e9, 51.47e9)),
    ):
        recipe = recipe_of(name)
        assert sum(weight.numel() for weight in on_meta(recipe).parameters()) == parameters == count_parameters(recipe)
        assert tuple(per_token(recipe)) == pytest.approx(flops, rel=2e-4)
        facts = workloads.facts(name)
        assert facts is not None
        assert per_token(recipe).attention == pytest.approx(facts.flops_per_item, rel=2e-4)


@pytest.mark.parametrize("change", [{}, {"tied": True}, {"activation": "gelu", "kv_heads": 6}, {"norm_weights": False}])
def test_the_formula_is_what_torch_counts(change: dict[str, Any]) -> None:
    recipe = replace(TINY, **change)
    model = on_meta(recipe)
    tokens = torch.zeros(3, recipe.context, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    assert counter.get_total_flops() / tokens.numel() == per_token(recipe).attention


def test_the_parameters_have_llamas_names_and_a_public_file_fits() -> None:
    recipe = replace(recipe_of("llama8b"), layers=1)
    names = set(on_meta(recipe).state_dict())
    block = {f"self_attn.{part}_proj" for part in "qkvo"} | {f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    block |= {"input_layernorm", "post_attention_layernorm"}
    outside = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert names == outside | {f"model.layers.0.{part}.weight" for part in block}
    # SmolLM2-135M's shape, whose file names its tied weights once
    small = replace(recipe, layers=30, width=576, heads=9, kv_heads=3, ffn=1536, vocabulary=49_152, tied=True)
    model = on_meta(small)
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    given = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    check_fit(model, given, "the file")


def test_the_learning_rates_are_the_published_ones() -> None:
    def rates(name: str, planned: float, *steps: int) -> list[float]:
        workload = workloads.load(name)
        recipe = workload.recipes["reference"]
        return [workload.learning_rate(recipe, Progress(step, 0.0, planned, 1.0)) for step in steps]

    gpt = rates("gpt124m", 9536, 0, 127, 255, 5000, 7487, 8512, 9535)
    assert gpt == pytest.approx([0.0018 / 256, 0.0009, 0.0018, 0.0018, 0.0018, 0.0009, 0.0018 / 2048])
    llama = rates("llama8b", 1.2e6, 0, 127, 600_064, 1_200_000)
    assert llama == pytest.approx([8e-4 / 128, 8e-4, 0.55 * 8e-4, 8e-5], rel=1e-3)


def test_the_reference_recipes_take_the_published_batches() -> None:
    gpt, llama = recipe_of("gpt124m"), recipe_of("llama8b")
    assert (gpt.evaluate_in, llama.evaluate_in) == ("fp32", "same")
    assert gpt.batch_per_device * 8 * gpt.context == 524_288
    assert (gpt.steps * 524_288, gpt.eval_tokens, gpt.target) == (4_999_610_368, 20 * 524_288, 3.28)
    assert llama.step_batch_per_device * 8 == 32
    assert (32 * llama.warmup_steps, 32 * 384, llama.eval_tokens) == (4096, 12_288, 1024 * 8192)


@pytest.mark.parametrize("name", NAMES)
def test_smoke_aims_at_a_tenth_above_the_floor_of_the_text_it_reads(name: str, tmp_path: Path) -> None:
    """Of the usual set, whose validation lines need not all be written to know what they hold."""
    recipe = recipe_of(name, "smoke")
    lines = [language.random_line(make.SEED, 1, number) for number in range(make.LINES // make.FOR_VALIDATION)]
    floor = sum(line.nats for line in lines) / sum(len(line.tokens) for line in lines)
    assert recipe.target == pytest.approx(1.10 * floor, abs=0.005)
    assert recipe.vocabulary >= len(language.vocabulary())


# Arithmetic


def plain_nll(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy((hidden @ weight.t()).float(), targets, reduction="sum")


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_in_chunks_and_its_gradients_are_the_plain_ones(chunk: int, dtype: torch.dtype) -> None:
    lot = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=lot).to(dtype) for shape in ((11, 8), (30, 8)))
    targets = torch.randint(30, (11,), generator=lot)
    found = []
    for function in (plain_nll, lambda *given: nll_sum(*given, chunk)):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = function(*leaves, targets)
        (loss / 7).backward()
        found.append((loss.detach(), *(leaf.grad for leaf in leaves)))
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    for plain, chunked in zip(*found, strict=True):
        assert plain is not None
        assert chunked is not None
        assert chunked.dtype == plain.dtype
        torch.testing.assert_close(chunked.float(), plain.float(), rtol=tolerance, atol=tolerance)


def test_weight_decay_leaves_norms_alone() -> None:
    model = TextDecoder(TINY)
    workload = workloads.load("llama8b")
    optimizer = workload.optimizer(model.parameters(), replace(TINY, learning_rate=0.5, weight_decay=0.1))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), before[name] * (1.0 if "norm" in name else 0.95))


def test_fast_gives_the_loss_and_gradients_of_plain() -> None:
    tokens = torch.randint(TINY.vocabulary, (2, 33), generator=torch.Generator().manual_seed(1))
    found = []
    for implementation in ("fast", "plain"):
        torch.manual_seed(0)
        model = TextDecoder(replace(TINY, implementation=implementation, loss_chunk=7)).double()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        found.append({"loss": loss.detach(), **{name: weight.grad for name, weight in model.named_parameters()}})
    for name, expected in found[1].items():
        torch.testing.assert_close(found[0][name], expected, rtol=1e-5, atol=1e-5, msg=name)  # logits are in float32


def test_the_loss_under_autocast_leaves_float32_gradients() -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nll_sum(hidden, weight, torch.arange(4), 2)
    loss.backward()
    assert loss.dtype == torch.float32
    assert hidden.grad is not None
    assert weight.grad is not None
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32


def plain_decoder(model: TextDecoder, tokens: Tensor) -> Tensor:
    """The same network, written out as the papers have it, head by head."""
    recipe, state = model.recipe, model.state_dict()
    width = recipe.head_width

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + recipe.norm_eps).sqrt() * state[f"{name}.weight"]

    def turned(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        for place in range(x.shape[1]):
            for pair in range(width // 2):
                angle = place * recipe.rope_theta ** (-2 * pair / width)
                one, other = x[:, place, pair], x[:, place, pair + width // 2]
                out[:, place, pair] = one * math.cos(angle) - other * math.sin(angle)
                out[:, place, pair + width // 2] = other * math.cos(angle) + one * math.sin(angle)
        return out

    x = state["model.embed_tokens.weight"][tokens]
    for layer in range(recipe.layers):
        at = f"model.layers.{layer}"
        read = norm(x, f"{at}.input_layernorm")
        q, k, v = (read @ state[f"{at}.self_attn.{part}_proj.weight"].t() for part in "qkv")
        heads = []
        for head in range(recipe.heads):
            shared = head // (recipe.heads // recipe.kv_heads)
            mine, theirs = (slice(number * width, (number + 1) * width) for number in (head, shared))
            scores = turned(q[..., mine]) @ turned(k[..., theirs]).transpose(1, 2) / math.sqrt(width)
            unseen = torch.ones_like(scores).triu(1).bool()
            heads.append(scores.masked_fill(unseen, -math.inf).softmax(-1) @ v[..., theirs])
        x = x + torch.cat(heads, -1) @ state[f"{at}.self_attn.o_proj.weight"].t()
        read = norm(x, f"{at}.post_attention_layernorm")
        gate, up = (read @ state[f"{at}.mlp.{part}_proj.weight"].t() for part in ("gate", "up"))
        x = x + (F.silu(gate) * up) @ state[f"{at}.mlp.down_proj.weight"].t()
    return norm(x, "model.norm") @ state["lm_head.weight"].t()


def test_the_network_is_the_one_the_papers_write_out() -> None:
    torch.manual_seed(0)
    model = TextDecoder(replace(TINY, init_std=0.2))
    tokens = torch.randint(400, (2, 9))
    torch.testing.assert_close(model(tokens), plain_decoder(model, tokens), rtol=1e-4, atol=1e-4)


def test_llama_3_1_slows_only_positions_that_turn_slowly() -> None:
    plain = frequencies(replace(TINY, width=768, rope_theta=500_000.0))
    scaled = frequencies(replace(TINY, width=768, rope_theta=500_000.0, rope_scaling="llama3.1"))
    often = 8192 * plain / (2 * math.pi)
    assert torch.equal(scaled[often > 4], plain[often > 4])
    torch.testing.assert_close(scaled[often < 1], plain[often < 1] / 8)
    between = (often > 1) & (often < 4)
    assert between.any()
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 8).all()


@pytest.mark.parametrize("again", ["selective", "full"])
def test_computing_again_changes_no_gradient(again: str) -> None:
    tokens = torch.randint(400, (2, 17), generator=torch.Generator().manual_seed(0))
    gradients = []
    for recompute in ("none", again):
        torch.manual_seed(0)
        model = TextDecoder(replace(TINY, recompute=recompute))
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for plain, repeated in zip(*gradients, strict=True):
        assert plain is not None
        torch.testing.assert_close(repeated, plain)


def test_a_tied_network_begins_as_its_head_and_weights_of_a_file_are_taken() -> None:
    torch.manual_seed(0)
    model, other = TextDecoder(replace(TINY, tied=True)), TextDecoder(replace(TINY, tied=True))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    load_into(other, {name: weight.bfloat16() for name, weight in model.state_dict().items()}, "the file")
    torch.testing.assert_close(other.lm_head.weight, model.lm_head.weight, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["width=100", "heads=3"], "cannot be shared by heads=3"),
        (["width=12", "heads=4", "kv_heads=4"], "odd width 3"),
        (["heads=4", "kv_heads=3"], "cannot share kv_heads=3"),
        (["tensor_parallel=4"], "kv_heads=2 cannot be shared by tensor_parallel=4 devices"),
        (["tensor_parallel=2", "ffn=33"], "ffn=33 cannot be shared by tensor_parallel=2 devices"),
    ],
)
def test_shapes_that_no_network_has_are_refused(settings: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        workloads.load("gpt124m").build(apply_settings(TINY, settings))


# Data


def data(folder: Path, world: int, rank: int, **change: Any) -> TextData:
    recipe = replace(TINY, batch_per_device=8 // world, data_order="shuffled", **change)
    return TextData(recipe, folder, Share(rank=rank, world=world, local_ranks=world))


def global_batches(folder: Path, world: int, epoch: int, first: int, count: int) -> list[Tensor]:
    sources = [data(folder, world, rank).train(epoch, first) for rank in range(world)]
    found = [torch.cat([next(source).tokens for source in sources]) for _ in range(count)]
    for source in sources:
        source.close()  # type: ignore[attr-defined]
    return found


def test_a_step_holds_the_same_windows_at_every_world_size_and_after_a_resume(text: Path) -> None:
    one = global_batches(text, 1, 1, 0, 4)
    for world in (2, 4):
        assert all(torch.equal(a, b) for a, b in zip(one, global_batches(text, world, 1, 0, 4), strict=True))
    assert torch.equal(global_batches(text, 2, 1, 3, 1)[0], one[3])
    groups = [
        TextData(replace(TINY, batch_per_device=2, data_order="shuffled"), text, share)
        for share in (Share(rank=rank, world=4, local_ranks=4, tensor=2) for rank in range(4))
    ]
    read = [next(source.train(1, 0)) for source in groups]
    assert torch.equal(read[0].tokens, read[1].tokens)  # which compute together
    assert torch.equal(torch.cat([read[0].tokens, read[2].tokens]), one[0])
    workload = workloads.load("gpt124m")
    assert sum(workload.items(batch) for batch in read) == one[0][:, 1:].numel()
    judged = [sum(batch.count for batch in source.evaluation()) for source in groups]
    assert judged[1] == judged[3] == 0
    assert sum(judged) == sum(batch.count for batch in data(text, 1, 0).evaluation())
    assert not torch.equal(global_batches(text, 1, 0, 0, 1)[0], one[0])


def test_evaluation_reads_each_window_once_over_all_ranks_and_as_many_as_asked_for(text: Path) -> None:
    whole = read_index(text).splits["val"].tokens
    for asked, wanted in ((0, (whole - 1) // 16), (100, 6)):
        counts = [
            sum(batch.count for batch in data(text, 2, rank, eval_tokens=asked).evaluation()) for rank in range(2)
        ]
        assert sum(counts) == wanted
        assert abs(counts[0] - counts[1]) <= 1


def test_too_large_a_token_and_too_little_text_are_refused(text: Path) -> None:
    workload = workloads.load("gpt124m")
    with pytest.raises(NotReadyError, match="set vocabulary="):
        workload.check_data(replace(TINY, vocabulary=100), text, 1)
    with pytest.raises(NotReadyError, match="one step takes 4000"):
        workload.check_data(replace(TINY, batch_per_device=1000), text, 4)


def test_scores_become_loss_ratio_and_bits_a_byte() -> None:
    workload = workloads.load("gpt124m")
    batch = TextBatch(
        tokens=torch.zeros(2, 5, dtype=torch.long), floor=1.5, bytes_per_token=4.0, count=2, global_count=2
    )
    model = torch.nn.Module()
    model.forward = lambda tokens, targets: torch.tensor(24.0)  # type: ignore[method-assign, misc]
    sums = {name: float(value) for name, value in workload.score(model, batch).items()}
    found = workload.quality(sums)
    assert found["val_loss"] == 3.0
    assert found["times_floor"] == 2.0
    assert found["bits_per_byte"] == pytest.approx(3 / math.log(2) / 4)
    assert workload.quality({**sums, "floor": 0.0, "bytes": 0.0}) == {"val_loss": 3.0}


def test_a_loss_below_the_floor_is_a_doubt() -> None:
    def found(value: float) -> set[str]:
        quality = Quality(name="val_loss", unit="-", goal=1.0, better="lower", value=value)
        record = replace(make_record(), data_facts={"loss_floor": 1.5}, quality=quality)
        return {doubt.code for doubt in collect_doubts(record, reference_global_batch=1)}

    assert "below-floor" in found(1.46)
    assert "below-floor" not in found(1.48)
    times_floor = next(quality for quality in workloads.qualities() if quality.name == "times_floor")
    assert times_floor.least == 0.98


def test_continuations_are_text_and_the_same_for_the_same_seed(text: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TextDecoder(TINY)
    said = workload.continue_tokens(model, [3, 4, 5], 20, seed=1, known=300)
    assert said[:3] == [3, 4, 5]
    assert len(said) == 23
    assert max(said) < 300
    assert workload.continue_tokens(model, [3, 4, 5], 20, seed=1, known=300) == said
    greedy = workload.continue_tokens(model, [3], 2, seed=1, known=300, temperature=0)
    assert greedy == workload.continue_tokens(model, [3], 2, seed=9, known=300, temperature=0)
    trained = Trained(
        workload=workloads.load("gpt124m"),
        model=model.eval(),
        recipe=TINY,
        device=Platform(files.load("cpu")).open(0),
        source=NetworkUsed(workload="gpt124m", file="", sha256=""),
    )
    shown = workload.sample(trained, SampleRequest(data=text))
    lines = shown.facts["continuations"]
    assert len(lines) == 3
    assert all(" |" in line for line in lines)
    asked = SampleRequest(data=text, given="Ada sang", options=("continuations=2", "tokens=5", "temperature=0"))
    assert workload.sample(trained, asked).facts["continuations"][0].startswith("Ada sang |")
    with pytest.raises(UsageError, match="an empty text"):
        workload.sample(trained, SampleRequest(data=text, given=" "))
    (tmp_path / INDEX).write_bytes((text / INDEX).read_bytes())
    with pytest.raises(NotReadyError, match="holds tokens alone"):
        workload.sample(trained, SampleRequest(data=tmp_path))
