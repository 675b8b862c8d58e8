"""The workload interface of all language models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from trainmark.record.errors import UsageError
from trainmark.record.numbers import Target
from trainmark.record.recipe import Limits, Recipe
from trainmark.record.sample import Sample
from trainmark.record.workload_facts import WorkloadFacts
from trainmark.workloads.decoder import batches, continuation, recipes
from trainmark.workloads.decoder.batches import TextBatch, TextData
from trainmark.workloads.decoder.model import LLAMA_3_1, TextDecoder
from trainmark.workloads.decoder.recipes import DecoderRecipe, check_shape
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.workload import Progress, Share, optimizer_kwargs


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


class LanguageModel:
    """A subclass adds facts and recipes."""

    exports: Mapping[str, Callable[[DecoderRecipe], dict[str, object]]] = {"hf": transformers_config}
    facts: WorkloadFacts
    recipes: Mapping[str, Recipe]
    limits: Mapping[str, Limits] = {"quick": Limits(half_width=0.02, seconds=60)}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {}
    sums: tuple[str, ...] = ("nll", "tokens", "floor", "bytes")

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def item(self) -> str:
        return self.facts.item

    @property
    def data_set(self) -> str:
        return self.facts.data_set

    @property
    def target(self) -> Target:
        return self.facts.quality.target

    @property
    def reference_global_batch(self) -> int:
        return self.facts.reference.global_batch if self.facts.reference else 1

    def check_data(self, recipe: DecoderRecipe, folder: Path, world: int) -> None:
        check_shape(recipe)
        batches.check(recipe, folder, world)

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
        return torch.optim.AdamW(
            parameters,
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
        return recipes.per_token(recipe).attention

    def flops_otherwise(self, recipe: DecoderRecipe) -> dict[str, float]:
        """FLOPs by other conventions, for comparison with other tables."""
        counted = recipes.per_token(recipe)
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
        return continuation.sample(trained, request)
