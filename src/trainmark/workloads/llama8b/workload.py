"""Llama 3.1 8B on C4, trained to a log perplexity of 3.3: MLPerf's llama31_8b."""

from __future__ import annotations

from collections.abc import Mapping

from trainmark.record.recipe import Recipe
from trainmark.workloads import read_facts, read_recipes
from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import LanguageModel

FACTS = read_facts("llama8b")

RECIPES, LARGER = read_recipes("llama8b", DecoderRecipe)


class Llama8b(LanguageModel):
    facts = FACTS
    recipes: Mapping[str, Recipe] = RECIPES


WORKLOAD = Llama8b()
