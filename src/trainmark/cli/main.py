"""Entry point: finds the command, runs it, and turns every error into one sentence and an exit code."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, cast

from trainmark import __version__, features
from trainmark.cli.terminal import print_status, standard_streams
from trainmark.launch.signals import Terminated, raise_on_sigterm
from trainmark.platforms import device_errors
from trainmark.record import escape
from trainmark.record.errors import (
    NO_PROCESSES,
    NotReadyError,
    TrainmarkError,
    UsageError,
    WorkloadError,
    is_process_limit,
    nearest,
)
from trainmark.record.language import LANGUAGES, locale_language, use_language

GROUPS = {
    "Measure": ("run", "list", "plan", "watch"),
    "Read": ("show", "runs", "report", "explain"),
    "Judge": ("compare",),
    "Cluster": ("doctor", "fleet"),
    "Publish": ("published",),
    "Keep": ("data",),
}
"""Groups of commands in the order of the help, each with those that it lists first."""
MEANT = {
    **dict.fromkeys(("--batch-size", "--batch", "--bs", "--batch-per-device"), "--set batch_per_device=N"),
    **dict.fromkeys(("--lr", "--learning-rate"), "--set learning_rate=X"),
    **dict.fromkeys(("--compile", "--compiled", "--torch-compile"), "--set compiled=yes"),
    **dict.fromkeys(("--amp", "--bf16", "--fp16", "--fp32", "--tf32", "--dtype"), "--precision amp-bf16"),
    **dict.fromkeys(("--gpus", "--gpu", "--devices", "--num-gpus", "--nproc-per-node", "--ngpus"), "--topology 1xN"),
    **dict.fromkeys(("--nodes", "--nnodes"), "--topology NODESxDEVICES"),
    **dict.fromkeys(("--device", "--backend"), "--platform NAME"),
    **dict.fromkeys(("--workers", "--num-workers"), "--set input_workers=N"),
    **dict.fromkeys(("--model", "--workload"), "the workload without an option: trainmark run NAME"),
    **dict.fromkeys(("--max-steps", "--iterations", "--iters"), "--steps N"),
    **dict.fromkeys(("--time", "--timeout", "--duration"), "--budget 5m"),
    **dict.fromkeys(("--pretrained", "--weights", "--checkpoint"), "--init-from FILE"),
    **dict.fromkeys(("--output", "--out-dir"), "--store DIR"),
}
"""What to write for options of other programs."""
_HEAD = re.compile(r'^NAME = "(\S+)"\nGROUP = "(\w+)"\nHELP = "(.*)"$', re.MULTILINE)

DESCRIPTION = "How fast, how accurately, at what power and how steadily this machine trains real models."
EXAMPLES = """\
examples:
  trainmark run                            what this machine reaches, in three minutes
  trainmark run resnet50 --recipe smoke    a small network trained to > 90 %
  trainmark show                           the newest result
  trainmark compare A B                    is B faster than A, and how surely
  trainmark audit published:vit            what cannot be right in published rows
  trainmark explain p_core                 what a number means

'trainmark COMMAND --help' has the options of a command. Exit codes: 0 valid result, 1 internal error, 2 invalid
argument, 3 machine not ready, 4 workload failed, 5 result not valid, 6 regression, 7 inconclusive, 124 hang,
130 and 143 interrupted."""


class Parser(argparse.ArgumentParser):
    """argparse, with the nearest known word in its errors."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.set_defaults(parser=self)  # of nested parsers, the innermost

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try '{self.prog} --help')")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
            # never suggest `rm` for a typo of `run`
            meant = [word for word in action.choices if word != "rm"]
            raise UsageError(f"{what} {value!r} is not known; {nearest(str(value), meant)}")

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Like parse_args, with the nearest option in the error about an unknown one."""
        found, rest = self.parse_known_args(words)
        if rest:
            options = [*found.parser.options(), *self.options()]
            see = f"see '{found.parser.prog} --help'"
            close = nearest(rest[0], options, otherwise=see) if rest[0].startswith("-") else see
            if "--set" in options and (meant := MEANT.get(rest[0].partition("=")[0])):
                close = f"write {meant}"
            raise UsageError(f"argument {rest[0]!r} is not known; {close}")
        return found

    def options(self) -> list[str]:
        """The options in the usage line."""
        return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", self.format_usage())


class Command(Protocol):
    """What a command's module holds."""

    NAME: str
    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class CommandSource(NamedTuple):
    group: str
    help: str
    module: str


@cache
def list_commands() -> dict[str, CommandSource]:
    """Commands by name, read from their source: a command is imported only when it is run."""
    package = Path(__file__).parent.parent
    found: dict[str, CommandSource] = {}
    for path in (*sorted(package.glob("cli/*.py")), *sorted(package.glob("features/*/*command.py"))):
        module = ".".join(("trainmark", *path.relative_to(package).with_suffix("").parts))
        for name, group, text in _HEAD.findall(path.read_text(encoding="utf-8")):
            found[name] = CommandSource(group=group, help=text, module=module)

    def place(name: str) -> tuple[int, int, str]:
        group = found[name].group
        first = GROUPS[group]
        return [*GROUPS].index(group), first.index(name) if name in first else len(first), name

    return {name: found[name] for name in sorted(found, key=place)}


def describe_commands() -> str:
    """Every command with its help, by group."""
    lines = []
    for group in GROUPS:
        lines += ["", f"{group}:"]
        for name, source in list_commands().items():
            if source.group == group:
                lines.append(f"  {name:<11} {source.help}")
    return "\n".join(lines)


def load_command(name: str) -> Command | None:
    """The command of that name, ours or an installed package's."""
    if name in list_commands():
        return cast(Command, importlib.import_module(list_commands()[name].module))
    for package in features.outside_packages():
        try:
            offered = cast(Command, importlib.import_module(f"{package}.command"))
        except Exception as error:
            raise NotReadyError(f"feature {package} cannot be loaded: {error}") from error
        if name == offered.NAME:
            return offered
    return None


def build_parser(words: Sequence[str] = (), *, complete: bool = False) -> Parser:
    """With the options of the command named by the first word, or with those of all where `complete`."""
    top = Parser(
        prog="trainmark",
        usage="trainmark [-h] [--version] [--debug] COMMAND ...",
        description=f"{DESCRIPTION}\n{describe_commands()}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"trainmark {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error, not only its sentence")
    subparsers = top.add_subparsers(
        prog="trainmark",
        dest="command",
        metavar="COMMAND",
        help=None if complete else argparse.SUPPRESS,  # the description has them
        required=False,
    )
    meant = load_command(words[0]) if words and not words[0].startswith("-") else None
    for name in list_commands():
        if complete:
            _add_command(subparsers, load_command(name))
        elif meant is None:
            subparsers.add_parser(name)
    _add_command(subparsers, meant)
    return top


def _add_command(subparsers: argparse._SubParsersAction[Parser], found: Command | None) -> None:
    if found is None:
        return
    sub = subparsers.add_parser(
        found.NAME,
        help=found.HELP,
        description=found.HELP,
        epilog=f"examples:\n{found.EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    sub.set_defaults(execute=found.run)
    found.add_arguments(sub)
    if "--lang" not in sub.options():
        sub.add_argument("--lang", choices=LANGUAGES, metavar="L", help="en or zh (default: by the locale)")


def disable_plugins(words: Sequence[str]) -> None:
    """A CPU run needs no device plugin: a broken one must not stop it."""
    asked = [after for word, after in pairwise(words) if word == "--platform"]
    asked += [word.partition("=")[2] for word in words if word.startswith("--platform=")]
    if (asked or [os.environ.get("TRAINMARK_PLATFORM", "")])[-1] == "cpu":
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def main(argv: Sequence[str] | None = None) -> int:
    asked, words = extract_language(sys.argv[1:] if argv is None else argv)
    with standard_streams() as output, raise_on_sigterm(), use_language(asked or locale_language()):
        code = _execute([word for word in words if word != "--debug"], debug="--debug" in words)
        if output.problem:
            print_status(f"trainmark: the output could not be written: {output.problem}")
            code = code or (0 if output.result_is_kept else NotReadyError.exit_code)
    return code


def extract_language(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of --lang, and the arguments with it moved right behind the command."""
    asked, others, rest = None, [], iter(words)
    for word in rest:
        if word == "--lang" or word.startswith("--lang="):
            asked = word.partition("=")[2] if "=" in word else next(rest, None)
        else:
            others.append(word)
    if asked is None or not others:
        return None, list(words)
    return (asked if asked in LANGUAGES else None), [others[0], "--lang", asked, *others[1:]]


def _execute(words: Sequence[str], *, debug: bool) -> int:
    """Runs the command; returns its exit code."""
    try:
        disable_plugins(words)
        top = build_parser(words)
        args = top.parse_words(words)
        args.debug = debug
        if args.command is None:
            top.print_help()
            return 2
        try:
            os.getcwd()  # noqa: PTH109 - torch ends the process where there is none
        except OSError as error:
            raise NotReadyError("the current directory no longer exists; cd elsewhere") from error
        code = int(args.execute(args))
        sys.stdout.flush()
        return code
    except TrainmarkError as error:
        if debug:
            traceback.print_exc()
        print_status(f"trainmark: {error}")
        return error.exit_code
    except BrokenPipeError:
        return 0  # the reader of our output is gone; the results are on disk
    except Terminated:
        print_status("trainmark: ended by SIGTERM")
        return 143
    except KeyboardInterrupt:
        print_status("trainmark: interrupted")
        return 130
    except SystemExit as error:  # raised by argparse after printing help
        sys.stdout.flush()
        return error.code if isinstance(error.code, int) else 0
    except Exception as error:
        sentence = NO_PROCESSES if is_process_limit(error) else device_errors.describe_broken_plugin(error)
        if sentence:
            if debug:
                traceback.print_exc()
            print_status(f"trainmark: {escape.terminal(sentence)}")
            return NotReadyError.exit_code
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:  # an argument meant as a path
            name = escape.terminal(str(getattr(error, "filename", "")))
            print_status(f"trainmark: {name[:60]}... is too long for the name of a file")
            return UsageError.exit_code
        from trainmark.workloads import outside  # late: most commands need no workload

        if own := outside.describe_error(error):
            if debug:
                traceback.print_exc()
            print_status(f"trainmark: {escape.terminal(own)}")
            return WorkloadError.exit_code
        traceback.print_exc()
        print_status(f"trainmark: internal error, please report: {type(error).__name__}: {error}")
        return 1
