"""Lets a trained Tacotron2 speak: a checkpoint and a text become sound, with the doubts one should have about it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trainmark.datasets import audio
from trainmark.datasets.mel import MEL
from trainmark.spec.errors import NotReadyError, WorkloadError
from trainmark.spec.precision import Precision
from trainmark.spec.record import Doubt
from trainmark.spec.whole_files import sha256, write_named
from trainmark.workloads import weights
from trainmark.workloads.tacotron2 import griffin_lim, plot
from trainmark.workloads.tacotron2.attention_quality import diagonality, focus
from trainmark.workloads.tacotron2.model import Sizes, Spoken, Tacotron2
from trainmark.workloads.tacotron2.text import SYMBOLS, clean, to_ids

SCHEMA = 1
KIND = "trainmark speech"
SILENCE_FRAMES = 22
"""Between two sentences of one text: about a quarter of a second."""
LONGEST_SYMBOLS = 188
"""The longest text of LJSpeech."""
STEADY_FROM = 0.5
"""Diagonality below this is a doubt: what is looked at lies, in the mean, more than a sixth of the text away."""

_PAUSE = re.compile(r"""[.!?]+["'”’)\]]*\s+""")


@dataclass(frozen=True, kw_only=True)
class Settings:
    gate_threshold: float = 0.5
    """The end is where the gate is surer of it than this."""
    most_frames: int = 1723
    """Frames a sentence may have: 20 s, twice the longest clip of LJSpeech."""
    seed: int = 0
    """Of the prenet's dropout, which stays on."""
    batch: int = 8
    """Sentences spoken at once."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    read: str
    ids: tuple[int, ...]

    @property
    def letters(self) -> str:
        """One sign for each symbol; a phoneme is shown by its first."""
        return "".join(SYMBOLS[number].removeprefix("@")[0] for number in self.ids)


@dataclass(frozen=True, kw_only=True)
class Words:
    """What one file is to say."""

    text: str
    sentences: tuple[Sentence, ...]


class VoiceDevice(Protocol):
    """What a voice asks of the device it speaks on."""

    @property
    def torch(self) -> torch.device: ...

    def name(self) -> str: ...

    def set_precision(self, precision: Precision, /) -> None: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Voice:
    """A network ready to speak, and where it came from."""

    model: Tacotron2
    device: VoiceDevice
    file: Path
    sha256: str
    trained: bool
    """False where nothing was ever learnt."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Speech:
    """What one file says, and all that is known about how it came to be."""

    samples: Tensor
    mel: Tensor
    """(bands, frames)"""
    alignment: Tensor
    """(frames, symbols); with several sentences, one block after the other."""
    letters: str
    document: Mapping[str, Any]

    def write(self, wav: Path, png: Path | None) -> None:
        """The sound, the picture, and last of all the document beside the sound: where it is, all is."""
        if png is not None:
            plot.save(
                png,
                alignment=self.alignment.numpy(),
                mel=self.mel.numpy(),
                title=self.document["read"],
                letters=self.letters,
            )
        audio.write(wav, self.samples)
        _write_document(wav.with_suffix(".json"), self.document)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Piece:
    """One spoken sentence."""

    sentence: Sentence
    samples: Tensor
    mel: Tensor
    alignment: Tensor
    finished: bool
    diagonality: float
    focus: float
    network_s: float
    vocoder_s: float

    @property
    def frames(self) -> int:
        return self.mel.shape[1]


def words(text: str) -> Words:
    """A text as the network will read it, sentence by sentence; UsageError where it cannot be read."""
    clean(text)  # refuses the text as a whole, before any part of it is looked at
    return Words(
        text=text,
        sentences=tuple(Sentence(read=clean(part), ids=tuple(to_ids(part))) for part in sentences(text)),
    )


def sentences(text: str) -> list[str]:
    """The text, parted after . ! ? and white space, but not after 'Dr.', an initial, or where a number follows."""
    parts, start = [], 0
    for pause in _PAUSE.finditer(text):
        before, after = text[start : pause.start()], text[pause.end() :]
        if _is_end(before, pause[0], after):
            parts.append(text[start : pause.end()].strip())
            start = pause.end()
    return [*parts, text[start:].strip()]


def _is_end(before: str, pause: str, after: str) -> bool:
    if before.count("{") > before.count("}"):
        return False
    if not all(any(map(str.isalnum, part)) for part in (before, after)):
        return False
    if pause.strip() != ".":
        return True
    word = re.search(r"[A-Za-z]+$", before)
    # of an abbreviation that is read in full no dot is left
    shortened = word is not None and (len(word[0]) == 1 or not clean(f"{word[0]}.").endswith("."))
    return not shortened and not after[0].isdigit()


def open_voice(path: Path, device: VoiceDevice) -> Voice:
    """The network in a file of weights, a checkpoint's folder, or a run's folder, on a device and ready to speak."""
    file = checkpoint_file(path)
    found = weights.read_weights(file)
    digest = _checked_sha256(file)
    try:
        sizes = Sizes.of(found)
        model = Tacotron2(sizes)
    except (KeyError, IndexError, ValueError) as error:  # not of this kind, or of sizes that no network can have
        lacks = f": {error.args[0]} is missing" if isinstance(error, KeyError) else ""
        raise NotReadyError(
            f"{file} holds no Tacotron2{lacks}; give a checkpoint of a tacotron2 run, or a public one"
        ) from error
    if (sizes.symbols, sizes.bands) != (len(SYMBOLS), MEL.bands):
        raise NotReadyError(
            f"{file} reads {sizes.symbols} symbols and speaks {sizes.bands} mel bands, not {len(SYMBOLS)} and "
            f"{MEL.bands}; give a checkpoint trained on the text and the mels of trainmark"
        )
    weights.load_into(model, found, str(file))
    device.set_precision(Precision.parse("fp32"))
    model = model.to(device.torch).eval()
    return Voice(model=model, device=device, file=file, sha256=digest, trained=_has_learnt(found))


def checkpoint_file(path: Path) -> Path:
    """The file meant: the path itself, or the state in a checkpoint's folder, or in the newest of a run's."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise NotReadyError(f"checkpoint {path} is not there; give a run, a file of weights or a checkpoint's folder")
    newest_first = reversed([*weights.checkpoints(path), *weights.checkpoints(path / "checkpoints")])
    for folder in (path, *newest_first):
        if (folder / "state.pt").is_file():
            return folder / "state.pt"
    raise NotReadyError(f"{path} holds no checkpoint; give a run that left one, or a file of weights")


def speak(voice: Voice, texts: Sequence[Words], settings: Settings) -> Iterator[Speech]:
    """Each text in turn, as soon as its last sentence is spoken; sentences of several texts share batches.

    Each batch draws its dropout anew from the seed, so that a text is spoken alike whatever is spoken after it.
    """
    queue = [(text, sentence) for text in texts for sentence in text.sentences]
    spoken: list[_Piece] = []
    for start in range(0, len(queue), settings.batch):
        part = queue[start : start + settings.batch]
        for (text, _), piece in zip(part, _batch(voice, [sentence for _, sentence in part], settings), strict=True):
            spoken.append(piece)
            if len(spoken) == len(text.sentences):
                yield _joined(voice, text, spoken, settings)
                spoken = []


def _batch(voice: Voice, said: Sequence[Sentence], settings: Settings) -> Iterator[_Piece]:
    """One sentence after the other; the network's time is shared out by their frames."""
    device, lengths = voice.device, [len(sentence.ids) for sentence in said]
    ids = torch.zeros(len(said), max(lengths), dtype=torch.long)
    for row, sentence in zip(ids, said, strict=True):
        row[: len(sentence.ids)] = torch.tensor(sentence.ids)
    device.synchronize()
    began = time.perf_counter()
    out = _spoken(voice, ids, lengths, settings)
    device.synchronize()
    network_s = time.perf_counter() - began

    counts = torch.tensor(out.frames), torch.tensor(lengths)
    diagonal, sharp = (judge(out.alignment, *counts).tolist() for judge in (diagonality, focus))
    mels, alignments = out.mel.cpu(), out.alignment.float().cpu()
    for number, (sentence, frames) in enumerate(zip(said, out.frames, strict=True)):
        mel = mels[number, :, :frames]
        began = time.perf_counter()
        # on the host: it needs complex numbers, which not every device has
        samples = griffin_lim.wave(mel)
        yield _Piece(
            sentence=sentence,
            samples=samples,
            mel=mel,
            alignment=alignments[number, :frames, : lengths[number]],
            finished=out.finished[number],
            diagonality=diagonal[number],
            focus=sharp[number],
            network_s=network_s * frames / sum(out.frames),
            vocoder_s=time.perf_counter() - began,
        )


def _spoken(voice: Voice, ids: Tensor, lengths: Sequence[int], settings: Settings) -> Spoken:
    try:
        return voice.model.speak(
            ids.to(voice.device.torch),
            lengths,
            gate_threshold=settings.gate_threshold,
            most_frames=settings.most_frames,
            generator=torch.Generator().manual_seed(settings.seed),
        )
    except torch.OutOfMemoryError as error:
        raise WorkloadError(
            f"the device ran out of memory with {len(lengths)} sentences at once; "
            "give a smaller --batch or a smaller --max-frames"
        ) from error


def _joined(voice: Voice, text: Words, pieces: Sequence[_Piece], settings: Settings) -> Speech:
    """The sentences one after the other with a short silence between them, in sound and picture alike."""
    sounds, mels, looks = [], [], []
    for number, piece in enumerate(pieces):
        if number:
            sounds.append(torch.zeros(SILENCE_FRAMES * MEL.hop))
            mels.append(torch.full((MEL.bands, SILENCE_FRAMES), MEL.least).log())
            looks.append(torch.zeros(SILENCE_FRAMES, 0))
        sounds.append(piece.samples)
        mels.append(piece.mel)
        looks.append(piece.alignment)
    samples = torch.cat(sounds)
    return Speech(
        samples=samples,
        mel=torch.cat(mels, 1),
        alignment=torch.block_diag(*looks),  # type: ignore[no-untyped-call]
        letters="".join(piece.sentence.letters for piece in pieces),
        document=_document(voice, text, pieces, settings, len(samples) / audio.RATE),
    )


def _document(
    voice: Voice, text: Words, pieces: Sequence[_Piece], settings: Settings, sound_s: float
) -> dict[str, Any]:
    network_s = sum(piece.network_s for piece in pieces)
    vocoder_s = sum(piece.vocoder_s for piece in pieces)
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "text": text.text,
        "read": " ".join(sentence.read for sentence in text.sentences),
        "sentences": [
            {
                "read": piece.sentence.read,
                "symbols": len(piece.sentence.ids),
                "frames": piece.frames,
                "finished": piece.finished,
                "diagonality": round(piece.diagonality, 4),
                "focus": round(piece.focus, 4),
            }
            for piece in pieces
        ],
        "checkpoint": {"path": str(voice.file.absolute()), "sha256": voice.sha256},
        "frames": sum(piece.frames for piece in pieces),
        "sound_s": sound_s,
        "network_s": network_s,
        "vocoder_s": vocoder_s,
        "real_time_factor": (network_s + vocoder_s) / sound_s if sound_s else None,
        "vocoder": "griffin-lim",
        "gate_threshold": settings.gate_threshold,
        "max_frames": settings.most_frames,
        "seed": settings.seed,
        "batch": settings.batch,
        "device": voice.device.name(),
        "doubts": [asdict(doubt) for doubt in _doubts(voice, pieces)],
    }


def _doubts(voice: Voice, pieces: Sequence[_Piece]) -> Iterator[Doubt]:
    if not voice.trained:
        yield Doubt(
            code="untrained",
            text="the network has never seen speech: its statistics are still those it was made with; train it first",
        )
    for number, piece in enumerate(pieces, 1):
        which = "the sentence" if len(pieces) == 1 else f"sentence {number}"
        symbols, length_s = len(piece.sentence.ids), piece.frames * MEL.hop / MEL.rate
        if symbols > LONGEST_SYMBOLS:
            yield Doubt(
                code="long-text",
                text=f"{which} has {symbols} symbols and is longer than anything in LJSpeech ({LONGEST_SYMBOLS}); "
                "part it with full stops",
            )
        if not piece.finished:
            yield Doubt(
                code="no-end",
                text=f"{which} had not ended after {piece.frames} frames ({length_s:.1f} s); raise --max-frames, lower "
                "--gate-threshold, or train for longer",
            )
        elif not len(piece.samples):
            yield Doubt(
                code="no-sound",
                text=f"{which} ended before it began; raise --gate-threshold, or train for longer",
            )
        if piece.diagonality < STEADY_FROM:
            yield Doubt(
                code="weak-attention",
                text=f"attention does not move steadily along {which} (diagonality {piece.diagonality:.2f}, a steady "
                "reader has 1): words may be missing, repeated or not words at all; train for longer",
            )


def _has_learnt(found: Mapping[str, Tensor]) -> bool:
    """Whether any norm has statistics other than those every new network has."""
    return any(
        bool((tensor != (1 if name.endswith("running_var") else 0)).any())
        for name, tensor in found.items()
        if name.endswith((".running_mean", ".running_var"))
    )


def _checked_sha256(file: Path) -> str:
    """The file's hash, once it is the one in the manifest beside it, if there is one."""
    digest = sha256(file)
    manifest: Any = None
    with contextlib.suppress(OSError, ValueError):
        manifest = json.loads((file.parent / "manifest.json").read_text(encoding="utf-8"))
    wanted = manifest.get("sha256") if isinstance(manifest, dict) and file.name == "state.pt" else None
    if wanted not in (None, digest):
        raise NotReadyError(
            f"checkpoint {file} is damaged: its content does not match its hash; give the one before it"
        )
    return digest


def _write_document(path: Path, document: Mapping[str, Any]) -> None:
    write_named(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
