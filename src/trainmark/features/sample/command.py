"""`trainmark sample`: runs a trained network on inputs, and writes sound, images or text."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trainmark.cli.terminal import mark_result_saved, print_status, show
from trainmark.record import escape
from trainmark.record.store import Store, default_folder

if TYPE_CHECKING:
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
  trainmark sample 7d00aa "One." "Two." --out speech    001.wav and 002.wav in a folder

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
    settings = [*args.settings]
    settings += [
        f"{key}={value}" for key, value in (("vocoder", args.vocoder), ("seed", args.seed)) if value is not None
    ]
    from trainmark.features.sample.network import make_samples  # which imports torch

    made = make_samples(
        args.run,
        args.inputs,
        Store(args.store.expanduser() if args.store else default_folder()),
        settings=settings,
        out=args.out,
        score=args.score,
        platform=args.platform,
        force=args.force,
        trust=args.trust,
    )
    documents: list[SampleDocument] = []
    for document, files in made:
        mark_result_saved()
        documents.append(document)
        for doubt in document.doubts:
            print_status(f"{files[0]}: {doubt.code}: {doubt.text}")
        if not args.json:
            _print(document, files)
    if args.json:
        text = msgspec.json.encode(documents if len(args.inputs) > 1 else documents[0]).decode()
        sys.stdout.write(f"{text}{os.linesep}")
    elif args.out is None and documents[-1].networks[0].run_id:
        print_status(f"`trainmark report {documents[-1].networks[0].run_id}` shows it on the page of its run")
    return 0


def _print(document: SampleDocument, files: Sequence[Path]) -> None:
    for path, left in zip(files, document.files, strict=True):
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
