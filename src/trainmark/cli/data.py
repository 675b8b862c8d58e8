"""`trainmark data`: makes, prepares and verifies data sets."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import data as datasets
from trainmark.cli.terminal import mark_result_saved, print_status, show
from trainmark.record.errors import UsageError

if TYPE_CHECKING:
    from trainmark.data import DataSet, Option
    from trainmark.data.verification import Report

NAME = "data"
GROUP = "Keep"
HELP = "Make, prepare or verify a data set."
EXAMPLES = """\
  trainmark data make imagenet --out /tmp/shapes --classes 20 --train-per-class 200
  trainmark data make ljspeech --out /tmp/speech --clips 1000
  trainmark data prepare imagenet --train-tar ILSVRC2012_img_train.tar --val-tar ILSVRC2012_img_val.tar \\
      --devkit ILSVRC2012_devkit_t12.tar.gz --out /data/imagenet
  trainmark data prepare ljspeech --tar LJSpeech-1.1.tar.bz2 --out /data/ljspeech
  trainmark data prepare text --train fineweb10B/train --val fineweb10B/val --out /data/fineweb
  trainmark data verify imagenet /data/imagenet --decode full
  trainmark data verify ljspeech /data/ljspeech --decode full"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="make|prepare|verify", required=True)
    for name, text, add_set in (
        ("make", "write a set of synthetic data", _add_make),
        ("prepare", "unpack the published archives, safely and resumably", _add_prepare),
        ("verify", "count what a set holds, and name what is unreadable", _add_verify),
    ):
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        # without a metavar, an error about an unknown set calls it "set"
        sets = action.add_subparsers(dest="set", required=True)
        for known in datasets.all_sets():
            add_set(sets, known)


def run(args: argparse.Namespace) -> int:
    code: int = args.do(args)
    return code


# Arguments


def _add_make(sets: Any, known: DataSet) -> None:
    parser = _add_set(sets, known.name, _make, known.makes)
    parser.add_argument("--out", required=True, metavar="DIR", help="a folder that does not exist yet")
    parser.add_argument("--seed", type=int, metavar="N", help="another seed, other data (default: 0)")
    _add_options(parser, known.make_options)


def _add_prepare(sets: Any, known: DataSet) -> None:
    parser = _add_set(sets, known.name, _prepare, known.prepares)
    _add_options(parser, known.prepare_options)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--no-md5", action="store_true", help="accept archives other than the published ones")


def _add_verify(sets: Any, known: DataSet) -> None:
    parser = _add_set(sets, known.name, _verify, known.verifies)
    parser.add_argument("folder", metavar="DIR")
    decode = ("none", "header", "full")
    parser.add_argument("--decode", default="header", choices=decode, help="how much of each file to decode")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    for option in options:
        parser.add_argument(
            option.word,
            type=option.kind,
            default=option.default,
            required=option.required,
            metavar=option.metavar,
            help=option.help,
        )


def _add_set(sets: Any, name: str, do: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sets.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    parser.set_defaults(do=do)
    return parser


# Actions


def _make(args: argparse.Namespace) -> int:
    known = datasets.find(args.set)
    out = Path(args.out).expanduser()
    if out.exists():
        raise UsageError(f"{out} exists already; give --out a folder that does not")
    # the maker has defaults for the rest
    words = {name: getattr(args, name) for name in ("seed", *(option.name for option in known.make_options))}
    given = {name: value for name, value in words.items() if value is not None}
    known.make(out, progress=_progress_counter(known.things), **given)
    mark_result_saved()
    show(str(out))
    return 0


def _prepare(args: argparse.Namespace) -> int:
    known = datasets.find(args.set)
    out = Path(args.out).expanduser()
    words = {option.name: getattr(args, option.name) for option in known.prepare_options}
    given = {name: word.expanduser() if isinstance(word, Path) else word for name, word in words.items()}
    print_status(known.prepare(out, any_archive=args.no_md5, progress=_show_progress, **given))
    mark_result_saved()
    show(str(out))
    return 0


def _verify(args: argparse.Namespace) -> int:
    return _print_report(datasets.find(args.set).verify(Path(args.folder), decode=args.decode), as_json=args.json)


def _print_report(report: Report, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        for finding in (*report.problems, *report.notes):
            show(str(finding))
        show(report.sentence())
    return 0 if report.ok else 3


def _progress_counter(things: str) -> Callable[[int, int], None]:
    def show_count(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\rmaking {things}: {done} of {total}", end=end, file=sys.stderr, flush=True)

    return show_count


def _show_progress(phase: str, done_bytes: int, total_bytes: int) -> None:
    if sys.stderr.isatty():
        share = 100 * done_bytes / max(1, total_bytes)
        print(f"\r{phase}: {share:.0f} %      ", end="", file=sys.stderr, flush=True)
