"""Writes runs as FlagPerf or DeepSpark pages."""

from __future__ import annotations

from trainmark.features.published import write_deepspark, write_flagperf

FORMATS = {
    "flagperf": lambda records, *, language, folders: write_flagperf.write(records, lang=language),
    "deepspark": lambda records, *, language, folders: write_deepspark.write(records, lang=language),
}
