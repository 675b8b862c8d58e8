"""OpenMetrics text, read by a small strict parser."""

from __future__ import annotations

import re
from dataclasses import replace

from support.records import a_vocoder_record, make_record, make_timeline

from trainmark.features.report.output import BASE_UNITS, to_openmetrics
from trainmark.record.metrics import METRICS

NAME = r"[a-z_:][a-z0-9_:]*"
LABEL = rf'{NAME}="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})\{{((?:{LABEL},)*{LABEL})\}} (-?[0-9.]+(?:e[+-]?[0-9]+)?)")


def parse(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels; each family once, with its help, type and unit before its samples."""
    *lines, last, end = text.split("\n")
    assert (last, end) == ("# EOF", "")
    samples: dict[tuple[str, str], float] = {}
    families: dict[str, dict[str, str]] = {}
    family = ""
    for line in lines:
        if line.startswith("# "):
            _, keyword, name, said = line.split(" ", 3)
            assert keyword in ("HELP", "TYPE", "UNIT")
            assert "\\" not in said
            assert keyword == "HELP" or name == family
            assert keyword not in families.setdefault(name, {})
            families[name][keyword], family = said, name
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        assert found[1] == family
        assert families[family]["TYPE"] == "gauge"
        unit = families[family].get("UNIT", "")
        assert family.endswith(f"_{unit}") or not unit
        assert (found[1], found[2]) not in samples
        samples[found[1], found[2]] = float(found[3])
    return samples


def test_every_known_metric_is_a_gauge_in_base_units_with_its_labels() -> None:
    record = make_record(timeline=make_timeline(ranks=2), plan={"topology": "1x2"})
    found = parse(to_openmetrics([record, a_vocoder_record()]))
    labels = 'workload="resnet50",recipe="quick",topology="1x2",precision="fp32",device="AMD EPYC",host="node-a"'
    p_core = record.metrics["p_core"]
    assert found["trainmark_p_core_items_per_second", f'{labels},item="images"'] == p_core.value
    assert p_core.interval
    assert found["trainmark_p_core_low_items_per_second", f'{labels},item="images"'] == p_core.interval[0]
    assert found["trainmark_mem_bytes", labels] == 2.5 * 2**30
    assert found["trainmark_valid", labels] == 1
    assert found["trainmark_quality", f'{labels},quality="acc1",unit="%"'] == 0.3125
    names = {name for name, _ in found}
    assert {"trainmark_e2e_time_seconds", "trainmark_completed_ratio", "trainmark_doubts"} <= names
    assert {metric.unit for metric in METRICS.values()} == set(BASE_UNITS)


def test_of_repeats_the_newest_counts_and_no_label_breaks_a_line() -> None:
    hostile = 'a"b\\c\nd\x1b'
    record = make_record(device=hostile)
    later = replace(record, run_id="later", created="2026-11-16T00:00:00Z", doubts=())
    text = to_openmetrics([later, record])
    (doubts,) = [value for (name, _), value in parse(text).items() if name == "trainmark_doubts"]
    assert doubts == 0
    assert parse(to_openmetrics([])) == {}
