"""Embeds samples of a trained model into the page: audio, images and text."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from trainmark.record.foreign_files import read_plain
from trainmark.record.language import Say
from trainmark.record.machine import Artifact
from trainmark.record.sample import SampleDocument, documents
from trainmark.view.element import Markup, el
from trainmark.view.frame import plain_table

MAX_BYTES = 300_000
"""Of one file; a larger one is named but not embedded."""
ALL_BYTES = 400_000
"""Of all files of a page, so that ten runs stay below a megabyte."""
MAX_LATER = 5
"""Samples made after a run that its page shows: the newest."""

KINDS = {
    ".wav": ("audio/wav", b"RIFF"),
    ".png": ("image/png", b"\x89PNG\r\n\x1a\n"),
    ".txt": ("text/plain", b""),
}
"""By the end of a file's name: its type, and what such a file begins with."""


class ByteBudget:
    """Bytes of audio and images a page may still embed."""

    def __init__(self, left_bytes: int = ALL_BYTES) -> None:
        self._left_bytes = left_bytes

    def take(self, size: int) -> bool:
        if size > self._left_bytes:
            return False
        self._left_bytes -= size
        return True


def draw_artifacts(artifacts: Sequence[Artifact], folder: Path | None, room: ByteBudget, say: Say) -> Markup | None:
    if not artifacts:
        return None
    return el(
        "section",
        el("h3", say("Samples of the trained model")),
        [_draw_one(artifact, folder, room, say) for artifact in artifacts],
        [draw_scores(document, say) for document in (documents(folder) if folder else ())],
        class_="samples",
    )


def draw_scores(document: SampleDocument, say: Say) -> Markup | None:
    """Scores that other networks gave speech, as a table."""
    scores = document.scores
    if scores is None:
        return None
    heads = (say("Sound"), say("Predicted MOS"), say("Word errors"), say("Heard"))
    rows = [(row.of, *row.cells()) for row in scores.rows]
    ears = say("Predicted by a network, not a listening test: {predictor}; words by {recogniser}").format(
        predictor=scores.predictor, recogniser=scores.recogniser
    )
    return el("div", plain_table(heads, rows, range(len(heads))) if rows else None, el("p", ears, class_="note"))


def draw_samples(samples: Path | None, room: ByteBudget, say: Say) -> Markup | None:
    """Samples made after the run, with all networks that took part."""
    found = list(documents(samples))[-MAX_LATER:] if samples else []
    if not found:
        return None
    figures = [
        [
            *(_draw_one(artifact, samples, room, say) for artifact in document.files),
            draw_scores(document, say),
            el("p", say("Made by {networks}").format(networks=", ".join(map(str, document.networks))), class_="note"),
        ]
        for document in found
    ]
    return el("section", el("h3", say("Samples made after the run")), figures, class_="samples")


def _draw_one(artifact: Artifact, folder: Path | None, room: ByteBudget, say: Say) -> Markup:
    content = _read_content(artifact, folder, room)
    caption = el("figcaption", artifact.caption)
    if content is None:
        return el("figure", caption, el("p", say("Not in this page: {file}").format(file=artifact.file), class_="note"))
    kind = KINDS[Path(artifact.file).suffix.lower()][0]
    if kind.startswith("text/"):
        lines = content.decode("utf-8", "replace").splitlines()
        return el("figure", caption, el("div", [el("p", line) for line in lines], class_="text"))
    address = f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
    if kind.startswith("audio/"):
        return el("figure", caption, el("audio", controls=True, preload="metadata", src=address))
    return el("figure", caption, el("img", src=address, alt=artifact.caption, loading="lazy"))


def _read_content(artifact: Artifact, folder: Path | None, room: ByteBudget) -> bytes | None:
    """The file's bytes if its type matches its name and it lies in the folder: a foreign record may name any path."""
    kind = KINDS.get(Path(artifact.file).suffix.lower())
    if folder is None or kind is None:
        return None
    try:
        path = (folder / artifact.file).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            return None
        content = read_plain(path, MAX_BYTES)
    except (OSError, ValueError):
        return None
    return content if content.startswith(kind[1]) and room.take(len(content)) else None
