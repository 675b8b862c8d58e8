"""Loads the network of a run on the CPU and writes weights, configuration and model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainmark import __version__
from trainmark.features.sample.network import Origin, load_trained
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.atomic_files import atomic_folder
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.escape import markdown_cell as _escape
from trainmark.record.format import number
from trainmark.record.recipe import to_values
from trainmark.record.record import Doubt, Record
from trainmark.workloads.sampling import Trained

LOADING = {
    "safetensors": """from safetensors.torch import load_file
weights = load_file("model.safetensors")""",
    "torchvision": """import json, torch, torchvision
config = json.load(open("config.json"))
model = getattr(torchvision.models, config["builder"])(**config["arguments"])
model.load_state_dict(torch.load("model.pth", weights_only=True))""",
    "hf": """from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(".")""",
}
LIBRARIES = {"hf": "transformers", "torchvision": "torchvision", "safetensors": "safetensors"}


def write_card(trained: Trained, record: Record | None, form: str) -> str:
    """Markdown with the metadata that model hubs read."""
    name, source = _escape(trained.workload.name), trained.source
    lines = [
        "---",
        f"library_name: {LIBRARIES[form]}",
        f"tags: {json.dumps(['trainmark', trained.workload.name])}",
        "---",
        "",
        f"# {name}, trained by trainmark {__version__}",
        "",
        *_describe_run(record),
        f"- weights: sha256 `{source.sha256}`" + (f", after step {source.step}" if source.step is not None else ""),
        "",
        "## Load",
        "",
        "```python",
        LOADING[form],
        "```",
        "",
        "## Doubts",
        "",
    ]
    if record is None:
        lines.append("The record of the run is not known: neither what it was trained on nor how well.")
    elif not record.doubts:
        lines.append("None were found.")
    else:
        lines += [f"- {_escape(doubt.code)}: {_escape(doubt.text)}" for doubt in record.doubts]
    return "\n".join(lines) + "\n"


def _describe_run(record: Record | None) -> list[str]:
    if record is None:
        return []
    plan, quality = record.plan, record.quality
    kind = "synthetic data made by trainmark" if plan.data.synthetic else "real data"
    value = "not evaluated" if quality.value is None else f"{number(quality.value, 4)} {quality.unit}".strip()
    facts = {
        "run": record.run_id,
        "recipe": f"{plan.recipe_name}, {plan.topology}, {plan.precision}, platform {plan.platform_word}",
        "data": f"{plan.data.name}, {kind}",
        "trained": f"{record.timeline.steps} steps; {record.ended}",
        quality.name: f"{value} (target {number(quality.goal, 4)})",
        "fingerprint of the plan": plan.fingerprint,
    }
    return [f"- {_escape(name)}: {_escape(text)}" for name, text in facts.items()]


SAFETENSORS, STATE_DICT = "model.safetensors", "model.pth"


class Exported(NamedTuple):
    files: tuple[Path, ...]
    doubts: tuple[Doubt, ...]
    """Of the run."""


def export_network(source: Origin, form: str, out: Path) -> Exported:
    """Writes a new folder, whole or not at all."""
    if out.exists():
        raise UsageError(f"{out} exists and is not overwritten; choose another folder with --out")
    trained = load_trained(source, Platform(files.load("cpu")).open(0))
    own = {"trainmark": __version__, "workload": trained.workload.name, "recipe": to_values(trained.recipe)}
    config = own if form == "safetensors" else _foreign_config(trained.workload, trained.recipe, form)
    weights = distinct_weights(trained.model)
    record = source.record
    try:
        with atomic_folder(out) as folder:
            if form == "torchvision":
                torch.save(weights, folder / STATE_DICT)
            else:
                save_file(weights, folder / SAFETENSORS, metadata={"format": "pt"})
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            card = write_card(trained, record, form)
            (folder / "README.md").write_text(card, encoding="utf-8")
    except OSError as error:
        raise NotReadyError(f"{out} could not be written: {error.strerror or error}") from error
    return Exported(tuple(sorted(out.iterdir())), tuple(record.doubts) if record else ())


def distinct_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the network once: of tied weights the first name."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.numel() and tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        found[name] = tensor.contiguous()
    return found


def _foreign_config(workload: Any, recipe: Any, form: str) -> Mapping[str, object]:
    """What another package builds the same network from."""
    offered = getattr(workload, "exports", {})
    if form not in offered:
        known = ", ".join(("safetensors", *offered))
        why = "trains no adapters" if form == "peft" else f"has no network of {form}'s"
        raise UsageError(f"--to {form}: {workload.name} {why}; it can be exported to {known}")
    config: Mapping[str, object] = offered[form](recipe)
    return config
