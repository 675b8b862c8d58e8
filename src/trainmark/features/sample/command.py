"""`trainmark sample`: runs a trained network on inputs, and writes sound, images or text."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trainmark import api
from trainmark.cli.terminal import mark_result_saved, print_status, show
from trainmark.record import escape
from trainmark.record.errors import NotReadyError, UsageError

if TYPE_CHECKING:
    from trainmark.api import Shown
    from trainmark.record.sample import SampleDocument, SpeechScores

NAME = "sample"
GROUP = "Keep"
HELP = "Run a trained network: speech, sound, an image's class, text."
EXAMPLES = """\
  trainmark sample last                                  the newest run, on an example of its own data
  trainmark sample last-tacotron2 "It can speak." --vocoder last-wavenet
  trainmark sample last-wavenet recording.wav --out again.wav
  trainmark sample last-resnet50 cat.jpg dog.jpg         one sample for each
  trainmark sample last-tacotron2 --vocoder last-wavenet --score
  trainmark sample 7d00aa --lines sentences.txt --out speech

A text of several sentences is read sentence by sentence. Beside each sample x.wav, x.png or x.txt lies x.json: which
networks made it, by checksum and the quality of their runs, how, how long it took, and the doubts. Without --out a
sample lies in the store, and the page of its run shows it. The same words give the same sample on the same machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "run",
        metavar="RUN",
        help="a run's id or a part of it, a group for its newest run, 'last', 'last-WORKLOAD', or weights",
    )
    add("inputs", nargs="*", metavar="INPUT", help="a text, or a file (default: an example of the run's data)")
    add("--lines", type=Path, metavar="FILE", help="each line of FILE is an INPUT; empty ones and # are left out")
    add("--vocoder", metavar="RUN", help="vocoder: a run of one, or griffin-lim (the default)")
    add(
        "--out",
        type=Path,
        metavar="PATH",
        help="the file of the sample; with several INPUTs the folder of 001, 002, ... (default: in the store)",
    )
    add("--score", action="store_true", help="score speech: predicted mean opinion score and word error rate")
    add("--seed", type=int, metavar="N", help="another seed, another sample (default: 0)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="key=value",
        dest="settings",
        help="change a setting",
    )
    add("--platform", default="auto", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    add("--store", type=Path, metavar="DIR", help="where runs are kept (default: $TRAINMARK_STORE)")
    add("--force", action="store_true", help="overwrite existing files")
    add("--trust", action="store_true", help="run the workload's file that the plan of the run names")
    add("--json", action="store_true", help="one JSON document on stdout: of the sample, or a list of them")


def run(args: argparse.Namespace) -> int:
    inputs = _read_inputs(args)
    settings = [*args.settings]
    settings += [
        f"{key}={value}" for key, value in (("vocoder", args.vocoder), ("seed", args.seed)) if value is not None
    ]
    made = api.samples(
        args.run,
        inputs,
        settings=settings,
        out=args.out,
        numbered=args.lines is not None or len(inputs) > 1,
        score=args.score,
        platform=args.platform,
        store=args.store,
        force=args.force,
        trust=args.trust,
    )
    documents: list[SampleDocument] = []
    for shown in made:
        mark_result_saved()
        documents.append(shown.document)
        for doubt in shown.document.doubts:
            print_status(f"{shown.files[0]}: {doubt.code}: {doubt.text}")
        if not args.json:
            _print(shown)
    if args.json:
        _print_json(documents, several=args.lines is not None or len(inputs) > 1)
    elif args.out is None and documents[-1].networks[0].run_id:
        print_status(f"`trainmark report {documents[-1].networks[0].run_id}` shows it on the page of its run")
    return 0


def _read_inputs(args: argparse.Namespace) -> list[str]:
    if args.lines is None:
        return list(args.inputs)
    if args.inputs:
        raise UsageError("give either INPUTs or --lines FILE, not both")
    lines = [line.strip() for line in _read_lines(args.lines)]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"{args.lines} has no input; give one INPUT per line")
    return found


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise NotReadyError(f"--lines {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise NotReadyError(f"--lines {path} is not UTF-8 text; save it as UTF-8") from error


def _print(shown: Shown) -> None:
    document = shown.document
    for path, left in zip(shown.files, document.files, strict=True):
        print(escape.terminal(f"{path}  {left.caption}"))
        if path.suffix == ".txt":
            for line in path.read_text(encoding="utf-8").splitlines():
                print(f"  {escape.terminal(line)}")
    if document.scores is not None:
        _print_scores(document.scores)
    networks = " and ".join(str(network) for network in document.networks)
    print(escape.terminal(f"  by {networks} in {document.seconds:.1f} s on {document.device}"), flush=True)


def _print_scores(scores: SpeechScores) -> None:
    for row in scores.rows:
        show(f"  {row.of:34} {row}")
    show(f"  {scores.note}: {scores.predictor}; words by {scores.recogniser}")


def _print_json(documents: list[SampleDocument], *, several: bool) -> None:
    text = msgspec.json.encode(documents if several else documents[0]).decode()
    sys.stdout.write(f"{text}{os.linesep}")
