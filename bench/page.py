"""How large a page of many runs is, and how long it takes to make, to open and to sort in a real browser.

    python bench/page.py [--runs 200] [--steps 2000]

Opening is from the request to the first picture on the screen; sorting is one press on a column's head until the next
picture. Without playwright and a browser only the page's size and the time to make it are told.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from trainmark.analysis import published_library as library
from trainmark.analysis.record_checks import check_record
from trainmark.features.report.run_page import ReportInputs, render
from trainmark.record.machine import DeviceInfo, Environment, Telemetry
from trainmark.record.metrics import Measured, measure
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.record import Evaluation, Quality, Record
from trainmark.record.timeline import RankTrace, Timeline

PAINTED = "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"
SORTED = """() => new Promise(done => {
  const began = performance.now();
  document.querySelectorAll('#summary thead button')[5].click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
})"""
FILTERED = """() => new Promise(done => {
  const began = performance.now();
  const box = document.getElementById('filter');
  box.value = box.value ? '' : '1x8';
  box.dispatchEvent(new Event('input'));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
})"""


def a_record(number: int, steps: int) -> Record:
    """One run with series as long as a real one's."""
    dice = random.Random(number)
    compute_ns = [int(3.2e8 * (1 + abs(dice.gauss(0, 0.02)))) for _ in range(steps)]
    timeline = Timeline(
        ranks=(
            RankTrace(
                rank=0,
                phases_ns={"startup": 2_300_000_000, "init": 8_000_000_000, "evaluate": 40_000_000_000},
                wait_ns=[4_000_000] * steps,
                compute_ns=compute_ns,
                items=[256] * steps,
                memory_peak_bytes=2**34,
            ),
        ),
        warmup_steps=10,
        steady_from=10,
    )
    at_s = [float(second) for second in range(600)]
    series = {
        name: {"at_s": at_s, "values": [level + dice.random() for _ in at_s]}
        for name, level in (("power_w", 380.0), ("temperature_c", 60.0), ("utilisation_percent", 96.0))
    }
    return Record(
        run_id=f"resnet50-quick-{number:06x}",
        created=f"2026-11-15T{number // 60 % 24:02}:{number % 60:02}:00Z",
        trainmark="bench",
        status="valid",
        ended="the steps asked for are done",
        plan=Plan(
            workload=("resnet50", "vit", "tacotron2")[number % 3],
            recipe_name="quick",
            recipe={"batch_per_device": 256},
            deviations=(),
            topology=("1x1", "1x8")[number % 2],
            precision="amp-bf16",
            platform="cpu",
            data=DataChoice(name="imagenet", folder="/data", synthetic=True),
        ),
        item="images",
        metrics=measure(Measured(item="images", timeline=timeline)),
        coverage="all training steps",
        quality=Quality(
            name="acc1",
            unit="%",
            goal=75.5,
            better="higher",
            value=70.0,
            history=tuple(
                Evaluation(step=step, epoch=step / 500, values={"acc1": 70 * step / steps}, samples=50_000)
                for step in range(0, steps + 1, max(1, steps // 10))
            ),
        ),
        timeline=timeline,
        loss=[7 - 5 * step / steps + dice.gauss(0, 0.1) for step in range(steps)],
        environment=Environment(device=DeviceInfo(name=f"Example {9000 + number % 7}")),
        telemetry=msgspec.convert(
            {
                "machines": [
                    {
                        "host": "host-1",
                        "first_rank": 0,
                        "sampler_cpu_s": 1.0,
                        "last_s": 600.0,
                        "samples": 600,
                        "every_s": 1.0,
                        "ended_early": False,
                        "training_s": [10.0, 590.0],
                        "unavailable": {},
                        "host_series": {},
                        "devices": [{"device": 0, "series": series}],
                    }
                ]
            },
            Telemetry,
        ),
    )


def in_a_browser(page: Path, browser: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        opened: list[float] = []
        for _ in range(5):
            view = chromium.new_page(viewport={"width": 1280, "height": 900})
            view.goto(page.as_uri(), wait_until="domcontentloaded")
            opened.append(view.evaluate(PAINTED))
            sorting = [view.evaluate(SORTED) for _ in range(5)]
            filtering = [view.evaluate(FILTERED) for _ in range(6)]
            view.close()
        chromium.close()
    for what, times in (("open", opened), ("sort", sorting), ("filter", filtering)):
        print(f"time to {what}: {statistics.median(times):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    records = tuple(a_record(number, args.steps) for number in range(args.runs))
    began = time.perf_counter()
    checks: dict[str, Any] = {record.run_id: check_record(record) for record in records}
    checked_s = time.perf_counter() - began
    html = render(ReportInputs(records=records, beside=library.load_rows(), checks=checks))
    made_s = time.perf_counter() - began
    print(f"{args.runs} runs of {args.steps} steps: {len(html.encode()) / 1e6:.2f} MB")
    print(f"time to make: {made_s:.1f} s, of that {checked_s:.1f} s for the checks")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("no browser was found: opening and sorting are not measured")
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        in_a_browser(page, browser)


if __name__ == "__main__":
    main()
