"""Llama 3.1 8B on C4, trained to a log perplexity of 3.3: MLPerf's llama31_8b."""

from __future__ import annotations

from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import LanguageModel

WORKLOAD = LanguageModel("llama8b", DecoderRecipe)
