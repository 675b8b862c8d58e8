"""`trainmark data`: makes, prepares and verifies data sets."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.terminal import say
from trainmark.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmark.data.prepare_imagenet import Progress

HELP = "Make, prepare or verify a data set."
EXAMPLES = """\
  trainmark data make imagenet --out /tmp/shapes --classes 20 --train-per-class 200
  trainmark data prepare imagenet --train-tar ILSVRC2012_img_train.tar --val-tar ILSVRC2012_img_val.tar \\
      --devkit ILSVRC2012_devkit_t12.tar.gz --out /data/imagenet
  trainmark data verify imagenet /data/imagenet --decode full"""

SETS = ("imagenet",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="make|prepare|verify", required=True)
    make = actions.add_parser("make", help="write an ImageNet-shaped set of generated pictures", allow_abbrev=False)
    make.add_argument("set", choices=SETS)
    make.add_argument("--out", required=True, metavar="DIR", help="a folder that is not there yet")
    make.add_argument("--classes", type=int, default=10, metavar="N")
    make.add_argument("--train-per-class", type=int, metavar="N")
    make.add_argument("--val-per-class", type=int, metavar="N")
    make.add_argument("--seed", type=int, default=0, metavar="N")
    prepare = actions.add_parser(
        "prepare", help="unpack the ILSVRC2012 archives, safely and resumably", allow_abbrev=False
    )
    prepare.add_argument("set", choices=SETS)
    prepare.add_argument("--train-tar", required=True, metavar="FILE", help="ILSVRC2012_img_train.tar")
    prepare.add_argument("--val-tar", required=True, metavar="FILE", help="ILSVRC2012_img_val.tar")
    prepare.add_argument("--devkit", metavar="FILE", help="ILSVRC2012_devkit_t12.tar.gz, for the labels of the val set")
    prepare.add_argument("--val-labels", metavar="FILE", help="or a text file: a file name and its class on each line")
    prepare.add_argument("--out", required=True, metavar="DIR")
    prepare.add_argument("--no-md5", action="store_true", help="accept archives other than the published ones")
    verify = actions.add_parser(
        "verify", help="count classes and files, and name the unreadable ones", allow_abbrev=False
    )
    verify.add_argument("set", choices=SETS)
    verify.add_argument("folder", metavar="DIR")
    verify.add_argument("--decode", default="header", choices=("none", "header", "full"), help="how closely to look")
    verify.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    return {"make": _make, "prepare": _prepare, "verify": _verify}[args.action](args)


def _make(args: argparse.Namespace) -> int:
    from trainmark.data import make_imagenet

    counts = {"train_per_class": args.train_per_class, "val_per_class": args.val_per_class}
    wanted = {name: count for name, count in counts.items() if count is not None}
    if min(args.classes, *wanted.values(), 10**9) < 1:
        raise UsageError("a set needs at least one class and one picture of each in either split")
    out = Path(args.out).expanduser()
    if out.exists():
        raise UsageError(f"{out} is there already; give --out a folder that is not")
    make_imagenet.make(out, classes=args.classes, seed=args.seed, progress=_counted, **wanted)
    print(out)
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from trainmark.data.prepare_imagenet import ILSVRC2012, ArchiveSet, prepare

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


def _verify(args: argparse.Namespace) -> int:
    from trainmark.data.verify_imagenet import verify
    from trainmark.results import escape

    report = verify(Path(args.folder), decode=args.decode)
    if args.json:
        print(json.dumps({"ok": report.ok, **asdict(report)}, indent=1))
    else:
        for finding in (*report.problems, *report.notes):
            print(escape.terminal(str(finding)))
        print(report.sentence())
    return 0 if report.ok else 3


def _counted(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rmaking pictures: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _shown(at: Progress) -> None:
    share = 100 * at.done_bytes / max(1, at.total_bytes)
    line = f"{at.phase}: {share:.0f} %"
    if sys.stderr.isatty():
        print(f"\r{line}      ", end="", file=sys.stderr, flush=True)
