"""What is written of runs is read back as the same rows, in both forms and both languages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from support.records import make_plan, make_quality, make_record, make_timeline

from trainmark.analysis.device_names import tidy
from trainmark.features.published import read, report_format
from trainmark.features.published.cells import is_blank
from trainmark.features.published.report_format import make_row, round_digits, round_memory
from trainmark.record.machine import DeviceInfo, Environment, PrecisionProof
from trainmark.record.metrics import Quantity
from trainmark.record.published_row import PREFIX, PublishedRow, Source
from trainmark.record.recipe import Deviation, Limits
from trainmark.record.record import Record

BASE = make_record(timeline=make_timeline(steps=1, warmup_steps=0), loss=(), doubts=())
OWN_BATCHES = {"resnet50": 32, "vit": 256, "tacotron2": 128}
QUALITIES = {
    "resnet50": ("images", "acc1", "%", "higher"),
    "vit": ("images", "acc1", "%", "higher"),
    "tacotron2": ("mel frames", "val_loss", "-", "lower"),
    "my_model": ("tokens", "bleu", "-", "higher"),
}
PLATFORMS = ("cpu", "nvidia", "standin")
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "a|b",
    "\x1b[31mred",
    "=cmd()",
    "**N7**",
    "a\\",
    "_x_",
    "&lt;",
    "[a](b)",
    "8卡",
)

figures = st.floats(min_value=1e-3, max_value=1e9)
maybe = st.none() | figures
names = st.sampled_from(
    ("NVIDIA A100-SXM4-40GB", "BI-V100", "Xeon(R) 8370C", "AMD EPYC 7763", "N7 x8", *HOSTILE)
) | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Mn", "Me", "Mc")), min_size=1, max_size=20).filter(
    # before a blank a slash stands for no device
    lambda text: any(sign.isalnum() for sign in text) and not is_blank(text) and not tidy(text).startswith("/ ")
)


@st.composite
def runs(draw: st.DrawFn, workload: str) -> Record:
    item, name, unit, better = QUALITIES[workload]
    device = draw(names)
    batch = draw(st.sampled_from((1, 96, 256)))
    plain = draw(st.booleans()) and workload in OWN_BATCHES
    deviations = (
        Deviation(name="batch_per_device", short="bs", reference=0, actual=batch),
        Deviation(name="learning_rate", short="lr", reference=0.8, actual=draw(figures)),
    )
    plan = make_plan(
        workload=workload,
        recipe={"batch_per_device": OWN_BATCHES[workload] if plain else batch},
        deviations=() if plain else deviations,
        topology=draw(st.sampled_from(("1x1", "1x8", "2x8", "16x4"))),
        precision=draw(st.sampled_from(("fp32", "tf32", "amp-fp16", "bf16"))),
        platform=PLATFORMS[len(device) % 3],  # a device is one vendor's
        limits=draw(st.sampled_from((Limits(), Limits(steps=60)))),
    )
    ran = draw(st.none() | st.just("mixed: 60 % float16, 40 % float32, weights float32"))
    metrics = {
        alias: Quantity(value=draw(maybe), unit="", unavailable="no reason")
        for alias in ("e2e_time", "p_whole", "p_train", "p_core", "mem", "mem_total", "p_steady", "mem_steady")
    }
    return replace(
        BASE,
        plan=plan,
        item=item,
        metrics=metrics,
        quality=make_quality(
            name=name, unit=unit, better=better, goal=75.5, history=(), value=draw(st.none() | st.floats(0.001, 100))
        ),
        environment=Environment(
            device=DeviceInfo(name=device, driver=draw(names)),
            torch="2.6.0",
            precision=PrecisionProof(asked=ran, ran=ran) if ran else None,
        ),
    )


sets_of_runs = st.lists(st.sampled_from(tuple(QUALITIES)), min_size=1, max_size=3, unique=True).flatmap(
    lambda chosen: st.tuples(*(st.lists(runs(workload), min_size=1, max_size=3) for workload in chosen))
)
NOWHERE = Source(title="", address="", date=None)


def strip_row(row: PublishedRow) -> PublishedRow:
    """A row without what tells where it stands."""
    return replace(row, name="", source=NOWHERE, remark=None, line=None, framework=None, details=())


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
@given(groups=sets_of_runs)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rows_are_the_same_after_a_page_with_all_throughputs(lang: str, groups: tuple[list[Record], ...]) -> None:
    records = [record for group in groups for record in group]
    page = read.read_page(report_format.write_flagperf(records, lang=lang), name="page.md")
    assert page.unread == ()
    wanted = []
    for row in map(make_row, records):
        # what `/` stands for is not on the page
        wanted.append(replace(row, batch_per_device=None if row.fix_hp == "/" else row.batch_per_device))
    assert [strip_row(row) for row in page.rows] == [strip_row(row) for row in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
@given(groups=sets_of_runs)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rows_are_the_same_after_a_page_with_two_tables(lang: str, groups: tuple[list[Record], ...]) -> None:
    records = [record for group in groups for record in group]
    page = read.read_page(report_format.write_deepspark(records, lang=lang), name="page.md")
    assert page.unread == ()
    wanted = []
    for row in map(make_row, records):
        # such a page has no columns for these, of the changes to the recipe only the batch, and another memory
        left_out = {"e2e_time_s": None, "p_whole": None, "p_core": None, "mem_total_gib": None}
        wanted.append(replace(row, fix_hp=f"bs={row.batch_per_device}", mem_used_gib=None, **left_out))
    assert [replace(strip_row(row), mem_used_gib=None) for row in page.rows] == [strip_row(row) for row in wanted]
    for record, row in zip(records, page.rows, strict=True):
        assert row.mem_used_gib == round_memory(record.metrics["mem_steady"].value)
        steady = record.metrics["p_steady"].value
        assert [detail.value for detail in row.details if detail.name == "p_steady"] == (
            [] if steady is None else [round_digits(steady)]
        )


def test_what_is_written_keeps_the_digits_that_mean_something() -> None:
    assert [round_digits(value) for value in (5.831234, 797.2549, 11874.4, 257556.4)] == [5.8312, 797.25, 11874, 257556]


def test_names_of_rows_that_were_written_tell_the_file_they_are_read_from() -> None:
    page = read.read_page(report_format.write_flagperf([BASE], lang="en"), name="our results.md")
    assert [row.name for row in page.rows] == [f"{PREFIX}our-results-amd-epyc-resnet50-1x1-fp32-bs32"]
