"""`trainmark completion`: prints a shell completion script, made by shtab from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from trainmark.cli.main import build_parser
from trainmark.record.store import LAST, Store, default_folder

SHELLS = ("bash", "zsh", "fish")
RUNS = "runs"
NEWEST = 50
"""How many runs are offered."""
NAME = "completion"
GROUP = "Keep"
HELP = "Print a script that completes words in bash, zsh or fish."
EXAMPLES = """\
  trainmark completion bash > ~/.local/share/bash-completion/completions/trainmark
  trainmark completion zsh > ~/.zfunc/_trainmark      with fpath+=~/.zfunc before compinit in ~/.zshrc
  trainmark completion fish > ~/.config/fish/completions/trainmark.fish"""
FILES = ("FILE", "FILE.md", "LOG", "PATH", "INPUT")
FOLDERS = ("DIR", "FOLDER")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = f"one of {', '.join(SHELLS)}; or {RUNS}, for what these scripts offer as a run"
    parser.add_argument("shell", choices=(*SHELLS, RUNS), metavar="SHELL", help=words)


def run(args: argparse.Namespace) -> int:
    if args.shell == RUNS:
        print("\n".join(_list_runs()))
        return 0
    top = build_parser(complete=True)
    _mark_arguments(top)
    print(shtab.complete(top, args.shell))
    return 0


def _list_runs() -> Iterator[str]:
    """`last`, then the newest runs by short name and by id."""
    contents = Store(default_folder()).contents(limit=NEWEST)
    yield LAST
    yield from (contents.names[row.run_id] for row in contents.rows)
    yield from (row.run_id for row in contents.rows)


def _mark_arguments(parser: argparse.ArgumentParser) -> None:
    """Marks for shtab what each argument takes, by its name or its metavar."""
    known = _known_values()
    for action in parser._actions:
        parts = action.metavar.split("|") if isinstance(action.metavar, str) else []
        marks = {"RUN": shtab.cmd(f"trainmark completion {RUNS}")}
        marks |= dict.fromkeys(FILES, shtab.FILE) | dict.fromkeys(FOLDERS, shtab.DIRECTORY)
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _mark_arguments(sub)
        elif action.choices is None and action.dest in known and action.nargs != 0:
            action.choices = known[action.dest]
        elif found := [marks[part] for part in parts if part in marks]:
            action.complete = found[0]  # type: ignore[attr-defined]


def _known_values() -> dict[str, tuple[str, ...]]:
    """Values by argument name; imported here, for a shell asks for runs at every Tab."""
    from trainmark import workloads
    from trainmark.platforms import files
    from trainmark.record.metrics import METRICS
    from trainmark.record.precision import PRECISIONS
    from trainmark.view.glossary import list_meanings

    recipes = dict.fromkeys(recipe for facts in workloads.all_facts() for recipe in facts.recipes)
    return {
        "workload": workloads.names(),
        "workloads": workloads.names(),
        "recipe": tuple(recipes),
        "platform": tuple(files.names()),
        "precision": tuple(PRECISIONS),
        "metric": tuple(METRICS),
        "word": tuple(entry.name for entry in list_meanings("en")),
    }
