"""Writes runs as FlagPerf or DeepSpark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmark.features.published import write_deepspark, write_flagperf
from trainmark.record.record import Record


def write_flagperf_page(records: Sequence[Record], *, language: str, folders: Mapping[str, Path]) -> str:
    return write_flagperf.write(records, lang=language)


def write_deepspark_page(records: Sequence[Record], *, language: str, folders: Mapping[str, Path]) -> str:
    return write_deepspark.write(records, lang=language)


FORMATS = {"flagperf": write_flagperf_page, "deepspark": write_deepspark_page}
