"""A GPT of 124 M parameters on FineWeb, trained to a validation loss of 3.28, as in modded-nanogpt."""

from __future__ import annotations

from collections.abc import Mapping

from trainmark.record.recipe import Recipe
from trainmark.workloads import read_facts, read_recipes
from trainmark.workloads.decoder.model import DecoderRecipe
from trainmark.workloads.decoder.workload import LanguageModel

FACTS = read_facts("gpt124m")

RECIPES, LARGER = read_recipes("gpt124m", DecoderRecipe)


class Gpt124m(LanguageModel):
    facts = FACTS
    recipes: Mapping[str, Recipe] = RECIPES
    on_accelerators: Mapping[str, Mapping[str, int | float]] = LARGER


WORKLOAD = Gpt124m()
