"""`trainmark export`: writes the weights of a run as files that other packages load."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainmark.cli.terminal import mark_result_saved, print_status, show
from trainmark.record import escape
from trainmark.record.store import Store, default_folder

NAME = "export"
GROUP = "Keep"
HELP = "Write weights for safetensors, torchvision or transformers."
EXAMPLES = """\
  trainmark export last                                  model.safetensors, config.json and a model card
  trainmark export last-resnet50 --to torchvision        a state_dict for torchvision.models.resnet50
  trainmark export last-llama8b --to hf --out my-llama   a folder for AutoModelForCausalLM.from_pretrained

The card (README.md) tells what was trained on what, how well, and the doubts of its run."""
FORMS = ("safetensors", "torchvision", "hf", "peft")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's id or a part of it, 'last', 'last-WORKLOAD', a run's folder, or weights")
    add("--to", default="safetensors", choices=FORMS, help="the package that will load it (default: safetensors)")
    add("--out", type=Path, metavar="DIR", help="a new folder (default: named by the run, here)")
    add("--store", type=Path, metavar="DIR", help="where runs are kept (default: $TRAINMARK_STORE)")
    add("--trust", action="store_true", help="run the workload's file that the plan of the run names")


def run(args: argparse.Namespace) -> int:
    from trainmark.features.export.write import export_network  # which imports torch
    from trainmark.features.sample.network import find_network

    store = Store(args.store.expanduser() if args.store else default_folder())
    source = find_network(args.run, store, trust=args.trust)
    out = args.out or Path(escape.file_name(f"{source.run_id or source.path.stem}-{args.to}"))
    exported = export_network(source, args.to, out.expanduser())
    mark_result_saved()
    for path in exported.files:
        show(str(path))
    for doubt in exported.doubts:
        print_status(f"{doubt.code}: {doubt.text}")
    return 0
