"""The workload interface of all language models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainmark.data import distributed_sampler
from trainmark.data.prefetch import prefetch
from trainmark.data.text import token_files
from trainmark.data.text.token_files import Index, TokenStream, Vocabulary, Windows, describe, read_index
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.recipe import knob
from trainmark.record.sample import Sample, SampleSettings, TextPart
from trainmark.workloads.decoder.model import LLAMA_3_1, DecoderRecipe, TextDecoder, check_shape, per_token
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.workload import KnownWorkload, PlainBatch, Progress, Share, optimizer_kwargs

GIVEN = 8
"""Length of a prompt from the validation text, where no text is given."""


@dataclass(frozen=True, kw_only=True)
class ContinuationSettings(SampleSettings):
    continuations: int = knob(3, least=1, most=100)
    tokens: int = knob(40, least=1, most=10_000)
    """Tokens to generate."""
    temperature: float = knob(1.0, least=0, most=10)
    """Softmax temperature; 0 is greedy."""


def sample(trained: Trained, request: SampleRequest) -> Sample:
    """Continuations of the given text, or of prompts from the validation text."""
    settings = request.settings(ContinuationSettings)
    words = token_files.open_vocabulary(request.data_folder)
    if words is None:
        raise NotReadyError(
            f"{request.data_folder} holds tokens alone and no tokenizer.json, so that no text can be written; prepare "
            "the set with --tokenizer"
        )
    beginnings = _read_prompts(request, words, trained.model.recipe.context, settings.continuations)
    lines = []
    for number, given in enumerate(beginnings):
        whole = continue_tokens(
            trained.model,
            given,
            settings.tokens,
            seed=settings.seed + number,
            known=min(words.size, trained.recipe.vocabulary),
            temperature=settings.temperature,
        )
        lines.append(_format_line(words, given, whole))
    what = "a text" if request.given else "the validation text"
    return Sample(
        parts=(TextPart(text="\n".join(lines), caption=f"how the network goes on with {what}, after |"),),
        shown=request.given if request.given else f"{GIVEN} tokens of the validation text each",
        generator=f"temperature {settings.temperature:g}",
        facts={"continuations": lines, "tokens": settings.tokens},
    )


@torch.no_grad()
def continue_tokens(
    model: TextDecoder, tokens: Sequence[int], added: int, *, seed: int, known: int, temperature: float = 1.0
) -> list[int]:
    """The tokens and `added` more; only the first `known` of the vocabulary are sampled."""
    device = next(model.parameters()).device
    lot = torch.Generator().manual_seed(seed)
    found = list(tokens)
    for _ in range(added):
        window = torch.tensor([found[-model.recipe.context :]], device=device)
        scores: Tensor = model(window, last=True)[0, -1, :known].float().cpu()
        if temperature == 0:
            found.append(int(scores.argmax()))
        else:
            chances = torch.softmax(scores / temperature, dim=-1)
            found.append(int(torch.multinomial(chances, 1, generator=lot)))
    return found


def _read_prompts(request: SampleRequest, words: Vocabulary, context: int, count: int) -> list[list[int]]:
    if request.given is not None:
        tokens = words.encode(request.given)
        if not tokens:
            raise UsageError("an empty text has nothing to go on with; give a word or more")
        return [tokens] * count
    stream = TokenStream(request.data_folder, read_index(request.data_folder).splits["val"])
    places = [number * context for number in range(count) if number * context + GIVEN <= len(stream)]
    return [stream.read(place, GIVEN).tolist() for place in places]


def _format_line(words: Vocabulary, given: Sequence[int], whole: Sequence[int]) -> str:
    begun, text = words.decode(given), words.decode(whole)
    rest = text[len(begun) :] if text.startswith(begun) else words.decode(whole[len(given) :])
    return f"{begun} |{rest}".replace("\n", " / ")


@dataclass(frozen=True, kw_only=True, eq=False)
class TextBatch(PlainBatch):
    tokens: Tensor
    """(windows, context + 1): inputs are all but the last token, targets all but the first."""
    floor: float = 0.0
    """The entropy of the text in nats per token; 0 if unknown."""
    bytes_per_token: float = 0.0
    """Bytes of text per token; 0 if unknown."""
    shared_by: int = 1
    """Ranks that share these windows."""


def check(recipe: DecoderRecipe, folder: Path, world: int) -> Index:
    """NotReadyError if this many ranks cannot train on the folder."""
    index = read_index(folder)
    largest = max(split.largest for split in index.splits.values())
    if largest >= recipe.vocabulary:
        raise NotReadyError(
            f"{folder} holds token {largest}, and the network's vocabulary is {recipe.vocabulary}; set "
            f"vocabulary={largest + 1} or more, or give text of this vocabulary"
        )
    for name in ("train", "val"):
        windows = Windows(TokenStream(folder, index.splits[name]), recipe.context)
        wanted = recipe.step_batch_per_device * world if name == "train" else 1
        if windows.count < wanted:
            raise NotReadyError(
                f"{folder} holds {windows.count} windows of {recipe.context} tokens in its split {name}, and one step "
                f"takes {wanted}; give more text, or set a smaller batch_per_device or context"
            )
    return index


class TextData:
    """Windows of a set of text; a batch depends on seed, step and world size alone."""

    skipped: Sequence[tuple[str, str]] = ()

    def __init__(self, recipe: DecoderRecipe, folder: Path, share: Share) -> None:
        index = check(recipe, folder, share.world)
        self._recipe, self._share, self._index = recipe, share, index
        self._train = Windows(TokenStream(folder, index.splits["train"]), recipe.context)
        self._val = Windows(TokenStream(folder, index.splits["val"]), recipe.context)
        self._floor = index.splits["val"].loss_floor or 0.0
        self._bytes = index.splits["val"].bytes_per_token or 0.0
        # the last, shorter batch is dropped: a step has a fixed number of tokens
        self._batch = recipe.step_batch_per_device * share.world
        self._groups, self._group, self._place = share.world // share.tensor, *divmod(share.rank, share.tensor)
        self._used = self._train.count // self._batch * self._batch

    @property
    def steps_per_epoch(self) -> int:
        return self._used // self._batch

    @property
    def items_per_step(self) -> float:
        return float(self._batch * self._recipe.context)

    @property
    def facts(self) -> Mapping[str, float]:
        return {**describe(self._index), "train_samples": float(self._train.count)}

    def train(self, epoch: int, start_step: int) -> Iterator[TextBatch]:
        shares = distributed_sampler.rank_batches(
            self._used,
            batch_per_device=self._recipe.step_batch_per_device * self._share.tensor,
            world=self._groups,
            rank=self._group,
            seed=self._recipe.seed,
            epoch=epoch,
            shuffle=self._recipe.data_order == "shuffled",
            start_step=start_step,
        )
        return prefetch(replace(self._read(self._train, share), shared_by=self._share.tensor) for share in shares)

    def evaluation(self) -> Iterator[TextBatch]:
        wanted = self._recipe.eval_tokens // self._recipe.context or self._val.count
        return prefetch(self._to_score(min(self._val.count, wanted)))

    def close(self) -> None:
        pass

    def _to_score(self, count: int) -> Iterator[TextBatch]:
        """This rank's windows. Ranks that share a network compute together, so each makes as many batches as the one
        with the most: extra ones have no weight, and of ranks that compute the same only the first counts."""
        batch = self._recipe.eval_batch_per_device * self._share.tensor
        left = math.ceil(math.ceil(count / self._groups) / batch)
        for share in distributed_sampler.rank_share(
            count, batch_per_device=batch, world=self._groups, rank=self._group
        ):
            left -= 1
            found = self._read(self._val, share)
            yield replace(found, count=0) if self._place else found
        for _ in range(left):
            empty = distributed_sampler.BatchShare(indices=np.zeros(1, np.int64), global_count=0)
            yield replace(self._read(self._val, empty), count=0)

    def _read(self, windows: Windows, share: distributed_sampler.BatchShare) -> TextBatch:
        tokens = np.stack([windows.read(int(number)) for number in share.indices])
        return TextBatch(
            tokens=torch.from_numpy(tokens),
            floor=self._floor,
            bytes_per_token=self._bytes,
            count=len(tokens),
            global_count=share.global_count,
        )


def transformers_config(recipe: DecoderRecipe) -> dict[str, object]:
    """config.json of LlamaForCausalLM, whose parameter names our decoder has."""
    wanted = {"activation": "swiglu", "norm_weights": True, "scale_attention": False}
    for name, value in wanted.items():
        if (own := getattr(recipe, name)) != value:
            raise UsageError(f"--to hf: a network of {name}={own} has no class in transformers; export to safetensors")
    scaling = {
        "rope_type": "llama3",
        "factor": LLAMA_3_1["factor"],
        "low_freq_factor": LLAMA_3_1["low"],
        "high_freq_factor": LLAMA_3_1["high"],
        "original_max_position_embeddings": int(LLAMA_3_1["trained"]),
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": recipe.vocabulary,
        "hidden_size": recipe.width,
        "intermediate_size": recipe.ffn,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": recipe.context,
        "rms_norm_eps": recipe.norm_eps,
        "rope_theta": recipe.rope_theta,
        "rope_scaling": scaling if recipe.rope_scaling == "llama3.1" else None,
        "tie_word_embeddings": recipe.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }


class LanguageModel(KnownWorkload):
    exports: Mapping[str, Callable[[DecoderRecipe], dict[str, object]]] = {"hf": transformers_config}
    sums: tuple[str, ...] = ("nll", "tokens", "floor", "bytes")

    def check_data(self, recipe: DecoderRecipe, folder: Path, world: int) -> None:
        check_shape(recipe)
        check(recipe, folder, world)

    def open_data(self, recipe: DecoderRecipe, folder: Path, share: Share, skip_bad: int) -> TextData:
        return TextData(recipe, folder, share)

    def blank_batch(self, recipe: DecoderRecipe) -> TextBatch:
        count = recipe.step_batch_per_device
        tokens = torch.empty(count, recipe.context + 1, dtype=torch.long)
        return TextBatch(tokens=tokens, count=count, global_count=count)

    def build(self, recipe: DecoderRecipe) -> TextDecoder:
        check_shape(recipe)
        return TextDecoder(recipe)

    def optimizer(self, parameters: Iterable[Tensor], recipe: DecoderRecipe) -> torch.optim.Optimizer:
        """AdamW, which decays no norm: by the rule of both references, nothing of one dimension."""
        weights = list(parameters)
        norms = [weight for weight in weights if weight.dim() < 2]
        groups: list[dict[str, Any]] = [{"params": [weight for weight in weights if weight.dim() > 1]}]
        return torch.optim.AdamW(
            groups + ([{"params": norms, "weight_decay": 0.0}] if norms else []),
            lr=recipe.learning_rate,
            betas=(recipe.adam_beta1, recipe.adam_beta2),
            eps=recipe.adam_eps,
            weight_decay=recipe.weight_decay,
            **optimizer_kwargs(recipe),
        )

    def learning_rate(self, recipe: DecoderRecipe, progress: Progress) -> float:
        rate, step = recipe.learning_rate, progress.step + 1
        if step <= recipe.warmup_steps:
            return rate * step / recipe.warmup_steps
        end = recipe.decay_steps or progress.planned_steps
        if recipe.schedule == "trapezoid":
            return rate * min(1.0, max(0.0, end - progress.step) / max(1, recipe.cooldown_steps))
        share = min(1.0, (progress.step - recipe.warmup_steps) / max(1.0, end - recipe.warmup_steps))
        least = recipe.last_rate
        return rate * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * share)))

    def scaled_learning_rate(self, recipe: DecoderRecipe, batch_per_device: int) -> float:
        """Square-root scaling, as is usual with Adam."""
        return recipe.learning_rate * math.sqrt(batch_per_device / recipe.batch_per_device)

    def items(self, batch: TextBatch) -> int:
        return batch.count * (batch.tokens.shape[1] - 1) // batch.shared_by

    def flops_per_item(self, recipe: DecoderRecipe) -> float:
        return per_token(recipe).attention

    def flops_otherwise(self, recipe: DecoderRecipe) -> dict[str, float]:
        """FLOPs by other conventions, for comparison with other tables."""
        counted = per_token(recipe)
        return {"6 x parameters": counted.parameters, "causal attention": counted.causal}

    def loss(self, model: nn.Module, batch: TextBatch) -> Tensor:
        found: Tensor = model(batch.tokens[:, :-1], batch.tokens[:, 1:])
        return found / (batch.count * (batch.tokens.shape[1] - 1))

    def score(self, model: nn.Module, batch: TextBatch) -> dict[str, Tensor]:
        nll: Tensor = model(batch.tokens[:, :-1], batch.tokens[:, 1:])
        tokens = torch.tensor(float(self.items(batch)), dtype=torch.float64)
        return {
            "nll": nll.double().cpu() * bool(batch.count),
            "tokens": tokens,
            "floor": tokens * batch.floor,
            "bytes": tokens * batch.bytes_per_token,
        }

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        found = {"val_loss": sums["nll"] / sums["tokens"]}
        if sums["floor"]:
            found["times_floor"] = sums["nll"] / sums["floor"]
        if sums["bytes"]:
            found["bits_per_byte"] = sums["nll"] / math.log(2) / sums["bytes"]
        return found

    def sample(self, trained: Trained, request: SampleRequest) -> Sample:
        return sample(trained, request)
