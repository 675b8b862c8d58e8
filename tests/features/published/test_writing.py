from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.records import (
    a_vocoder_record,
    doubt,
    in_environment,
    make_plan,
    make_quality,
    make_record,
    make_timeline,
    renamed,
)

from trainmark.features.published import audit, markdown, read, report_format
from trainmark.features.published.report_format import format_command
from trainmark.launch.options import RunOptions
from trainmark.launch.planning import make_plan as make_plan_of
from trainmark.record.machine import FlopsFacts
from trainmark.record.metrics import Quantity
from trainmark.record.plan import DataChoice
from trainmark.record.recipe import Limits
from trainmark.record.record import Doubt, Evaluation, Quality, Record, describe_coverage
from trainmark.view import published_table


def line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def with_metrics(record: Record, **values: float | None) -> Record:
    changed = {alias: Quantity(value=value, unit="", unavailable="no sensor") for alias, value in values.items()}
    return replace(record, metrics={**record.metrics, **changed})


def test_a_full_run_is_written_as_the_published_tables_write_it() -> None:
    record = with_metrics(
        a_vocoder_record(), e2e_time=10719.4, p_whole=257556.2, p_train=265661, p_core=280476, mem=37.51
    )
    text = report_format.write_flagperf([record], lang="zh")
    assert line(text, "| 配置") == (
        "| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | val_loss | mem |"
    )
    assert line(text, "| A100单机单卡") == (
        "| A100单机单卡（1x1） | tf32 | / | 10719 | 257556 | 265661 | 280476 | 0.4774 | 37.5/16.0 |"
    )
    assert "| 总吞吐量 | p_whole,见“性能指标” | 单位为mel frames/s；含评估与数据等待 |" in text
    assert "    - 加速卡型号: A100-SXM4-40GB" in text
    assert "    - 训练框架版本: pytorch-2.6.0" in text
    assert "| 训练结果 | val_loss,见“性能指标” | 目标 ≤ 0.4852 |" in text


def test_a_run_that_was_cut_short_has_neither_time_nor_quality() -> None:
    row = cells(line(report_format.write_flagperf([make_record()], lang="en"), "| AMD EPYC"))
    assert row[0] == "AMD EPYC 1 node, 1 device (1x1)"
    assert (row[3], row[7]) == ("/", "/")
    full = make_record(plan={"limits": Limits()})
    row = cells(line(report_format.write_flagperf([full], lang="en"), "| AMD EPYC"))
    assert (row[3], row[7]) == ("359.26", "0.3125%")


def test_two_machines_are_named_so_that_readers_know_them() -> None:
    record = make_record(plan={"topology": "2x8", "platform": "nvidia"}, device="NVIDIA A100-SXM4-40GB")
    assert "| A100两机8卡（2x8） |" in report_format.write_flagperf([record], lang="zh")
    assert "| A100 2 nodes, 8 devices (2x8) |" in report_format.write_flagperf([record], lang="en")


def test_devices_with_one_short_name_are_written_in_full() -> None:
    records = [make_record(plan={"platform": "nvidia"}, device=f"NVIDIA A100-SXM4-{size}GB") for size in (40, 80)]
    text = report_format.write_flagperf(records, lang="zh")
    assert "| A100-SXM4-40GB单机单卡（1x1） |" in text
    assert [row.device for row in read.read_page(text, name="a.md").rows] == ["A100-SXM4-40GB", "A100-SXM4-80GB"]


def test_the_environment_is_what_was_collected_and_what_was_not_is_said() -> None:
    environment = {
        "device": {"name": "N7", "driver": "DRV 5.1"},
        "cpu": {"name": "Example CPU", "logical_cores": 64},
        "os": "Linux 6.1.0",
        "distribution": "Example OS 12",
        "machine": "Example Server 4U",
        "torch": "2.6.0",
        "python": "3.11.7",
        "link": [{"bytes": 4096, "median_s": 2e-5, "bus_gigabytes_per_s": 0.2}],
    }
    text = report_format.write_flagperf([make_record(environment=environment)], lang="en")
    for piece in (
        "Accelerator model: N7",
        "CPU model: Example CPU, 64 logical cores",
        "Machine model: Example Server 4U",
        "OS version: Example OS 12",
        "OS kernel version: Linux 6.1.0",
        "Docker version: /",
        "Driver of the device: DRV 5.1",
        "Framework: pytorch-2.6.0",
        "Other software: python 3.11.7",
        "Network between nodes, measured: all-reduce among 1 ranks on 1 host",
    ):
        assert f"    - {piece}" in text
    bare = report_format.write_flagperf([make_record(environment={})], lang="en")
    assert "    - CPU model: /" in bare


def test_what_the_maintainers_of_such_pages_ask_for_is_on_the_page() -> None:
    text = report_format.write_flagperf([make_record()], lang="zh")
    assert text.startswith("### 数据集\nimagenet（合成数据，不是真实数据集）：由 `trainmark data make imagenet` 生成\n")
    for piece in ("    - 机器型号: /", "    - OS版本: /", "    - OS kernel版本: ", "    - Docker 版本: /"):
        assert piece in text
    assert "| 额外修改项 | 无 |  |" in text
    assert "| **计算吞吐量** | **p_core,见“性能指标”** |" in text


def test_the_column_of_the_quality_has_the_word_that_pages_of_the_model_use() -> None:
    vit = report_format.write_flagperf([make_record(plan={"workload": "vit"})], lang="zh")
    assert "| p_core | final_acc1 | mem |" in vit and "| 训练结果 | final_acc1,见“性能指标” |" in vit
    assert "| p_core | acc | mem |" in report_format.write_flagperf([make_record()], lang="zh")


def test_one_machine_is_described_once_with_what_each_run_measured_of_its_links() -> None:
    def linked(topology: str, ranks: int, bus: float) -> Record:
        link = [{"bytes": size, "median_s": 2e-3, "bus_gigabytes_per_s": bus} for size in (4096, 2**26)]
        record = make_record(plan={"topology": topology}, timeline=make_timeline(ranks=ranks))
        return renamed(in_environment(record, link=link), topology)

    text = report_format.write_flagperf([make_record(), linked("1x2", 2, 3.0), linked("1x4", 4, 2.0)], lang="zh")
    assert text.count("- ##### 硬件环境") == text.count("CPU型号") == 1
    assert "1 台主机上 2 个进程之间的 all-reduce：4 KiB 用时 2.0 ms，64 MiB 带宽 3.0 GB/s；1 台主机上 4 个进程" in text


@pytest.mark.parametrize("write", [report_format.write_flagperf, report_format.write_deepspark])
def test_doubts_and_reasons_stand_below_the_table_with_the_rows_they_are_about(write: Any) -> None:
    doubtful = make_record(doubts=(Doubt(code="x", text="loss | rose"),))
    sure = with_metrics(renamed(make_record(doubts=()), "other"), mem=None, p_train=None)
    text = write([sure, doubtful], lang="en")
    assert ". row 2: loss \\| rose" in text
    missing = "p_train, mem" if write is report_format.write_flagperf else "p_train"
    assert f". row 1: no {missing}: no sensor" in text
    assert ". rows 1, 2: throughputs cover the steady part" in text
    assert "第 2 行" in write([sure, doubtful], lang="zh")


def test_a_precision_that_did_not_run_is_not_the_one_that_is_written() -> None:
    record = make_record(plan={"precision": "fp32"})
    record = in_environment(record, precision={"asked": "fp32", "ran": "tf32"})
    text = report_format.write_flagperf([record], lang="en")
    assert cells(line(text, "| AMD EPYC"))[1] == "tf32"
    assert "fp32 was requested, tf32 ran" in text


def deepspark_run(run_id: str, topology: str, p_steady: float, group: str | None = None, quality: float = 77) -> Record:
    """On the stand-in, with the means its sensors came to."""
    record = make_record(
        plan={"topology": topology, "recipe": {"batch_per_device": 32}, "platform": "standin", "limits": Limits()},
        device="stand-in card",
        group=group,
        quality=make_quality(value=quality, reached=quality >= 75.5, history=()),
    )
    return renamed(with_metrics(record, p_steady=p_steady, power_steady=128.04, mem_steady=18.4, mem=11), run_id)


def deepspark_rows(records: list[Record], lang: str = "en") -> list[list[str]]:
    text = report_format.write_deepspark(records, lang=lang)
    return [cells(row) for row in text.splitlines() if row.startswith("| acc≥75.5%")]


def test_the_six_columns_are_deepspark_s() -> None:
    records = [deepspark_run("a", "1x1", 100), deepspark_run("b", "1x8", 780), deepspark_run("c", "2x8", 1520)]
    text = report_format.write_deepspark(records, lang="en")
    assert cells(line(text, "| Convergence criteria"))[2:] == [
        "Performance (p_steady, images/s)",
        "Accuracy (acc, %)",
        "Power (W)",
        "Scalability",
        "Memory utilization (GiB)",
        "Stability",
    ]
    rows = deepspark_rows(records)
    assert [row[2] for row in rows] == ["100", "780", "1520"]
    assert [row[4] for row in rows] == ["128.04\\*1", "128.04\\*8", "128.04\\*16"]
    assert [row[5] for row in rows] == ["-", "0.975 (card)", "0.95 (card)"]
    assert [row[6] for row in rows] == ["18.4\\*1", "18.4\\*8", "18.4\\*16"], (
        "the tool's mean, not the allocator's peak"
    )
    assert [row[7] for row in rows] == ["-", "-", "-"]
    assert rows[1][1] == "trainmark 0.1.0,bs:32/device,8x,fp32"
    shared = [in_environment(record, device={"name": "AMD EPYC", "type": "cpu"}) for record in records]
    assert [row[6] for row in deepspark_rows(shared)] == ["18.4\\*1", "18.4\\*1", "18.4\\*2"], "ranks share a node's"
    assert "standin" in text and "--platform standin --steps" not in text


def test_without_a_single_card_scalability_is_that_of_nodes() -> None:
    rows = deepspark_rows([deepspark_run("b", "1x8", 780), deepspark_run("c", "2x8", 1521)])
    assert [row[5] for row in rows] == ["-", "0.975 (node)"]
    assert (
        deepspark_rows([deepspark_run("b", "1x8", 780), deepspark_run("c", "2x8", 1521)], "zh")[1][5] == "0.975 (节点)"
    )


def test_five_repeats_that_reached_the_target_are_one_row_with_a_stability() -> None:
    published = (77.36, 76.816, 77.116, 76.96, 77.01)  # DeepSpark's own example, whose stability is 1
    records = [deepspark_run(f"r{number}", "1x8", 780, "g", value) for number, value in enumerate(published)]
    (row,) = deepspark_rows(records)
    assert (row[3], row[7]) == ("77.01", "1"), "the median's"
    text = report_format.write_deepspark(records, lang="en")
    assert "Row 1 is the repeat with the median quality of 77.36 % / 76.82 % / 77.12 % / 76.96 % / 77.01 %." in text
    assert "--topology 1x8 --precision fp32 --platform standin --repeat 5" in text
    far = [*records[:3], deepspark_run("r3", "1x8", 780, "g", 75.9), deepspark_run("r4", "1x8", 780, "g", 78.2)]
    assert deepspark_rows(far)[0][7] == "0.6"
    assert deepspark_rows(records[:4])[0][7] == "-", "four are too few"
    missed = [*records[:4], deepspark_run("r4", "1x8", 780, "g", 75.4)]
    assert deepspark_rows(missed)[0][7] == "-", "one of the five missed the target"


def test_a_deepspark_page_is_whole() -> None:
    record = in_environment(
        a_vocoder_record(), torch="2.6.0+cu124", device={"name": "NVIDIA A100-SXM4-40GB", "driver": "550.54"}
    )
    record = replace(record, plan=replace(record.plan, recipe_name="reference"))
    text = report_format.write_deepspark([record], lang="en")
    heads = [row for row in text.splitlines() if row.startswith("#")]
    assert heads == [
        "# Tacotron2",
        "## Model Description",
        "## Supported Environments",
        "## Model Preparation",
        "### Prepare Resources",
        "### Install Dependencies",
        "## Model Training",
        "## Model Results",
        "## References",
    ]
    assert "| GPU | Vendor | SDK | Release | Driver | Framework | System |" in text
    assert "| A100-SXM4-40GB | nvidia | cu124 | trainmark 0.1.0 | 550.54 | pytorch-2.6.0+cu124 | - |" in text
    assert (
        "trainmark run tacotron2 --recipe reference --topology 1x1 --precision tf32 --platform nvidia --data DATA"
        in text
    )
    assert [row for row in report_format.write_deepspark([record], lang="zh").splitlines() if row.startswith("#")][
        1
    ] == "## 模型介绍"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("write", [report_format.write_flagperf, report_format.write_deepspark])
def test_our_own_page_of_synthetic_data_is_read_as_such_and_not_accused(write: Any, lang: str) -> None:
    record = with_metrics(make_record(plan={"limits": Limits()}), mem=0.0439)
    page = read.read_page(write([record], lang=lang), name="page.md")
    (row,) = page.rows
    assert row.is_synthetic and row.remark == "synthetic data"
    assert "epochs" not in [finding.name for check in audit.audit(page).checks for finding in check.findings]
    if write is report_format.write_flagperf:
        shown = published_table.render(page.rows, width=200)
        assert "0.0439/16.0" in shown and "Page 1: synthetic data." in shown
    real = make_record(plan={"data": DataChoice(name="imagenet", folder="/data", synthetic=False)}, doubts=())
    assert not read.read_page(write([real], lang=lang), name="page.md").rows[0].is_synthetic


def test_what_a_page_tells_to_run_is_what_ran() -> None:
    plan = make_plan(recipe={"target": 0.5, "channels_last": True}, limits=Limits(steps=60))
    assert format_command(plan, repeat=5) == (
        "trainmark run resnet50 --recipe quick --set batch_per_device=32 --set learning_rate=0.1 --set target=0.5 "
        "--set channels_last=yes --topology 1x1 --precision fp32 --platform cpu --steps 60 --repeat 5"
    )
    assert "--recipe reference --set batch_per_device=32" in format_command(replace(plan, recipe_name="of-before"))
    hostile = replace(plan, workload="a; rm -rf b", deviations=())
    assert "'a; rm -rf b'" in format_command(hostile)


@pytest.mark.parametrize(("recipe", "platform"), [("smoke", "cpu"), ("quick", "standin"), ("mlperf", "standin")])
def test_the_command_is_the_recipe_that_was_typed_and_what_was_set(recipe: str, platform: str) -> None:
    options = RunOptions(recipe=recipe, platform=platform, topology="1x2", precision="fp32", settings=["momentum=0.8"])
    plan = replace(make_plan_of("resnet50", options), limits=Limits())
    device_type = "cpu" if platform == "cpu" else "standin"
    data = "" if plan.data.synthetic else " --data DATA"
    assert format_command(plan, device_type=device_type) == (
        f"trainmark run resnet50 --recipe {recipe} --set momentum=0.8 --topology 1x2 --precision fp32 "
        f"--platform {platform}{data}"
    )


def test_a_dash_for_scalability_is_explained() -> None:
    runs = [deepspark_run("a", "1x1", 100), deepspark_run("b", "1x2", 190)]
    smoke = [replace(run, plan=replace(run.plan, recipe_name="smoke")) for run in runs]
    smoke[1] = replace(smoke[1], plan=replace(smoke[1].plan, recipe={**smoke[1].plan.recipe, "batch_per_device": 16}))
    text = report_format.write_deepspark(smoke, lang="en")
    assert "row 1: no scalability: it is one card" in text
    assert "row 2: no scalability: its recipe divides one batch over the cards" in text
    assert "没有线性度" in report_format.write_deepspark(smoke, lang="zh")
    alone = report_format.write_deepspark([deepspark_run("b", "1x2", 190)], lang="en")
    assert "row 1: no scalability: no run of one card or one node" in alone
    assert "row 2: no scalability" not in report_format.write_deepspark(runs, lang="en")


def test_a_speed_has_the_digits_that_its_interval_supports() -> None:
    def write(write: Any, share: float) -> str:
        speeds = {"p_whole": 42.913, "p_train": 43.206, "p_core": 43.498, "p_steady": 43.377}
        base = make_record()
        metrics = {
            name: Quantity(value=value, unit="images/s", interval=(value * (1 - share), value * (1 + share)))
            for name, value in speeds.items()
        }
        metrics["p_whole"] = replace(metrics["p_whole"], interval=None)
        return str(write([replace(base, metrics={**base.metrics, **metrics})], lang="en"))

    assert cells(line(write(report_format.write_flagperf, 0.32), "| AMD EPYC"))[4:7] == ["43", "43", "43"]
    assert cells(line(write(report_format.write_flagperf, 0.01), "| AMD EPYC"))[4:7] == ["42.91", "43.21", "43.5"]
    assert cells(line(write(report_format.write_deepspark, 0.32), "| AMD EPYC x1"))[2] == "43"
    assert cells(line(write(report_format.write_deepspark, 0.32), "| acc≥75.5%"))[2] == "43"


@pytest.mark.parametrize("write", [report_format.write_flagperf, report_format.write_deepspark])
@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "a|b",
        "\x1b[31mred\x1b[0m",
        "\a\x9b31m\u202e",
        "a\n```\n# b",
        "[x](http://e.example)",
    ],
)
def test_a_hostile_name_is_only_text_on_the_page(write: Any, name: str) -> None:
    record = make_record(
        device=name,
        ended=name,
        plan={
            "recipe": {"memory_format": name},
            "workload": name,
            "platform": name,
            "precision": "fp32",
            "data": DataChoice(name=name, folder=name, synthetic=False),
        },
        item=name,
        doubts=(Doubt(code="x", text=name),),
    )
    text = write([replace(record, coverage=name, trainmark=name, run_id=name)], lang="en")
    assert [sign for sign in text if sign != "\n" and unicodedata.category(sign) in ("Cc", "Cf")] == []
    prose, *code = re.split("^```", text, flags=re.MULTILINE)
    assert len(code) == (4 if write is report_format.write_deepspark else 0), "two blocks of commands"
    whole = "".join((prose, *code[1::2]))
    assert "<img" not in whole and "[x](http" not in whole
    for row in text.splitlines():
        if row.startswith("|"):
            assert row.endswith("|")
    tables = [part for part in markdown.parse_layout(text).parts if isinstance(part, markdown.Table)]
    assert all(len(row.cells) == len(table.heads.cells) for table in tables for row in table.rows)


def test_a_plan_without_a_batch_can_be_written() -> None:
    plan = make_plan()
    bare = replace(plan, recipe={}, deviations=())
    record = replace(make_record(timeline=make_timeline(steps=20)), plan=bare)
    assert "| / |" in report_format.write_flagperf([record], lang="en")
    assert ",1x,fp32 |" in report_format.write_deepspark([record], lang="en")


def test_a_language_model_is_written_in_the_form_such_pages_have_for_it() -> None:
    recipe = {"batch_per_device": 4, "accumulate": 1, "learning_rate": 8e-4, "target": 3.3, "parallel": "fsdp"}
    data = DataChoice(name="text", folder="/data/c4", synthetic=False)
    plan = make_plan(workload="llama8b", recipe=recipe, deviations=(), topology="2x4", data=data, limits=Limits())
    history = (Evaluation(step=384, epoch=None, values={"val_loss": 5.6}, samples=1024),)
    quality = Quality(name="val_loss", unit="nats", goal=3.3, better="lower", value=5.6, reached=False, history=history)
    flops = FlopsFacts(per_item=57.9e9, otherwise={"6 x parameters": 48.2e9}, peak_tflops=989.0)
    record = replace(make_record(), plan=plan, item="tokens", quality=quality)
    record = replace(record, environment=msgspec.structs.replace(record.environment, flops=flops))
    record = with_metrics(record, p_train=64824.0, mfu=47.4)
    text = report_format.write_flagperf([record], lang="zh")
    assert (
        line(text, "| 配置") == "| 配置 | precision | parallel | fix_hp | token/p/s | loss | 是否精度对齐 | mem | MFU |"
    )
    row = cells(next(line for line in text.splitlines() if "（2x4）" in line))
    assert row[2:7] == ["FSDP8", "/", "8103", "5.6", "True"]
    assert row[8] == "39.5%"
    assert "token/p/s,见“性能指标”" in text
    alone = replace(record, plan=replace(plan, topology="1x1", recipe={**recipe, "parallel": "ddp"}))
    assert (report_format.describe_parallelism(alone), report_format.describe_alignment(alone)) == ("PP1DP1TP1", "/")
    by_blocks = [{**recipe, "parallel": way, "tensor_parallel": 2} for way in ("fsdp", "hsdp")]
    shared = [report_format.describe_parallelism(replace(record, plan=replace(plan, recipe=one))) for one in by_blocks]
    assert shared == ["FSDP4TP2", "DP2FSDP2TP2"]


@pytest.mark.parametrize("write", [report_format.write_flagperf, report_format.write_deepspark])
def test_the_notes_of_a_chinese_page_are_chinese(write: Any) -> None:
    doubts = (
        doubt("generated-data", data="imagenet", quality="accuracy", outcome="learnt"),
        doubt("few-steps", percent="9.1", more=1173),
        Doubt(code="rank-skew", text="ranks differ by words that nobody has translated"),
    )
    record = make_record(doubts=doubts, status="incomplete", ended="the run was ended by SIGTERM")
    record = in_environment(record, cpu={"name": "Example CPU", "logical_cores": 64}, container="docker")
    missing = {
        alias: Quantity(value=None, unit="", unavailable=why)
        for alias, why in (("p_whole", "no step was counted"), ("p_train", "no sensor"))
    }
    timeline = record.timeline
    covered = describe_coverage(full=False, steps=timeline.steps, warmup=timeline.warmup_steps)
    text = write([replace(record, metrics={**record.metrics, **missing}, coverage=covered)], lang="zh")
    assert "合成数据，不是真实的 imagenet 数据集：准确率 只说明训练能够进行" in text
    assert "p_core 只精确到 ±9.1 %，未达到 ±1 %：大约还需要 1173 步" in text
    assert "SIGTERM" in text and "ended by" not in text and "no step was counted" not in text
    assert "稳定部分：" in text and covered not in text
    assert "没有 p_train：no sensor" in text, "words of somebody else"
    assert "ranks differ by words that nobody has translated" in text, "a record of before"
    assert "64 个逻辑核心" in text or write is report_format.write_deepspark


@pytest.mark.parametrize("write", [report_format.write_flagperf, report_format.write_deepspark])
def test_a_hand_written_backward_pass_is_named_beside_the_plain_one_of_others(write: Any) -> None:
    runs = [make_record(plan={"recipe": {"implementation": word}}) for word in ("fast", "plain")]
    text = write([runs[0], renamed(runs[1], "other")], lang="en")
    assert ". row 1: some gradients are hand-written" in text and "published runs are of the plain" in text
    assert "手写实现" in write(runs[:1], lang="zh")


def test_what_was_done_otherwise_and_what_it_ran_in_stand_on_the_page() -> None:
    record = in_environment(make_record(plan={"init_from": "weights.pt"}, skipped_files=("a.jpg",)), container="none")
    text = report_format.write_flagperf([record], lang="zh")
    assert "| 额外修改项 | 训练从给定的权重开始；跳过了 1 个无法读取的数据文件 |  |" in text
    assert "    - Docker 版本: 未使用容器" in text
