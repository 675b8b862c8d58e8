"""Says sentences that stand on a record, in English and with figures in them, in the reader's language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from trainmark.spec.language import Say
from trainmark.spec.record import Doubt

TEMPLATES = (
    "this is a stand-in, not a device: its speed, memory and power mean nothing",
    "synthetic data, not the real {data} set: accuracy only shows that training works",
    "synthetic data, not the real {data} set: {quality} only shows that training works",
    "too few counted steps for a 95 % interval: {steps}",
    "p_core is known to ±{half} %, not ±1 %: about {more} more steps would do",
    "p_core is known to ±{half} %, not ±1 %: a quieter machine would help",
    "global batch {batch} is below the reference recipe's {reference}",
    "this CPU has no instructions for {precision}: products are computed in float32 and rounded",
    "other programs, or other guests of the host, used {share} % of the machine meanwhile",
    "a device was slowed in {share} % of the samples: {reasons}",
    "up to {count} unreadable data files were allowed to be left out",
    "resumed at step {step}: times cover only the part after it",
    "the run did not reach its end: the numbers cover what was measured before",
    "the steady part: {steps} steps after {warmup} of warm-up",
    "all-reduce among {ranks} ranks on {hosts} host: {latency} ms for {small}, {bandwidth} GB/s for {large}",
    "all-reduce among {ranks} ranks on {hosts} hosts: {latency} ms for {small}, {bandwidth} GB/s for {large}",
    "interrupted before the first step",
    "the run was ended by {signal}",
)
"""As `spec/doubts.py`, `spec/record.py`, `spec/links.py` and whoever ends a run write them; the first that fits counts.
What is not among them is said as it stands."""


MOST_LETTERS = 400
"""No sentence of ours is longer, and a hostile one would take long to be matched."""


def retold(text: str, say: Say) -> str:
    """The sentence in the reader's language, its figures as they are."""
    for template in TEMPLATES if len(text) <= MOST_LETTERS else ():
        if found := _pattern(template).fullmatch(text):
            return say(template).format(**found.groupdict())
    return say(text)


def told_doubt(doubt: Doubt, say: Say, meanings: Mapping[str, str]) -> str:
    """A doubt once: its own words in the reader's language, else what its code means there, else as it stands."""
    told = retold(doubt.text, say)
    return meanings.get(doubt.code, told) if told == doubt.text else told


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile("".join(f"(?P<{part}>.+?)" if index % 2 else re.escape(part) for index, part in enumerate(parts)))
