"""`trainmark speak`: lets a trained network that speaks read text aloud, into sound files."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.cli.terminal import result_is_kept, say
from trainmark.spec.errors import NotReadyError, TrainmarkError, UsageError

if TYPE_CHECKING:
    from trainmark.platforms.platform import Device

HELP = "Let a trained Tacotron2 read text aloud, into WAV files."
EXAMPLES = """\
  trainmark speak "Hello there. How are you?" --checkpoint last
  trainmark speak "Hello there." --checkpoint tacotron2.pt --out hello.wav --plot hello.png
  trainmark speak --lines sentences.txt --checkpoint last --out speech --plot speech

A text of several sentences is spoken sentence by sentence, with a quarter of a second of silence between them. Beside
each sound x.wav lies x.json: what was read, how long it took, and the doubts. The same words, checkpoint, seed and
batch give the same sound on the same machine."""


class Files(NamedTuple):
    """Where one text goes."""

    wav: Path
    png: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("text", nargs="?", metavar="TEXT", help="what to say; ARPAbet phonemes may stand in braces: {HH AW1 S}")
    add("--lines", type=Path, metavar="FILE", help="say each line of FILE; empty ones and those with # are left out")
    add(
        "--checkpoint",
        required=True,
        metavar="RUN|FILE",
        help="whose voice: a run's id, its beginning or end, 'last', or the path of a run, a checkpoint or its weights",
    )
    add(
        "--out",
        type=Path,
        metavar="PATH",
        help="the sound file (default: speech.wav); for --lines the folder of 001.wav, 002.wav, ... (default: speech)",
    )
    add("--plot", type=Path, metavar="PATH", help="also draw mel and attention: a .png file, or for --lines a folder")
    add("--gate-threshold", type=float, default=0.5, metavar="P", help="how sure of the end to be (default: 0.5)")
    add(
        "--max-frames",
        type=int,
        default=1723,
        metavar="N",
        help="frames a sentence may have, 11.6 ms each (default: 1723, which is 20 s)",
    )
    add("--batch", type=int, default=8, metavar="N", help="sentences spoken at once (default: 8)")
    add("--seed", type=int, default=0, metavar="N", help="another seed, another reading (default: 0)")
    add("--platform", default="auto", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    add("--store", type=Path, metavar="DIR", help="where runs are kept (default: $TRAINMARK_STORE)")
    add("--force", action="store_true", help="overwrite files that are there")
    add("--json", action="store_true", help="one JSON document on stdout: of the speech, or a list of them")


def run(args: argparse.Namespace) -> int:
    from trainmark.spec import escape

    speak = _speech_module(args.checkpoint, args.store)
    settings = _settings(args, speak)
    texts = _texts(args, speak)
    targets = _targets(args, len(texts))
    if not args.force:
        _refuse_existing(targets)
    if args.lines is not None:
        _make_folders({path.parent for files in targets for path in files if path is not None})
    voice = speak.open_voice(_checkpoint(args.checkpoint, args.store), _device(args.platform))
    documents: list[Any] = []
    for files, speech in zip(targets, speak.speak(voice, texts, settings), strict=True):
        speech.write(files.wav, files.png)
        documents.append(speech.document)
        result_is_kept()
        shown = escape.terminal(str(files.wav))
        for doubt in speech.document["doubts"]:
            say(f"{shown}: {doubt['code']}: {doubt['text']}")
        if not args.json:
            factor = speech.document["real_time_factor"]
            pace = "no sound" if factor is None else f"real-time factor {factor:.2f}"
            print(f"{shown}  {speech.document['sound_s']:.2f} s  {pace}", flush=True)
    if args.json:
        json.dump(documents if args.lines else documents[0], sys.stdout)
        print()
    return 0


def _settings(args: argparse.Namespace, speak: Any) -> Any:
    if not 0 < args.gate_threshold < 1:
        raise UsageError(f"--gate-threshold must be between 0 and 1, not {args.gate_threshold:g}")
    for word, value in (("--max-frames", args.max_frames), ("--batch", args.batch)):
        if value < 1:
            raise UsageError(f"{word} must be at least 1, not {value}")
    if not 0 <= args.seed < 2**63:
        raise UsageError(f"--seed must be from 0 to 2**63 - 1, not {args.seed}")
    return speak.Settings(
        gate_threshold=args.gate_threshold, most_frames=args.max_frames, seed=args.seed, batch=args.batch
    )


def _texts(args: argparse.Namespace, speak: Any) -> list[Any]:
    if args.text is not None and args.lines is not None:
        raise UsageError("give either a text or --lines FILE, not both")
    if args.text is not None:
        return [speak.words(args.text)]
    if args.lines is None:
        raise UsageError("there is nothing to say; give a text in quotes, or --lines FILE")
    texts = []
    for number, line in enumerate(_lines(args.lines), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                texts.append(speak.words(line.strip()))
            except UsageError as error:
                raise UsageError(f"{args.lines}, line {number}: {error}") from error
    if not texts:
        raise UsageError(f"{args.lines} has no line to say; give one sentence a line")
    return texts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise NotReadyError(f"--lines {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise NotReadyError(f"--lines {path} is not UTF-8 text; save it as UTF-8") from error


def _targets(args: argparse.Namespace, count: int) -> list[Files]:
    if args.lines is None:
        wav = args.out or Path("speech.wav")
        for word, path, suffix in (("--out", wav, ".wav"), ("--plot", args.plot, ".png")):
            if path is not None and path.suffix.lower() != suffix:
                raise UsageError(f"{word} {path} must end in {suffix}; a folder is for --lines")
        return [Files(wav, args.plot)]
    folder = args.out or Path("speech")
    for word, path in (("--out", folder), ("--plot", args.plot)):
        if path is not None and (path.suffix.lower() in (".wav", ".png") or path.is_file()):
            raise UsageError(f"{word} {path} must be a folder with --lines, as every line gets its own file")
    names = [f"{number:03d}" for number in range(1, count + 1)]
    return [Files(folder / f"{name}.wav", args.plot / f"{name}.png" if args.plot else None) for name in names]


def _make_folders(folders: Iterable[Path]) -> None:
    """Those that are named, and none above them."""
    for folder in folders:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise NotReadyError(f"the folder {folder} cannot be made: {error.strerror}") from error


def _refuse_existing(targets: Sequence[Files]) -> None:
    for files in targets:
        for path in (files.wav, files.wav.with_suffix(".json"), files.png):
            if path is not None and os.path.lexists(path):
                raise UsageError(f"{path} is there already and nothing is overwritten; choose another name, or --force")


def _checkpoint(word: str, store: Path | None) -> Path:
    """The path meant by a path or by a run's name."""
    path = Path(word).expanduser()
    if not path.exists() and os.sep not in word and path.suffix != ".pt":
        from trainmark.store.store import Store, default_folder

        path = Store(store or default_folder()).run_folder(word)
    return path


def _trained(word: str, store: Path | None) -> str | None:
    """The workload a run trained; None where only weights are given, or nothing is there, which is said later."""
    with contextlib.suppress(OSError, ValueError, TrainmarkError):
        path = _checkpoint(word, store)
        plan = json.loads((path / "plan.json").read_text(encoding="utf-8"))
        return str(plan["workload"]) if isinstance(plan, dict) and "workload" in plan else None
    return None


def _speech_module(word: str, store: Path | None) -> Any:
    """The `speak` of the workload that was trained, or of the one that speaks; another's run is refused."""
    from importlib import import_module

    from trainmark import workloads

    trained = _trained(word, store)
    speaking = [facts.name for facts in workloads.all_facts() if facts.speaks]
    if trained not in (None, *speaking):
        run, others = _checkpoint(word, store).name, " or ".join(speaking)
        raise UsageError(f"run {run} trained {trained}, which does not speak; give a run of {others}")
    return import_module(f"trainmark.workloads.{trained or speaking[0]}.speak")


def _device(name: str) -> Device:
    from trainmark.platforms import detection, files
    from trainmark.platforms.platform import Platform

    return Platform(files.load(detection.chosen() if name == "auto" else name)).open(0)
