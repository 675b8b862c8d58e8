"""Reads results that stand inside one cell: `Acc@1=76.02,FPS=330,Time=4d3h`, `FP32: Acc@1 76.6 fps 1049`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainmark.published.cells import LONGEST, Figure, figure, seconds, tidy
from trainmark.published.heads import is_precision, measure_kind
from trainmark.published.units import is_unit

_PIECE = re.compile(r"[:=]|[,;]|[^\s:=,;]+")
_ENDS, _GIVES = (",", ";"), (":", "=")


@dataclass(frozen=True, kw_only=True)
class Pair:
    name: str
    text: str
    """What stands there as its value."""
    figure: Figure | None
    """None for a time such as `4d3h`, which only its text tells."""


@dataclass(frozen=True, kw_only=True)
class PairGroup:
    precision: str
    """Which the cell says before the pairs; empty where it says none."""
    pairs: tuple[Pair, ...]


def pairs(text: str) -> list[PairGroup] | None:
    """The pairs of a cell, or None where anything in it is not certainly a name and its value."""
    plain = re.sub(r" ?@ ?", "@", re.sub(r" ?/ ?", "/", tidy(text)))
    if len(plain) > LONGEST or plain[:1].isdigit():
        return None
    pieces: list[str] = _PIECE.findall(plain)
    groups: list[tuple[str, list[Pair]]] = [("", [])]
    words: list[str] = []
    place = 0
    while place < len(pieces):
        piece, after = pieces[place], pieces[place + 1] if place + 1 < len(pieces) else ""
        place += 1
        if piece in _ENDS:
            if words:
                return None
        elif piece in _GIVES:
            if not words or not after or after in (*_ENDS, *_GIVES):
                return None
            if not _is_value(after):
                if not is_precision(" ".join(words)):
                    return None
                groups.append((" ".join(words), []))
                words = []
        elif words and after in _GIVES and place > 1 and pieces[place - 2] == ":" and _is_value(piece):
            words[-1] += f":{piece}"  # `mAP@0.5:0.95: 36.1`
        elif words and after not in _GIVES and _is_value(piece):
            unit = after if is_unit(after) and figure(piece) and not measure_kind(after) else ""
            place += bool(unit)
            shown = f"{piece} {unit}".strip()
            groups[-1][1].append(Pair(name=" ".join(words).strip("'\"`"), text=shown, figure=figure(shown)))
            words = []
        else:
            words.append(piece)
    found = [PairGroup(precision=precision, pairs=tuple(members)) for precision, members in groups if members]
    return found if found and not words and len(found) >= len(groups) - 1 else None


def _is_value(piece: str) -> bool:
    found = figure(piece)
    return (found is not None and (not found.unit or is_unit(found.unit))) or seconds(piece) is not None
