"""`trainmark run` alone: which networks it takes, and the one screen that answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from support.records import in_environment, make_quality, make_record, make_timeline

from trainmark.analysis.published_library import load_rows
from trainmark.features.first_run import run_screen, run_way
from trainmark.launch.options import RunOptions
from trainmark.platforms import standin
from trainmark.record.machine import FlopsFacts
from trainmark.record.record import Record
from trainmark.record.site import Price
from trainmark.record.store import Store


def a_run(workload: str, recipe: str = "quick", topology: str = "1x1", **changes: Any) -> Record:
    plan = {"workload": workload, "recipe_name": recipe, "topology": topology}
    timeline = make_timeline(steps=400, ranks=int(topology[2:]))
    run_id = f"{workload}-{recipe}-{topology}-0a1b2c"
    return make_record(plan=plan, group="first-run-0a1b2c", timeline=timeline, run_id=run_id, **changes)


def draw(records: list[Record], *, width: int = 80, price: Price | None = None) -> str:
    shape = {"width": width, "color": False, "encoding": "utf-8"}
    return run_screen.render(records, load_rows(), page="reports/first-run.html", price=price or Price(), **shape)  # type: ignore[arg-type]


TRAINED = a_run("gpt124m", "smoke", quality=make_quality(value=91.0, reached=True))


def test_a_cpu_gets_three_networks_for_their_speed_and_one_that_is_trained() -> None:
    legs = run_way.list_legs(RunOptions(platform="cpu"), 180.0)
    assert [(leg.workloads, leg.recipe, leg.topology) for leg in legs] == [
        (("gpt124m",), "smoke", "1x1"),
        (("resnet50",), None, "1x1"),
        (("vit",), None, "1x1"),
        (("tacotron2",), None, "1x1"),
    ]
    more = run_way.list_legs(RunOptions(platform="cpu"), 900.0)
    assert {leg.workloads[0] for leg in more} >= {"wavenet", "segmenter", "gpt124m", "llama8b"}


@pytest.mark.parametrize("devices", [2, 8])
def test_a_node_of_accelerators_trains_on_all_of_them_and_on_one_as_people_train_there(
    devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.toml").write_text(f"devices = {devices}\n", encoding="utf-8")
    monkeypatch.setenv(standin.VARIABLE, str(tmp_path / "script.toml"))
    legs = run_way.list_legs(RunOptions(platform="standin"), 180.0)
    full = [(leg.topology, leg.precision) for leg in legs if leg.recipe is None]
    assert full == [(f"1x{devices}", "amp-bf16")] * 3 + [("1x1", "amp-bf16")] * 3
    asked = run_way.list_legs(RunOptions(platform="standin", topology="1x1", precision="fp32"), 180.0)
    assert {(leg.topology, leg.precision) for leg in asked if leg.recipe is None} == {("1x1", "fp32")}


def test_the_screen_fits_a_terminal_of_80_by_24_and_says_what_to_do_next() -> None:
    published = in_environment(a_run("resnet50"), flops=FlopsFacts(per_item=24.3e9))
    text = draw([TRAINED, published, a_run("vit"), a_run("tacotron2", item="mel frames")])
    lines = text.splitlines()
    to_copy = ("Page ", "Compare ")  # a path or a command is never broken
    assert len(lines) <= 24 and max(len(line) for line in lines if not line.startswith(to_copy)) <= 80, text
    assert lines[0].startswith("AMD EPYC") and "fp32" in lines[0]
    assert "a small GPT-124M reached its target" in " ".join(text.split())
    [resnet] = [line for line in lines if line.strip().startswith("ResNet-50")]
    assert "images/s" in resnet and "±" in resnet and "days" in resnet and "A100" in resnet
    for word in ("Page ", "Better ", "Compare ", "Words ", "trainmark run --budget 15m"):
        assert word in text


def test_a_price_tells_what_a_full_training_costs() -> None:
    records = [TRAINED, a_run("resnet50")]
    assert "EUR" not in draw(records)
    assert "EUR" in draw(records, price=Price(device_hour=2.0, currency="EUR"))


def test_one_device_stands_beside_all_with_their_scaling() -> None:
    records = [TRAINED, a_run("resnet50", topology="1x8"), a_run("resnet50", topology="1x1")]
    text = draw(records, width=120)
    assert "8 devices" in text and "scaling" in text
    [resnet] = [line for line in text.splitlines() if line.strip().startswith("ResNet-50")]
    assert resnet.count("images/s") == 2 and resnet.rstrip().endswith("94 %")


def test_waiting_for_data_is_said_with_its_cost() -> None:
    slow = a_run("resnet50")
    metrics = dict(slow.metrics)
    metrics["p_whole"] = replace(metrics["p_whole"], value=0.8 * (metrics["p_core"].value or 0.0))
    assert "costs ResNet-50 20 %" in draw([TRAINED, replace(slow, metrics=metrics)])


def test_runs_of_another_command_have_their_usual_table() -> None:
    assert run_screen.shows([TRAINED])
    assert not run_screen.shows([replace(TRAINED, group=None)])
    assert not run_screen.shows([TRAINED, replace(TRAINED, group="first-run-ffffff")])


def test_show_and_report_without_a_name_show_all_runs_of_the_command(cli: Cli, environment: dict[str, str]) -> None:
    store = Store(Path(environment["TRAINMARK_STORE"]))
    for record in (TRAINED, a_run("resnet50")):
        store.add(record)
    shown = cli("show")
    assert shown.returncode == 0 and "GPT-124M (smoke)" in shown.stdout and "ResNet-50" in shown.stdout
    made = cli("report", "--format", "json")
    assert {one["plan"]["workload"] for one in json.loads(made.stdout)} == {"gpt124m", "resnet50"}


@pytest.mark.slow
def test_the_first_command_leaves_records_a_page_and_one_screen(cli: Cli, environment: dict[str, str]) -> None:
    done = cli("run", "--platform", "cpu", "--budget", "40s")
    assert done.returncode == 0, done.stderr
    assert "This machine trains real networks" in done.stdout and "first-run.html" in done.stdout
    store = Path(environment["TRAINMARK_STORE"])
    assert (store / "reports" / "first-run.html").is_file()
    groups = {json.loads(path.read_text())["group"] for path in (store / "records").glob("*.json")}
    assert len(groups) == 1 and groups.pop().startswith("first-run-")
