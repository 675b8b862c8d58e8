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

FIRST = ("run", "plan", "list", "runs", "show", "report", "compare")
"""Commands that the help lists first."""
_HEAD = re.compile(r'^NAME = "(\S+)"\nHELP = "(.*)"$', re.MULTILINE)

DESCRIPTION = "How fast, how accurately, at what power and how steadily this machine trains real models."
EXAMPLES = """\
examples:
  trainmark run                                     every workload at full size, a few minutes
  trainmark run resnet50 --recipe smoke             a small network trained to > 90 % in seconds
  trainmark run tacotron2 --recipe smoke            a small network that learns to speak, in minutes
  trainmark sample last "Hello there."              what it has learned, to be heard
  trainmark run resnet50 --recipe reference --topology 1x8 --data /data/imagenet
  trainmark show                                    the newest result; --all for everything known of it
  trainmark report last --html out.html             the same as a page to read and share
  trainmark compare A B                             is B faster than A, and how surely
  trainmark audit published:vit                     what cannot be right in published rows
  trainmark explain p_core                          what a number means

exit codes: 0 valid result, 1 internal error, 2 invalid argument, 3 machine not ready, 4 workload failed,
5 result not valid, 6 regression, 7 inconclusive, 124 hang, 130 and 143 interrupted.
Documentation: docs/ in the source tree."""


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
    help: str
    module: str


@cache
def list_commands() -> dict[str, CommandSource]:
    """Commands by name, read from their source: a command is imported only when it is run."""
    package = Path(__file__).parent.parent
    found: dict[str, CommandSource] = {}
    for path in (*sorted(package.glob("cli/*.py")), *sorted(package.glob("features/*/*command.py"))):
        module = ".".join(("trainmark", *path.relative_to(package).with_suffix("").parts))
        for name, text in _HEAD.findall(path.read_text(encoding="utf-8")):
            found[name] = CommandSource(help=text, module=module)
    first = [name for name in FIRST if name in found]
    return {name: found[name] for name in (*first, *sorted(found.keys() - {*first}))}


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
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"trainmark {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error, not only its sentence")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=False)
    meant = load_command(words[0]) if words and not words[0].startswith("-") else None
    for name, source in list_commands().items():
        if complete:
            _add_command(subparsers, load_command(name))
        elif meant is None:
            subparsers.add_parser(name, help=source.help)
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
