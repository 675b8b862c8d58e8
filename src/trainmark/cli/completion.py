"""`trainmark completion`: what a shell needs to complete our words, as a script made from the parser itself."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SHELLS = ("bash", "zsh", "fish")
HELP = "Print a script that completes commands, options, their values and run ids in bash, zsh or fish."
EXAMPLES = """\
  trainmark completion bash > ~/.local/share/bash-completion/completions/trainmark
  trainmark completion zsh > ~/.zfunc/_trainmark      with fpath+=~/.zfunc before compinit in ~/.zshrc
  trainmark completion fish > ~/.config/fish/completions/trainmark.fish"""

RUNS, FILES, FOLDERS = "@runs", "@files", "@folders"
"""What the script looks for when a word is completed; every other word stands in it."""
SOUGHT = {
    "RUN": RUNS, "FILE": FILES, "FILE.md": FILES, "LOG": FILES, "PATH": FILES, "INPUT": FILES, "DIR": FOLDERS,
    "FOLDER": FOLDERS,
}  # fmt: skip
"""By what the help calls a value."""

RUN_IDS = """
        $3 ~ /[[]$/ { sub(/[.]json$/, "", $2); ids[$2] }
        END {
            for (id in ids) { end = id; sub(/.*-/, "", end); of[end] = id; runs[end]++ }
            for (end in of) if (runs[end] == 1 && index(end, begun) == 1) print end
            if (begun != "") for (id in ids) if (index(id, begun) == 1) print id
        }
    """
"""What awk reads from a store's index: the ends of run ids, by which lists call them, and whole ids that are begun."""


class CompletedWord(NamedTuple):
    text: str
    help: str = ""


class CommandWords(NamedTuple):
    """A command, or a command of a command: what may be typed behind it."""

    command: str
    words: tuple[CompletedWord, ...]
    """Commands below it, and values of its arguments."""
    options: tuple[OptionWords, ...]


class OptionWords(NamedTuple):
    names: tuple[str, ...]
    help: str
    values: tuple[str, ...] | None
    """None of one that takes no value; empty where nothing is known of what it takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")


def run(args: argparse.Namespace) -> int:
    from trainmark.cli.main import parser

    template = Path(__file__).with_suffix(f".{args.shell}").read_text(encoding="utf-8")
    found = list(places(parser()))
    lines = _fish_lines(found) if args.shell == "fish" else _cases(found, described=args.shell == "zsh")
    commands = " ".join(_fish(place.command) for place in found)
    template = template.replace("@RUN_IDS@", RUN_IDS).replace("@COMMANDS@", commands)
    print(template.replace("@KNOWN@", "\n".join(lines)), end="")
    return 0


def places(parser: argparse.ArgumentParser) -> Iterator[CommandWords]:
    """A parser's own place, then those of the commands below it."""
    words: list[CompletedWord] = []
    options: list[OptionWords] = []
    below: list[argparse.ArgumentParser] = []
    known = _known_values()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            words += (CompletedWord(name, helps.get(name, "")) for name in action.choices)
            below += action.choices.values()
        elif action.option_strings:
            values = None if action.nargs == 0 else tuple(_values(action, known))
            options.append(OptionWords(tuple(action.option_strings), (action.help or "") % vars(action), values))
        else:
            words += map(CompletedWord, _values(action, known))
    yield CommandWords(parser.prog, tuple(dict.fromkeys(words)), tuple(options))
    for sub in below:
        yield from places(sub)


def _known_values() -> dict[str, tuple[str, ...]]:
    """By the name of the argument that takes them."""
    from trainmark import workloads
    from trainmark.platforms import files
    from trainmark.spec.glossary import meanings
    from trainmark.spec.metrics import METRICS
    from trainmark.spec.precision import PRECISIONS

    recipes = dict.fromkeys(recipe for facts in workloads.all_facts() for recipe in facts.recipes)
    return {
        "workload": workloads.names(),
        "workloads": (*workloads.names(), FILES),
        "recipe": tuple(recipes),
        "platform": (*files.names(), FILES),
        "precision": tuple(PRECISIONS),
        "metric": tuple(METRICS),
        "word": tuple(entry.name for entry in meanings("en")),
    }


def _values(action: argparse.Action, known: dict[str, tuple[str, ...]]) -> Sequence[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.dest in known:
        return known[action.dest]
    parts = action.metavar.split("|") if isinstance(action.metavar, str) else []
    found = dict.fromkeys(SOUGHT[part] for part in parts if part in SOUGHT)
    named = known["workload"] if "WORKLOAD" in parts else ()
    return [*named, *(["last"] if RUNS in found else []), *found]


def _cases(found: Sequence[CommandWords], *, described: bool) -> Iterator[str]:
    """The branches by which bash and zsh look a place up; zsh shows what a word means, too."""

    def branch(place: str, words: Sequence[CompletedWord]) -> str:
        if described:
            texts = " ".join(shlex.quote(_described(word)) for word in words)
            return f"        {shlex.quote(place)}) known=({texts}) ;;"
        return f"        {shlex.quote(place)}) known={shlex.quote(' '.join(word.text for word in words))} ;;"

    for command, words, options in found:
        yield branch(command, words)
        yield branch(f"{command} -", [CompletedWord(name, option.help) for option in options for name in option.names])
        for option in options:
            if option.values is not None:
                for name in option.names:
                    yield branch(f"{command} {name}", [CompletedWord(value) for value in option.values])


def _described(word: CompletedWord) -> str:
    text = word.text.replace(":", r"\:")
    return f"{text}:{word.help}" if word.help else text


def _fish_lines(found: Sequence[CommandWords]) -> Iterator[str]:
    for command, words, options in found:
        here = f"complete -c trainmark -n {_fish(f'__trainmark_at {_fish(command)}')}"
        for word in words:
            yield f"{here} {_fish_values((word.text,))}" + (f" -d {_fish(word.help)}" if word.help else "")
        for option in options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            takes = "" if option.values is None else f" -r {_fish_values(option.values)}"
            yield f"{here} {names}{takes} -d {_fish(option.help)}"


def _fish_values(values: Sequence[str]) -> str:
    sought = {RUNS: "(__trainmark_runs)", FOLDERS: "(__fish_complete_directories)"}
    texts = " ".join(sought.get(value, value) for value in values if value != FILES)
    return ("-F" if FILES in values else "-f") + (f" -a {_fish(texts)}" if texts else "")


def _fish(text: str) -> str:
    """In fish's quotes, which know two escapes."""
    return "'" + text.replace("\\", r"\\").replace("'", r"\'") + "'"
