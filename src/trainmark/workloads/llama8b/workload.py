"""Llama 3.1 8B on C4, trained to a log perplexity of 3.3: MLPerf's llama31_8b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainmark.record.recipe import Recipe
from trainmark.workloads import read_reference
from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import LanguageModel

FACTS, PUBLISHED = read_reference("llama8b")

REFERENCE = DecoderRecipe(
    **PUBLISHED.recipe,
    steps=1_200_000,
    layers=32,
    width=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    activation="swiglu",
    vocabulary=128_256,
    context=8192,
    tied=False,
    rope_theta=500_000.0,
    rope_scaling="llama3.1",
    norm_eps=1e-5,
    init="normal",
    init_std=0.02,
    schedule="cosine",
    warmup_steps=128,
    decay_steps=1_200_000,
    last_rate=0.1,
    adam_eps=1e-5,
    clip_gradient_norm=1.0,
    data_order="shuffled",
    recompute="selective",
    parallel="fsdp",
    eval_batch_per_device=1,
    eval_tokens=8_388_608,
    evaluate_every="384 steps",
    checkpoint_every="1920 steps",
    memory_format="contiguous",
    leave_sample=True,
)
"""Warm-up and evaluations are counted in windows: 4096 and 12 288 are 128 and 384 steps of 32."""
FILL = REFERENCE
QUICK = replace(
    REFERENCE,
    accumulate=1,
    eval_tokens=8192,
    evaluate_every="end",
    checkpoint_every="never",
    leave_sample=False,
)
SMOKE = replace(
    REFERENCE,
    batch_per_device=16,
    accumulate=1,
    learning_rate=8e-3,
    steps=400,
    target=1.576,
    layers=3,
    width=96,
    heads=4,
    kv_heads=2,
    ffn=256,
    vocabulary=416,
    context=64,
    warmup_steps=20,
    decay_steps=0,
    last_rate=0.0,
    adam_eps=1e-8,
    recompute="none",
    eval_batch_per_device=64,
    eval_tokens=0,
    evaluate_every="40 steps",
    evaluate_first=True,
    checkpoint_every="end",
)


class Llama8b(LanguageModel):
    facts = FACTS
    recipes: Mapping[str, Recipe] = {"reference": REFERENCE, "fill": FILL, "quick": QUICK, "smoke": SMOKE}


WORKLOAD = Llama8b()
