"""A GPT of 124 M parameters on FineWeb, trained to a validation loss of 3.28, as in modded-nanogpt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainmark.record.recipe import Recipe
from trainmark.workloads import read_reference
from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import LanguageModel

FACTS, PUBLISHED = read_reference("gpt124m")

REFERENCE = DecoderRecipe(
    **PUBLISHED.recipe,
    steps=9536,
    layers=12,
    width=768,
    heads=12,
    kv_heads=12,
    ffn=3072,
    activation="gelu",
    vocabulary=50257,
    context=1024,
    tied=True,
    rope_theta=10_000.0,
    norm_eps=1e-6,
    norm_weights=False,
    scale_attention=True,
    init="torch",
    schedule="trapezoid",
    warmup_steps=256,
    cooldown_steps=2048,
    adam_eps=1e-8,
    eval_batch_per_device=64,
    eval_tokens=10_485_760,
    evaluate_every="128 steps",
    checkpoint_every="1000 steps",
    memory_format="contiguous",
    leave_sample=True,
)
FILL = REFERENCE
QUICK = replace(
    REFERENCE,
    batch_per_device=1,
    eval_batch_per_device=1,
    eval_tokens=8192,
    evaluate_every="end",
    checkpoint_every="never",
    leave_sample=False,
)
SMOKE = replace(
    REFERENCE,
    batch_per_device=16,
    learning_rate=6e-3,
    steps=320,
    target=1.576,
    layers=3,
    width=96,
    heads=4,
    kv_heads=4,
    ffn=384,
    vocabulary=416,
    context=64,
    schedule="cosine",
    warmup_steps=20,
    last_rate=0.0,
    clip_gradient_norm=1.0,
    data_order="shuffled",
    eval_batch_per_device=64,
    eval_tokens=0,
    evaluate_every="40 steps",
    evaluate_first=True,
    checkpoint_every="end",
)


class Gpt124m(LanguageModel):
    facts = FACTS
    recipes: Mapping[str, Recipe] = {"reference": REFERENCE, "fill": FILL, "quick": QUICK, "smoke": SMOKE}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {
        "quick": {"batch_per_device": 16, "eval_batch_per_device": 16, "evaluate_after_limit": True}
    }


WORKLOAD = Gpt124m()
