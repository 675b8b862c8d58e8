"""The page in a real browser: it renders, sorts, filters, plays, and asks nobody outside for anything."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import shown
from support.fleets import TWO_SLOW, fleet_records, pair_links
from support.records import make_record, renamed
from support.site_folders import imported_page, many_rows

from trainmark.analysis import published_library as library
from trainmark.features.fleet import verdict as fleet_verdict, view as fleet_view
from trainmark.features.fleet.hosts import FleetRuns, HostRuns, PairsDone, group_by_host
from trainmark.features.report.header import draw_card
from trainmark.features.report.run_page import ReportInputs, render
from trainmark.features.report.trend import compute_trends
from trainmark.features.site import contents
from trainmark.features.site.build import build
from trainmark.record.audit import conclude, doubtful, mark_unchecked, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.machine import Artifact
from trainmark.record.record import Doubt, Record

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip

HOSTILE = (
    "<img src=x onerror=window.harmed=1>",
    '"><script>window.harmed=1</script>',
    "</style><script>window.harmed=1</script>",
    "a|b|c",
    "\x1b[31mred\x1b[0m",
    "=cmd|' /C calc'!A0",
    "\u202eevil",
    "'; window.harmed=1; '",
    "long" * 2000,
    "{0.__class__}",
)

SCREEN = {"width": 1280, "height": 900}
WIDE_SCREEN = {"width": 1320, "height": 900}

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a file, or a page that it writes; in the end nothing may have been complained of and nobody asked."""
    trouble: list[str] = []
    tabs = []

    def note_request(request: Any) -> None:
        if not request.url.startswith(("file://", "data:")):
            trouble.append(f"asked for {request.url}")

    def open_page(shown: str | Path, viewport: dict[str, int] = SCREEN, color_scheme: str = "light") -> Any:
        file = shown if isinstance(shown, Path) else tmp_path / f"page{len(tabs)}.html"
        if isinstance(shown, str):
            file.write_text(shown, encoding="utf-8")
        page = browser.new_page(viewport=viewport, color_scheme=color_scheme)
        page.on("request", note_request)
        page.on("console", lambda message: trouble.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.goto(file.as_uri())
        tabs.append(page)
        return page

    yield open_page
    for page in tabs:
        page.close()
    assert trouble == []


@cache
def make_records() -> tuple[Record, ...]:
    return (
        shown.resnet("20261115-205100-resnet50-a1b2", steps=300),
        shown.resnet("20261115-213000-resnet50-a1b8", "1x2", steps=300),
        shown.a_voice(),
        shown.on_a_laptop(),
        shown.cut_off(),
    )


def run_checks(*records: Record) -> dict[str, tuple[CheckResult, ...]]:
    finding = doubtful("1.2, then 1.3", "The loss rose.", "the rate")
    return {
        record.run_id: (
            conclude("sum", "phases sum to e2e_time", (), "run"),
            conclude("loss", "the loss falls", (finding,), "run"),
            mark_unchecked("power", "power is its samples", "nothing was sampled"),
        )
        for record in records
    }


def draw_all(page: Any) -> None:
    """Also what lies below the screen, which a browser leaves until it is scrolled to."""
    page.eval_on_selector_all(".run", "runs => runs.forEach(run => { run.style.contentVisibility = 'visible'; })")


def read_column(page: Any, number: int) -> list[str]:
    return page.eval_on_selector_all(
        f"#summary tbody tr:not([hidden]) > :nth-child({number})",
        "cells => cells.map(cell => cell.firstChild.textContent.trim())",
    )


def test_every_part_is_on_the_page(opened: Open, tmp_path: Path) -> None:
    records = (*make_records(), shown.vit_filled())
    folder = shown.leave_files(tmp_path / "run")
    page = opened(
        render(
            ReportInputs(
                records=records,
                beside=library.load_rows(),
                checks=run_checks(*records),
                folders={records[2].run_id: folder},
            )
        )
    )
    draw_all(page)
    text = page.inner_text("body")
    for words in (
        "6 training runs",
        "Your machine beside published ones",
        "Scaling",
        "ResNet-50 trains at 7",
        "Where the time went",
        "Can this be trusted?",
        "The loss rose.",
        "could not be checked",
        "target missed: acc 74.61 %",
        "Step time",
        "Training loss",
        "target ≥ 75.5 %",
        "Power",
        "Unavailable",
        "the kernel lets only root read it",
        "Ranks",
        "159 convolutions in bfloat16",
        "Largest useful batch",
        "ViT-B/16 did not finish on Example 9000: rank 3 on node-b was killed",
        "mfu 621 % of the fp32 peak",
    ):
        assert words in text, words
    assert page.locator("section.run").count() == len(records)


def test_the_summary_sorts_by_mouse_and_by_keyboard_and_says_so(opened: Open) -> None:
    unknown = make_record(run_id="unknown-0000", device="Example Laptop 8", metrics={})
    page = opened(render(ReportInputs(records=(unknown, *make_records()))))
    head = page.locator("#summary thead th", has_text="p_core")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert read_column(page, 3)[0] == "35 187"
    assert read_column(page, 3)[-2:] == ["4.36", "—"], "what is not known stays last whichever way is sorted"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert (read_column(page, 3)[0], read_column(page, 3)[-1]) == ("4.36", "—")
    page.locator("#summary thead th", has_text="Machine").locator("button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert read_column(page, 4)[-2:] == ["Example Laptop 7", "Example Laptop 8"]


def test_the_summary_filters_by_words_and_by_chips_and_counts(opened: Open) -> None:
    page = opened(render(ReportInputs(records=make_records())))
    page.fill("#filter", "laptop")
    assert read_column(page, 4) == ["Example Laptop 7"]
    assert page.inner_text("#count") == "1 of 5 shown"
    assert page.locator("section.run:visible").count() == 1
    page.fill("#filter", "")
    page.click(".chip >> text=Tacotron2")
    assert read_column(page, 2) == ["Tacotron2"]
    page.click(".chip >> text=ViT-B/16")
    assert sorted(read_column(page, 2)) == ["Tacotron2", "ViT-B/16"]
    page.click(".chip >> text=incomplete")
    assert read_column(page, 2) == ["ViT-B/16"]


def test_a_chart_tells_its_values_to_the_mouse_and_to_the_keyboard(opened: Open) -> None:
    record = shown.resnet("20261115-205100-resnet50-a1b2", steps=300)
    page = opened(render(ReportInputs(records=(record,))))
    chart = page.locator(".chart").first
    chart.scroll_into_view_if_needed()
    chart.hover()
    assert re.match(r"step \d+\nstep time: 0\.3\d+ s", page.inner_text("#tip"))
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()
    chart.focus()
    page.keyboard.press("End")
    last_s = (record.timeline.slowest.wait_ns[-1] + record.timeline.slowest.compute_ns[-1]) / 1e9
    said = page.inner_text("#tip")
    assert said.startswith("step 300\n")
    assert float(said.split(": ")[1].split()[0]) == pytest.approx(last_s, rel=1e-3)
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_a_trend_tells_each_run_with_its_day_and_revision(opened: Open) -> None:
    first = shown.on_a_laptop()
    runs = tuple(renamed(first, f"run-{day}", f"2026-11-{day}T08:00:00Z", revision=f"{day}c0ffee") for day in (11, 12))
    page = opened(render(ReportInputs(records=runs, trends=tuple(compute_trends(runs)))))
    page.locator(".growth .chart").first.focus()
    for key, said in (("Home", "2026-11-11 08:00 · 11c0ffee · 11 · p_core"), ("End", "2026-11-12 08:00 · 12c0ffee")):
        page.keyboard.press(key)
        assert page.inner_text("#tip").startswith(said)


def test_a_published_dot_tells_its_page_when_it_is_focused(opened: Open) -> None:
    page = opened(render(ReportInputs(records=make_records()[:1], beside=library.load_rows("resnet50"))))
    page.locator(".dots a:has(circle.other)").first.focus()
    assert "images/s per device" in page.inner_text("#tip")
    assert "FlagPerf" in page.inner_text("#tip") or "NVIDIA" in page.inner_text("#tip")


def test_light_and_dark_follow_the_system_and_the_button(opened: Open) -> None:
    html = render(ReportInputs(records=make_records()[:1]))
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = opened(html, color_scheme="dark")
    light = opened(html, color_scheme="light")
    at_night, by_day = dark.evaluate(ground), light.evaluate(ground)
    assert at_night != by_day
    light.click("#theme")
    assert light.evaluate(ground) == at_night
    light.click("#theme")
    assert light.evaluate(ground) == by_day


def test_the_sample_can_be_played_and_its_picture_is_seen(opened: Open, tmp_path: Path) -> None:
    record = shown.a_voice()
    folder = shown.leave_files(tmp_path / "run")
    page = opened(render(ReportInputs(records=(record,), folders={record.run_id: folder})))
    page.locator("audio").evaluate(
        "audio => audio.readyState || new Promise(ready => audio.addEventListener('loadedmetadata', () => ready()))"
    )
    assert page.evaluate("document.querySelector('audio').duration") == pytest.approx(1.0, abs=0.01)
    picture = page.locator("img")
    picture.scroll_into_view_if_needed()
    picture.evaluate("image => image.decode()")
    assert picture.evaluate("image => image.naturalWidth") == 640
    assert "attention" in (picture.get_attribute("alt") or "")


def test_at_a_usual_width_no_setting_is_broken_and_no_chip_is_cut(opened: Open) -> None:
    changed = make_record(plan={"recipe": {"target": 90.0, "learning_rate": 0.003125, "epochs": 14}})
    records = (*make_records(), renamed(changed, "20261115-220000-resnet50-c3d4"))
    page = opened(
        render(ReportInputs(records=records, checks=run_checks(*records))), viewport={"width": 1300, "height": 900}
    )
    lines = page.eval_on_selector_all(".whole", "all => all.map(one => one.getClientRects().length)")
    assert lines and set(lines) == {1}
    edge = page.eval_on_selector(".summary .scroll", "box => box.getBoundingClientRect().right")
    chips = page.eval_on_selector_all(
        "#summary td:last-child span", "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert chips and max(chips) <= edge


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_harmless(opened: Open, text: str) -> None:
    record = make_record(
        run_id=text,
        device=text,
        ended=text,
        item=text,
        coverage=text,
        plan={"workload": text, "recipe_name": text, "precision": text, "platform": text},
        doubts=(Doubt(code=text, text=text),),
        artifacts=(Artifact(file=text, caption=text),),
        environment={"device": {"name": text}, text: {text: text}},
        telemetry={"machines": [{**shown.telemetry()["machines"][0], "host": text, "unavailable": {text: text}}]},
    )
    finding = wrong(text, text, text, text)
    checked = (
        conclude(text, text, (finding,), "run"),
        mark_unchecked(text, text, text),
    )
    page = opened(render(ReportInputs(records=(record, renamed(record, "other")), checks={text: checked}, made=text)))
    assert page.evaluate("window.harmed") is None
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    assert "\u202e" not in page.inner_text("body")
    assert "\x1b" not in page.inner_text("body")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.fill("#filter", "other")
    assert page.locator("#summary tbody tr:visible").count() == 1


def test_the_policy_lets_no_other_script_or_address_in(browser: Any, tmp_path: Path) -> None:
    """Not through `opened`: this page is meant to complain."""
    html = render(ReportInputs(records=make_records()[:1])).replace(
        "</body>", "<script>window.harmed=1</script><img src='https://example.org/x.png'></body>"
    )
    file = tmp_path / "page.html"
    file.write_text(html, encoding="utf-8")
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(file.as_uri())
    assert page.evaluate("window.harmed") is None
    assert sum("Content Security Policy" in text for text in said) == 2
    page.close()


def test_the_page_can_be_read_without_seeing_it(opened: Open) -> None:
    records = make_records()
    page = opened(render(ReportInputs(records=records, rows=library.load_rows("vit"), beside=library.load_rows())))
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    unnamed = "elements => elements.filter(e => !(e.getAttribute('aria-label') || e.getAttribute('alt'))).length"
    assert page.eval_on_selector_all("[role=img], img", unnamed) == 0
    assert page.eval_on_selector_all("th", "heads => heads.filter(head => !head.scope).length") == 0
    assert (
        page.eval_on_selector_all("svg.strip:not([aria-hidden]) circle[tabindex]:not([aria-label])", "e => e.length")
        == 0
    )
    labels = "boxes => boxes.every(box => box.labels.length > 0)"
    assert page.eval_on_selector_all("input", labels)
    assert page.eval_on_selector_all("button", "buttons => buttons.every(button => button.textContent.trim())")
    charts = page.locator("figure:has(.chart)").count()
    assert page.locator("figure:has(.chart) details.data table").count() == charts > 5
    twice = "elements => elements.length - new Set(elements.map(e => e.id)).size"
    assert page.eval_on_selector_all("[id]", twice) == 0


def test_hostile_names_in_folded_runs_are_harmless_before_and_after_they_are_opened(opened: Open) -> None:
    text = "</script><script>window.harmed=1</script><!--<script><img src=x onerror=window.harmed=1>"
    record = make_record(
        device=text,
        ended=text,
        doubts=(Doubt(code=text, text=text),),
        environment={text: text, "device": {"name": text}},
    )
    records = tuple(renamed(record, f"{text}{index}") for index in range(20))
    page = opened(render(ReportInputs(records=records)))
    page.locator("#run-3 summary").first.click()
    page.wait_for_selector("#run-3 .waterfall")
    assert page.evaluate("window.harmed") is None
    assert page.locator("script:not(.later)").count() == 1
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_no_part_is_wider_than_the_screen(opened: Open, width: int) -> None:
    html = render(ReportInputs(records=make_records(), rows=library.load_rows(), beside=library.load_rows()))
    page = opened(html, viewport={"width": width, "height": 900})
    draw_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    speed = "cells => Math.max(...cells.map(cell => cell.getBoundingClientRect().right))"
    assert page.eval_on_selector_all("#summary tbody td:nth-child(3)", speed) <= width


def test_it_prints_in_light_on_pages(opened: Open) -> None:
    page = opened(render(ReportInputs(records=make_records()[:2])), color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#theme").is_hidden()
    assert page.locator(".fold").count() == page.locator(".fold:not([open])").count() > 0
    assert page.locator(".fold:visible").count() == 0
    assert page.pdf()[:5] == b"%PDF-"


def test_a_page_of_many_runs_is_folded_and_opens_where_it_is_led_to(opened: Open) -> None:
    first = shown.on_a_laptop()
    records = tuple(renamed(first, f"run-of-many-{index:04}") for index in range(40))
    page = opened(render(ReportInputs(records=records)))
    assert page.locator("section.run details.run-fold[open]").count() == 0
    page.click("#summary tbody tr:nth-child(7) a")
    page.wait_for_selector("#run-7 .waterfall")
    assert "Where the time went" in (page.text_content("#run-7") or "")  # scrolling there may not have ended
    chart = page.locator("#run-7 .chart").first
    chart.scroll_into_view_if_needed()
    chart.hover()
    assert page.inner_text("#tip").startswith("step ")
    page.locator("#run-8 summary").first.click()
    page.wait_for_selector("#run-8 .waterfall")


# A site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 rows of one workload and two runs of it, beside the library."""
    folder = tmp_path_factory.mktemp("results")
    imported_page(folder, many_rows(500))
    for record in make_records()[:2]:
        (folder / f"{record.run_id}.json").write_text(record.dumps(), encoding="utf-8")
    build(contents.find_contents(folder), folder.parent / "public", made="2026-11-17")
    return folder.parent / "public"


def test_five_hundred_rows_of_a_site_sort_and_filter(opened: Open, site: Path) -> None:
    page = opened(site / "resnet50.html", WIDE_SCREEN)
    rows = page.locator("#summary tbody tr")
    everything = rows.count()
    assert everything > 500
    rates = [
        float(text.replace("\u202f", "").replace("\xa0", "").replace(" ", ""))
        for text in read_column(page, 4)
        if text != "—"
    ]
    assert rates == sorted(rates, reverse=True), "the fastest device first"
    page.get_by_role("button", name="Per device").click()
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Per device")
    page.fill("#filter", "card 3 bf16")
    shown_now = page.locator("#summary tbody tr:not([hidden])")
    assert 0 < shown_now.count() < 100
    assert page.inner_text("#count") == f"{shown_now.count()} of {everything} shown"
    page.fill("#filter", "")
    page.get_by_role("button", name="lumen", exact=True).click()
    assert shown_now.count() == 250
    page.get_by_role("button", name="amp", exact=True).click()
    assert 0 < shown_now.count() < 250
    assert set(
        page.eval_on_selector_all("#summary tbody tr:not([hidden])", "rows => rows.map(r => r.dataset.vendor)")
    ) == {"lumen"}


def test_a_site_leads_from_a_workload_to_a_run_and_back(opened: Open, site: Path) -> None:
    page = opened(site / "index.html", WIDE_SCREEN)
    page.locator(".tile a", has_text="ResNet-50").click()
    assert page.inner_text("h1") == "ResNet-50"
    page.locator("#summary a", has_text="a1b2").first.click()
    page.wait_for_selector(".run")
    assert "/runs/" in page.url
    page.get_by_role("link", name="All results").click()
    assert page.url.endswith("/resnet50.html")


def test_a_verdict_tells_why_and_leads_to_the_finding(opened: Open, site: Path) -> None:
    page = opened(site / "vit.html", WIDE_SCREEN)
    chip = page.locator("#summary a.severity").first
    chip.hover()
    assert page.locator("#tip").inner_text()
    chip.click()
    target = page.url.partition("#")[2]
    assert page.locator(f".found li#{target} ul li").count() >= 1


@pytest.mark.parametrize("view", [{"viewport": {"width": 390, "height": 844}}, {"color_scheme": "dark"}])
def test_a_site_fits_a_telephone_and_the_dark(opened: Open, site: Path, view: dict[str, Any]) -> None:
    for name in ("index.html", "resnet50.html"):
        page = opened(site / name, **{"viewport": WIDE_SCREEN, **view})
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        dark = page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
        assert dark == ("color_scheme" in view)
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == ("light" if dark else "dark")


def test_the_page_of_a_fleet_shows_hosts_and_cables_and_sorts(opened: Open) -> None:
    hostile = {**TWO_SLOW, HOSTILE[0]: 0.7}
    hosts = [*group_by_host(fleet_records(hostile)), HostRuns(host="gone", failed=HOSTILE[1])]
    links = PairsDone(hosts=tuple(hostile), pairs=tuple(pair_links(len(hostile), thin={5: 4.0})))
    fleet = fleet_verdict.judge(FleetRuns(hosts=hosts, links=links))
    page = opened(fleet_view.render_page(fleet, language="en", trainmark="0.1.0", made="2026-11-17"))
    text = page.inner_text("body")
    assert "not accepted; failed hosts: 1; slow hosts: 3; slow cables: 1; judged hosts: 12" in text
    page.locator("#summary thead button").nth(0).click()
    assert read_column(page, 1)[-1] == "node09"
    page.locator("#summary thead button").nth(3).click()
    assert read_column(page, 1)[0] == "node04"
    assert page.evaluate("window.harmed") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


NOTEBOOK = """
.jp-RenderedHTMLCommon { width: 900px; font: 13px sans-serif }
.jp-RenderedHTMLCommon h2 { font-size: 40px }
.jp-RenderedHTMLCommon dl { display: block }
.jp-RenderedHTMLCommon dt { float: left; width: 20%; clear: left }
.jp-RenderedHTMLCommon dd { margin-left: 40% }
.jp-RenderedHTMLCommon table { table-layout: fixed; width: 20px; font-size: 6px }
"""
"""The kind of rules by which JupyterLab and VS Code lay out what a cell shows."""


def test_the_card_of_a_notebook_keeps_each_number_at_its_label(opened: Open) -> None:
    card = draw_card(make_records()[0])
    page = opened(f"<!doctype html><style>{NOTEBOOK}</style><body><div class=jp-RenderedHTMLCommon>{card}</div></body>")
    frame = page.frame_locator("iframe")
    figures = frame.locator(".figures > div")
    assert figures.count() >= 6
    for place in range(figures.count()):
        label, value = (figures.nth(place).locator(word).bounding_box() for word in ("dt", "dd.value"))
        assert abs(label["x"] - value["x"]) < 2 and 0 < value["y"] - label["y"] < 40
    assert frame.locator("h2").evaluate("head => getComputedStyle(head).fontSize") != "40px"
