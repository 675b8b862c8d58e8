"""The door: finds the command, runs it, and turns whatever goes wrong into one sentence and an exit code."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn, Protocol, cast

from trainmark import __version__
from trainmark.cli.terminal import say, standard_streams
from trainmark.launch.signals import Terminated, raising_on_sigterm
from trainmark.platforms import device_errors
from trainmark.spec import escape
from trainmark.spec.errors import NO_PROCESSES, NotReadyError, TrainmarkError, UsageError, lacks_processes, nearest
from trainmark.spec.language import LANGUAGES, by_locale, speaking

COMMANDS = {
    "run": "run",
    "plan": "plan",
    "list": "list_",
    "runs": "runs",
    "show": "show",
    "rm": "rm",
    "gc": "gc",
    "report": "report",
    "watch": "watch",
    "audit": "audit",
    "compare": "compare",
    "reproduce": "reproduce",
    "verify": "verify",
    "explain": "explain",
    "data": "data",
    "sample": "sample",
    "scaling": "scaling",
    "forecast": "forecast",
    "fleet": "fleet",
    "published": "published",
    "import": "import_",
    "package": "package",
    "site": "site",
    "doctor": "doctor",
    "platform": "platform",
    "launch": "launch",
    "completion": "completion",
}
"""By their words, with the modules they live in; a command imports only its own, so that it answers at once."""

DESCRIPTION = "How fast, how accurate, how hungry and how steady this machine trains real models."
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

exit codes: 0 valid result, 1 our bug, 2 bad word, 3 machine not ready, 4 workload failed, 5 result not valid,
6 regression, 7 inconclusive, 124 hang, 130 and 143 interrupted. Documentation: docs/ in the source tree."""


class Parser(argparse.ArgumentParser):
    """argparse, with the nearest known word in its complaints."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.set_defaults(parser=self)  # of several, one below the other, the last that was chosen

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try '{self.prog} --help')")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
            # a slip in `run` is as near to `rm`, which is not to be proposed
            meant = [word for word in action.choices if word != "rm"]
            raise UsageError(f"{what} {value!r} is not known; {nearest(str(value), meant)}")

    def parse_words(self, words: Sequence[str]) -> argparse.Namespace:
        """Like parse_args, with the nearest option in the complaint about an unknown one."""
        found, rest = self.parse_known_args(words)
        if rest:
            options = [*found.parser.options(), *self.options()]
            see = f"see '{found.parser.prog} --help'"
            close = nearest(rest[0], options, otherwise=see) if rest[0].startswith("-") else see
            raise UsageError(f"argument {rest[0]!r} is not known; {close}")
        return found

    def options(self) -> list[str]:
        """What may be said here, as its usage line tells it."""
        return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", self.format_usage())


class Command(Protocol):
    """What a command's module holds."""

    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def command(name: str) -> Command:
    return cast(Command, importlib.import_module(f"trainmark.cli.{COMMANDS[name]}"))


def parser(words: Sequence[str] = ()) -> Parser:
    """For all commands, or for the one that is meant by the first word."""
    formatter = argparse.RawDescriptionHelpFormatter
    top = Parser(
        prog="trainmark", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=formatter, allow_abbrev=False
    )
    top.add_argument("--version", action="version", version=f"trainmark {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error, not only its sentence")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=False)
    for name in [words[0]] if words and words[0] in COMMANDS else COMMANDS:
        module = command(name)
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=formatter,
            allow_abbrev=False,
        )
        module.add_arguments(sub)
        if "--lang" not in sub.options():
            sub.add_argument("--lang", choices=LANGUAGES, metavar="L", help="en or zh (default: by the locale)")
    return top


def leave_plugins_out(words: Sequence[str]) -> None:
    """A CPU needs no plugin: one that fails when torch loads it must not keep a run on the CPU from starting."""
    asked = [after for word, after in pairwise(words) if word == "--platform"]
    asked += [word.partition("=")[2] for word in words if word.startswith("--platform=")]
    if (asked or [os.environ.get("TRAINMARK_PLATFORM", "")])[-1] == "cpu":
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")


def main(argv: Sequence[str] | None = None) -> int:
    asked, words = language_first(sys.argv[1:] if argv is None else argv)
    with standard_streams() as output, raising_on_sigterm(), speaking(asked or by_locale()):
        code = _answer([word for word in words if word != "--debug"], debug="--debug" in words)
        if output.problem:
            say(f"trainmark: the output could not be written: {output.problem}")
            code = code or (0 if output.result_is_kept else NotReadyError.exit_code)
    return code


def language_first(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """What --lang says, and the words with it behind the command's, where it is understood however deep it stood."""
    asked, others, rest = None, [], iter(words)
    for word in rest:
        if word == "--lang" or word.startswith("--lang="):
            asked = word.partition("=")[2] if "=" in word else next(rest, None)
        else:
            others.append(word)
    if asked is None or not others:
        return None, list(words)
    return (asked if asked in LANGUAGES else None), [others[0], "--lang", asked, *others[1:]]


def _answer(words: Sequence[str], *, debug: bool) -> int:
    """Runs the command that is meant, and gives its exit code."""
    try:
        leave_plugins_out(words)
        top = parser(words)
        args = top.parse_words(words)
        if args.command is None:
            top.print_help()
            return 2
        try:
            os.getcwd()  # noqa: PTH109 - torch ends the process where there is none
        except OSError as error:
            raise NotReadyError("the working folder is not there any more; go to one that is") from error
        code = command(args.command).run(args)
        sys.stdout.flush()
        return code
    except TrainmarkError as error:
        if debug:
            traceback.print_exc()
        say("\n".join(map(escape.terminal, f"trainmark: {error}".split("\n"))))
        return error.exit_code
    except BrokenPipeError:
        return 0  # whoever read our output has gone; what was to be kept is on disk by now
    except Terminated:
        say("trainmark: ended by SIGTERM")
        return 143
    except KeyboardInterrupt:
        say("trainmark: interrupted")
        return 130
    except SystemExit as error:  # of argparse, after it printed its help
        sys.stdout.flush()
        return error.code if isinstance(error.code, int) else 0
    except Exception as error:
        said = NO_PROCESSES if lacks_processes(error) else device_errors.broken_plugin(error)
        if said:
            if debug:
                traceback.print_exc()
            say(f"trainmark: {escape.terminal(said)}")
            return NotReadyError.exit_code
        if getattr(error, "errno", None) == errno.ENAMETOOLONG:  # a word meant as a path, wherever it is used
            name = escape.terminal(str(getattr(error, "filename", "")))
            say(f"trainmark: {name[:60]}... is too long for the name of a file")
            return UsageError.exit_code
        traceback.print_exc()
        say(f"trainmark: this is a bug of ours: {type(error).__name__}: {error}")
        return 1
