"""The README.md beside exported weights: what was trained, how well, and what makes it doubtful."""

from __future__ import annotations

import json

from trainmark import __version__
from trainmark.record.escape import markdown_cell as _escape
from trainmark.record.format import number
from trainmark.record.record import Record
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
