"""A GPT of 124 M parameters on FineWeb, trained to a validation loss of 3.28, as in modded-nanogpt."""

from __future__ import annotations

from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import LanguageModel

WORKLOAD = LanguageModel("gpt124m", DecoderRecipe)
