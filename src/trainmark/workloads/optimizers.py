"""How a recipe wants its optimizer to walk the parameters."""

from __future__ import annotations

from typing import Any

from trainmark.spec.recipe import Recipe


def walk(recipe: Recipe) -> dict[str, Any]:
    """The optimizer's arguments for the way the recipe wants the parameters walked."""
    return {"fused": recipe.optimizer_kind == "fused", "foreach": recipe.optimizer_kind == "foreach"}
