"""Column headers of published tables: what each column holds, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainmark import workloads
from trainmark.analysis.device_names import fold_key, tidy
from trainmark.features.published.cells import VOCABULARY, invert, is_precision, is_rate, is_unit, parse_place
from trainmark.record.metrics import THROUGHPUTS

WORDS: dict[str, list[str]] = VOCABULARY["heads"]
"""By kind of column. A `setting` distinguishes runs, a `figure` was measured; both are kept verbatim."""
QUANTITIES = invert(VOCABULARY["quantities"])
"""What a column is about, by its kind; other columns only identify the run."""
SPREAD = ("precision_results", "count_results")
"""Columns whose header names the run of its cells: its precision, or its number of devices."""
MEASURES = {*QUANTITIES, *SPREAD, "figure", "batch", "num_devices"}
"""A table with one of these may be one of results."""
QUALITIES: dict[str, tuple[str, ...]] = {
    **{quality.name: quality.on_pages for quality in workloads.qualities() if quality.on_pages},
    "MOS": ("mos", "score(mos)"),
}
"""By the name records use; no workload here measures the last."""

_KINDS = {fold_key(word): kind for word, kind in invert(WORDS).items()}
_QUALITY_NAMES = {fold_key(word): name for name, words in QUALITIES.items() for word in words}
_GENERAL = {"", *(fold_key(word) for word in VOCABULARY["qualities"]["general"])}
_SPELT = VOCABULARY["cells"]["spelt"]
_COUNT = re.compile(rf"({'|'.join(_SPELT)}|[0-9]{{1,5}}) ?(?:x )?(?:cards?|gpus?|devices?|卡)", re.IGNORECASE)
_PER_SECOND = re.compile(r"(?:train(?:ing)?_)?([a-z]{2,20})_per_sec(?:ond)?", re.IGNORECASE)
_AIM = re.compile(r"(?:目标|target )(.+)", re.IGNORECASE)
_REACHED = re.compile(r"(?:收敛|实际|converged )(.+)", re.IGNORECASE)


def _match_words(*patterns: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(patterns)})(?![a-z])")


_LOWER = _match_words(*VOCABULARY["qualities"]["lower"])
_QUALITY = _match_words(*VOCABULARY["qualities"]["lower"], *VOCABULARY["qualities"]["higher"])
_SOFTWARE = _match_words(*WORDS["software"])


@dataclass(frozen=True, kw_only=True)
class Head:
    kind: str | None
    """A key of WORDS, one of SPREAD, or None for an unknown column."""
    word: str
    """As the page writes it, without its unit; a more exact name in brackets is preferred."""
    unit: str | None = None
    name: str | None = None
    """Name of the quality on the page, if given."""
    bracketed: bool = False
    """Whether a bracket gives the name."""
    alias: str | None = None
    """Which throughput, where the header names it: `FPS (p_train, images/s)`."""
    parts: tuple[str, ...] = ()
    """Names of the figures in one cell: `map_bbox && map_segm`."""
    separator: str = ""
    place: str = ""
    """Where its figures were measured, if given: `FPS (BI x 8)`."""
    count: int | None = None
    """Of devices, by `8 Cards`."""

    @property
    def is_software(self) -> bool:
        return self.kind == "software" or bool(_SOFTWARE.search(self.word.casefold()))


def parse_heads(cells: Sequence[str], quality_word: str | None = None) -> list[Head]:
    """Of two columns for the configuration the second is its file's."""
    found: list[Head] = []
    for cell in cells:
        head = parse_head(cell, quality_word)
        again = head.kind == "configuration" and any(one.kind == "configuration" for one in found)
        found.append(replace(head, kind="config_file") if again else head)
    return found


def parse_head(text: str, quality_word: str | None = None) -> Head:
    """Parses a column header; `quality_word` is the page's name for its quality elsewhere."""
    whole = tidy(text)
    if (known := _parse_whole_head(whole)) is not None:
        return known
    word, bracket, rest = (part.strip() for part in whole.replace("[", "(").partition("("))
    inside = rest.rstrip(")] ").strip()
    kind = _find_kind(word, quality_word)
    if kind is None and not bracket:
        # `e2e_time/s`, `mem, GiB`
        short, _, unit = (part.strip() for part in re.sub("[,;]", "/", whole).partition("/"))
        if kind := _find_kind(short, quality_word):
            word, inside = short, unit
    if kind is None:
        return _split_parts(Head(kind=None, word=whole))
    parts = [part.strip() for part in inside.split(",") if part]
    if kind in ("quality", "target") and not any(map(is_unit, parts)):
        return _parse_quality_head(kind, word, inside, whole)
    return _parse_measure_head(Head(kind=kind, word=word), parts)


def _parse_whole_head(whole: str) -> Head | None:
    """Headers whose brackets belong to the name."""
    if count := _COUNT.fullmatch(whole):
        return Head(kind="count_results", word=whole, count=_SPELT.get(count[1].casefold()) or int(count[1]))
    if is_precision(whole) and _KINDS.get(fold_key(whole)) != "fp16":
        return Head(kind="precision_results", word=whole)
    if fold_key(whole) in _KINDS:
        return Head(kind=_KINDS[fold_key(whole)], word=whole)
    if per := _PER_SECOND.fullmatch(whole):
        return Head(kind="fps", word=whole, unit=f"{per[1]}/s")
    return Head(kind="fps", word=whole, unit=whole) if is_rate(whole) else None


def _parse_quality_head(kind: str, word: str, inside: str, whole: str) -> Head:
    """`Score(MOS)`, `mAP(0.5:0.95)`, `WER (attention)`, `目标mAP精度(bbox && segm)`, `map_bbox && map_segm`."""
    if (match := _AIM.fullmatch(word) or _REACHED.fullmatch(word)) and fold_key(word) not in _KINDS:
        word = match[1].removesuffix("精度") or match[1]
    if inside and is_general(word) and (is_quality(inside) or not is_quality(word)):
        return _split_parts(Head(kind=kind, word=inside, name=inside, bracketed=True))
    if is_general(word):
        return Head(kind=kind, word=whole, name=f"{word} ({inside})" if inside else None)
    if separator := _find_separator(inside):
        parts = tuple(f"{word} {part.strip()}" for part in inside.split(separator))
        return Head(kind=kind, word=word, name=word, parts=parts, separator=separator)
    name = f"{word} ({inside})" if inside else word
    return _split_parts(Head(kind=kind, word=name, name=name))


def _parse_measure_head(found: Head, inside: Sequence[str]) -> Head:
    units = [part for part in inside if is_unit(part)]
    for part in inside:
        kind = _KINDS.get(fold_key(part))
        if kind in THROUGHPUTS:
            found = replace(found, alias=kind, word=part)
        elif kind == "steady":
            found = replace(found, kind=kind, word=part)
        elif found.kind in ("quality", "target") and part not in units:
            found = replace(found, name=part, word=part, bracketed=True)
        elif part not in units and found.kind in MEASURES and parse_place(part).topology is not None:
            found = replace(found, place=part)
    if found.kind in ("quality", "target") and found.name is None and not is_general(found.word):
        found = replace(found, name=found.word)
    return replace(found, unit=", ".join(units) or None)


def _split_parts(found: Head) -> Head:
    separator = _find_separator(found.word)
    parts = tuple(part.strip() for part in found.word.split(separator)) if separator else ()
    return replace(found, parts=parts, separator=separator)


def _find_separator(text: str) -> str:
    return next((separator for separator in ("&&", "/") if separator in text), "")


def is_quality(text: str) -> bool:
    return bool(_QUALITY.search(tidy(text).casefold()))


def is_general(word: str) -> bool:
    """Whether a word may name any quality: score, accuracy, result."""
    return _KINDS.get(fold_key(word)) in ("quality", "target") or fold_key(word) in _GENERAL


def find_direction(name: str) -> str | None:
    """Whether `higher` or `lower` is better for a quality."""
    plain = name.casefold()
    return "lower" if _LOWER.search(plain) else "higher" if _QUALITY.search(plain) else None


def find_quality_name(word: str, workload: str = "", *, sure: bool = True) -> str:
    """The name records use for a quality; the word itself where it is another.

    A word that many tasks use, such as acc, is a workload's own quality where the page is about that workload.
    """
    found = _QUALITY_NAMES.get(fold_key(word))
    if found is not None and is_general(word):
        known = workloads.facts(workload)
        return found if sure and known and known.find_quality(found) else tidy(word)
    return found or tidy(word)


def _find_kind(word: str, quality_word: str | None) -> str | None:
    key = fold_key(word)
    if not key or key in _KINDS:
        return _KINDS.get(key)
    if quality_word and key == fold_key(quality_word):
        return "quality"
    if _AIM.fullmatch(word):
        return "target"
    return "quality" if is_quality(word) or key in _QUALITY_NAMES or _REACHED.fullmatch(word) else None
