"""`trainmark data`: makes, prepares and verifies data sets."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainmark.cli.terminal import say
from trainmark.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmark.datasets.archive_checks import Progress
    from trainmark.datasets.verify_report import Report

HELP = "Make, prepare or verify a data set."
EXAMPLES = """\
  trainmark data make imagenet --out /tmp/shapes --classes 20 --train-per-class 200
  trainmark data make ljspeech --out /tmp/speech --clips 1000
  trainmark data prepare imagenet --train-tar ILSVRC2012_img_train.tar --val-tar ILSVRC2012_img_val.tar \\
      --devkit ILSVRC2012_devkit_t12.tar.gz --out /data/imagenet
  trainmark data prepare ljspeech --tar LJSpeech-1.1.tar.bz2 --out /data/ljspeech
  trainmark data verify imagenet /data/imagenet --decode full
  trainmark data verify ljspeech /data/ljspeech --decode full"""

Sets = dict[str, argparse.ArgumentParser]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="make|prepare|verify", required=True)
    for name, text, add_sets in (
        ("make", "write a set of generated data", _add_make),
        ("prepare", "unpack the published archives, safely and resumably", _add_prepare),
        ("verify", "count what a set holds, and name what is unreadable", _add_verify),
    ):
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        # the metavar is left out: a complaint about an unknown set then calls it a set
        sets = add_sets(action.add_subparsers(dest="set", required=True))
        _refuse_words_of_other_sets(sets)


def run(args: argparse.Namespace) -> int:
    code: int = args.do(args)
    return code


# The words of each command


def _add_make(sets: Any) -> Sets:
    imagenet = _set(sets, "imagenet", _make_imagenet, "ImageNet-shaped folders of generated pictures")
    ljspeech = _set(sets, "ljspeech", _make_ljspeech, "an LJSpeech-shaped folder of generated speech")
    for parser in (imagenet, ljspeech):
        parser.add_argument("--out", required=True, metavar="DIR", help="a folder that is not there yet")
        parser.add_argument("--seed", type=int, metavar="N", help="another seed, other data (default: 0)")
    imagenet.add_argument("--classes", type=int, default=10, metavar="N", help="(default: 10)")
    imagenet.add_argument("--train-per-class", type=int, metavar="N", help="pictures of each class to train on")
    imagenet.add_argument("--val-per-class", type=int, metavar="N", help="pictures of each class to evaluate on")
    ljspeech.add_argument("--clips", type=int, metavar="N", help="sentences, each in a sound file (default: 640)")
    return {"imagenet": imagenet, "ljspeech": ljspeech}


def _add_prepare(sets: Any) -> Sets:
    imagenet = _set(sets, "imagenet", _prepare_imagenet, "folders of classes from the ILSVRC2012 archives")
    ljspeech = _set(sets, "ljspeech", _prepare_ljspeech, "texts and sound files from LJSpeech-1.1.tar.bz2")
    imagenet.add_argument("--train-tar", required=True, metavar="FILE", help="ILSVRC2012_img_train.tar")
    imagenet.add_argument("--val-tar", required=True, metavar="FILE", help="ILSVRC2012_img_val.tar")
    imagenet.add_argument(
        "--devkit", metavar="FILE", help="ILSVRC2012_devkit_t12.tar.gz, for the labels of the val set"
    )
    imagenet.add_argument("--val-labels", metavar="FILE", help="or a text file: a file name and its class on each line")
    ljspeech.add_argument("--tar", required=True, metavar="FILE", help="LJSpeech-1.1.tar.bz2")
    for parser in (imagenet, ljspeech):
        parser.add_argument("--out", required=True, metavar="DIR")
        parser.add_argument("--no-md5", action="store_true", help="accept archives other than the published ones")
    return {"imagenet": imagenet, "ljspeech": ljspeech}


def _add_verify(sets: Any) -> Sets:
    imagenet = _set(sets, "imagenet", _verify_imagenet, "classes and pictures")
    ljspeech = _set(sets, "ljspeech", _verify_ljspeech, "texts and sound files")
    for parser in (imagenet, ljspeech):
        parser.add_argument("folder", metavar="DIR")
        parser.add_argument(
            "--decode", default="header", choices=("none", "header", "full"), help="how closely to look"
        )
        parser.add_argument("--json", action="store_true", help="one JSON document")
    return {"imagenet": imagenet, "ljspeech": ljspeech}


def _set(sets: Any, name: str, do: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = sets.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    parser.set_defaults(do=do)
    return parser


class _WordOfAnotherSet(argparse.Action):
    """Says where an option belongs, which is more help than that it is not known."""

    def __init__(self, *, home: str, **rest: Any) -> None:
        super().__init__(nargs="?", help=argparse.SUPPRESS, default=argparse.SUPPRESS, **rest)
        self.home = home

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        raise UsageError(f"{option_string} belongs to '{self.home}'; see '{parser.prog} --help' for what is taken here")


def _refuse_words_of_other_sets(sets: Sets) -> None:
    words = {name: list(parser._option_string_actions) for name, parser in sets.items()}
    for name, parser in sets.items():
        for other in sets.keys() - {name}:
            for word in words[other]:
                if word not in words[name]:
                    parser.add_argument(word, action=_WordOfAnotherSet, home=sets[other].prog)


# What they do


def _make_imagenet(args: argparse.Namespace) -> int:
    from trainmark.datasets.imagenet import make

    counts = _given(args, "train_per_class", "val_per_class")
    if min(args.classes, *counts.values(), 10**9) < 1:
        raise UsageError("a set needs at least one class and one picture of each in either split")
    return _make(args, make.make, "pictures", classes=args.classes, **counts)


def _make_ljspeech(args: argparse.Namespace) -> int:
    from trainmark.datasets.ljspeech import make

    return _make(args, make.make, "clips", **_given(args, "clips"))


def _make(args: argparse.Namespace, make: Callable[..., object], things: str, **contents: int) -> int:
    out = Path(args.out).expanduser()
    if out.exists():
        raise UsageError(f"{out} is there already; give --out a folder that is not")
    make(out, progress=_counting(things), **contents, **_given(args, "seed"))
    print(out)
    return 0


def _given(args: argparse.Namespace, *names: str) -> dict[str, int]:
    """The numbers the user gave; the makers know the others."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _prepare_imagenet(args: argparse.Namespace) -> int:
    from trainmark.datasets.imagenet.prepare import ILSVRC2012, ArchiveSet, prepare

    out = Path(args.out).expanduser()
    done = prepare(
        Path(args.train_tar),
        Path(args.val_tar),
        out,
        devkit=Path(args.devkit) if args.devkit else None,
        val_labels=Path(args.val_labels) if args.val_labels else None,
        expected=ArchiveSet() if args.no_md5 else ILSVRC2012,
        progress=_shown,
    )
    say(f"{done.classes} classes, {done.train:,} train and {done.val:,} val pictures, {done.written:,} written now")
    print(out)
    return 0


def _prepare_ljspeech(args: argparse.Namespace) -> int:
    from trainmark.datasets.ljspeech.prepare import LJSPEECH_1_1, Release, prepare

    out = Path(args.out).expanduser()
    done = prepare(
        Path(args.tar).expanduser(), out, expected=Release() if args.no_md5 else LJSPEECH_1_1, progress=_shown
    )
    say(f"{done.clips:,} clips, {done.written:,} files written now")
    print(out)
    return 0


def _verify_imagenet(args: argparse.Namespace) -> int:
    from trainmark.datasets.imagenet.verify import verify

    return _told(verify(Path(args.folder), decode=args.decode), as_json=args.json)


def _verify_ljspeech(args: argparse.Namespace) -> int:
    from trainmark.datasets.ljspeech.verify import verify

    return _told(verify(Path(args.folder), decode=args.decode), as_json=args.json)


def _told(report: Report[Any], *, as_json: bool) -> int:
    from trainmark.spec import escape

    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        for finding in (*report.problems, *report.notes):
            print(escape.terminal(str(finding)))
        print(report.sentence())
    return 0 if report.ok else 3


def _counting(things: str) -> Callable[[int, int], None]:
    def counted(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\rmaking {things}: {done} of {total}", end=end, file=sys.stderr, flush=True)

    return counted


def _shown(at: Progress) -> None:
    share = 100 * at.done_bytes / max(1, at.total_bytes)
    line = f"{at.phase}: {share:.0f} %"
    if sys.stderr.isatty():
        print(f"\r{line}      ", end="", file=sys.stderr, flush=True)
