from __future__ import annotations

from dataclasses import replace

import pytest

from trainmark.analysis.published_library import PublishedPage
from trainmark.features.published import cells
from trainmark.features.published.read import read_page as read_page
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedDetail, PublishedRow

CHINESE = """\
### Northwind GPU配置与运行信息参考
- ##### 硬件环境
    - 机器、加速卡型号: Northwind_N7-PCIE-48GB
    - 加速卡驱动版本：1.2.3

* 通用指标

| 指标名称       | 指标值                  | 特殊说明                  |
| -------------- | ----------------------- | ------------------------- |
| 模型           | Vision Transformer      |                           |
| 硬件设备简称   | northwind N7            |                           |
| 硬件存储使用   | mem,见“性能指标”        | 通常称为“显存”,单位为GiB  |
| 总吞吐量       | p_whole,见“性能指标”    | 实际训练样本数除以总时间  |
| **计算吞吐量** | **p_core,见“性能指标”** | 不包含数据IO部分的耗时    |
| 训练结果       | val_loss,见“性能指标”   | 验证loss                  |

* 性能指标

| 配置              | precision | fix_hp | e2e_time | p_whole | p_train | p_core | final_acc1 | mem       |
| ----------------- | --------- | ------ | -------- | ------- | ------- | ------ | ---------- | --------- |
| N7单机8卡（1x8）  | fp32      | /      | 61,200   | 6 120   | 6200.5  | **6300** | 79.25    | 31.0/48.0 |
| N7单机单卡(1x1)   | tf32      | bs=128，lr=0.001 | / |  810    | 820     | 830    | /          | 30.5/48.0 |
| N7两机8卡(2×8)    | tf32      | bs=128,lr=0.001 |  | 11900   | 12100   | 12500  |            | 30.9/48.0 |
"""

ENGLISH = """\
| Model Results | | |
|---|---|---|

# Tacotron2

| GPU  | SDK   | Release |
|------|-------|---------|
| Q9-X | 4.1.0 | 24.06   |

| GPU     | FP16 | FPS | Score(MOS) |
|---------|------|-----|------------|
| Q9-X x4 | True | 7.5 | 4.210      |

| Convergence criteria | Configuration | Performance | Accuracy | Power（W） | Scalability | Memory（G） | Stability |
|----|----|----|----|----|----|----|----|
| score(MOS):4.210 | SDK V4.1,bs:64,4x,AMP | 61 | 4.21 | 210\\*4 | 0.93 | 17.5\\*4 | 1 |
"""


def read(text: str, name: str = "page.md") -> PublishedPage:
    return read_page(text, name=name)


def table(*lines: str, model: str = "resnet50") -> str:
    """A page with one table of results."""
    metrics = f"| 指标名称 | 指标值 | 特殊说明 |\n|---|---|---|\n| 模型 | {model} | |\n\n"
    return metrics + "\n".join(lines) + "\n"


def row(text: str) -> PublishedRow:
    found = read(text)
    assert len(found.rows) == 1, found
    return found.rows[0]


HEADS = "| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem |"
RULE = "|---|---|---|---|---|---|---|---|---|"
PLAIN = "| N7单机8卡(1x8) | fp32 | bs=64,lr=0.8 | 1000 | 100 | 110 | 120 | 75.0% | 30.5/48.0 |"


def test_a_chinese_page_is_read_with_its_device_vendor_and_batches() -> None:
    page = read(CHINESE)
    assert page.unread == ()
    assert page.title == "Vision Transformer on northwind N7"
    full, one, two = page.rows
    assert full.name == "published:page-n7-vit-1x8-fp32"
    assert (full.vendor, full.device, full.workload, full.topology) == ("northwind", "N7-PCIE-48GB", "vit", "1x8")
    assert (full.e2e_time_s, full.p_whole, full.p_train, full.p_core) == (61200, 6120, 6200.5, 6300)
    assert (full.quality_name, full.quality_unit, full.quality, full.target) == ("acc1", "%", 79.25, 79.982)
    assert (full.mem_used_gib, full.mem_total_gib, full.item) == (31.0, 48.0, "images")
    assert (full.fix_hp, full.batch_per_device) == ("/", None), "what / stands for is not on the page"
    assert (one.topology, one.batch_per_device, one.e2e_time_s, one.quality) == ("1x1", 128, None, None)
    assert (two.topology, two.fix_hp, two.name) == ("2x8", "bs=128,lr=0.001", "published:page-n7-vit-2x8-tf32-bs128")


def test_the_words_a_page_uses_for_one_thing_in_two_places_are_both_kept() -> None:
    said = read(CHINESE).said
    assert [entry.word for entry in said if entry.quantity == "quality"] == ["val_loss", "final_acc1"]
    assert {entry.unit for entry in said if entry.quantity == "throughput"} == {"samples/s"}
    assert {entry.unit for entry in said if entry.quantity == "memory"} == {"GiB"}
    assert said[-1].place == "table 2, line 19"


def test_both_tables_of_the_other_form_become_one_row_where_nothing_in_them_differs() -> None:
    assert len(read(ENGLISH).rows) == 2, "7.5 and 61 are not the speed of one run"
    page = read(ENGLISH.replace("| 7.5 |", "| 61 |"))
    assert len(page.rows) == 1
    found = page.rows[0]
    assert found.name == "published:page-q9-x-tacotron2-1x4-amp-bs64"
    assert (found.device, found.topology, found.precision) == ("Q9-X", "1x4", "amp")
    assert (found.quality_name, found.quality, found.target) == ("MOS", 4.21, 4.21)
    assert found.mem_used_gib == 17.5
    assert found.batch_per_device is None, "whether 64 is a device's batch or all of them is not said"
    assert found.p_whole is found.p_train is found.p_core is None, "without a unit it is not known what was counted"
    kept = {detail.name: (detail.value, detail.unit, detail.text) for detail in found.details}
    assert kept["Power"] == (210, "W", "210*4")
    assert kept["FPS"] == (61, None, "61")
    assert kept["Performance"] == (61, None, "61")


def test_figures_without_units_are_kept_as_what_the_page_says() -> None:
    said = {entry.word: (entry.value, entry.unit) for entry in read(ENGLISH).said}
    assert said["FPS"] == (7.5, None)
    assert said["Performance"] == (61, None)
    assert said["Power"] == (210, "W")
    assert said["Scalability"] == (0.93, None)
    assert said["Memory"] == (17.5, "G")


@pytest.mark.parametrize(
    "text",
    [
        table(HEADS, RULE, PLAIN),
        table(HEADS, PLAIN),
        table(HEADS, RULE, PLAIN).replace("\n", "\r\n"),
        "\ufeff" + table(HEADS, RULE, PLAIN),
        table(*(f"    {line}" for line in (HEADS, RULE, PLAIN))),
        table(f"- {HEADS}", f"  {RULE}", f"  {PLAIN}"),
        table(*(line.strip("| ") for line in (HEADS, RULE, PLAIN))),
        table(HEADS, RULE.replace("---", " :---: "), PLAIN),
        table(HEADS, RULE, PLAIN.replace("| 120 |", "| **120** |").replace("| fp32 |", "| `fp32` |")),
        table(HEADS, RULE, PLAIN.replace("(1x8)", "<br>(1x8)")),
        table(HEADS, RULE, PLAIN.replace("(1x8)", "（１ｘ８）").replace("120", "１２０")),
        table(HEADS, RULE, PLAIN.replace("(1x8)", "")),
        table(HEADS, RULE, PLAIN.replace("N7单机8卡(1x8)", "N7 1 node, 8 devices (1x8)")),
        table(HEADS, RULE, PLAIN.replace("N7单机8卡(1x8)", "N7 1x8")),
        table(HEADS.replace("mem", "显存（GiB）"), RULE, PLAIN),
        table(HEADS.replace("e2e_time", "E2E Time / s"), RULE, PLAIN),
        table(HEADS.replace("e2e_time", "e2e_time (min)"), RULE, PLAIN.replace("| 1000 |", "| 16.666666666666668 |")),
        table(HEADS, RULE, PLAIN.replace("| 1000 |", "| 1,000 s |")),
        table(HEADS, RULE, PLAIN.replace("| 1000 |", "| 0:16:40 |")),
        table(HEADS, RULE, PLAIN.replace("30.5/48.0", "31232 MiB / 49152 MiB")),
        table(HEADS, RULE, PLAIN.replace("75.0%", "0.75")),
        table(HEADS, RULE, PLAIN.replace("75.0%", "75 %")),
        table(HEADS, RULE, PLAIN.replace("bs=64,lr=0.8", "bs=64，lr=0.8")),
        table(HEADS, RULE, PLAIN, model="[ResNet-50 v1.5](../models/resnet.md)"),
    ],
)
def test_a_row_is_the_same_however_its_page_is_laid_out(text: str) -> None:
    wanted = row(table(HEADS, RULE, PLAIN))
    assert (wanted.e2e_time_s, wanted.p_core, wanted.quality, wanted.mem_used_gib) == (1000, 120, 75, 30.5)
    assert row(text) == replace(wanted, source=row(text).source, line=row(text).line)
    assert read(text).unread == ()


def test_columns_are_found_by_their_heads_and_not_by_their_places() -> None:
    wanted = row(table(HEADS, RULE, PLAIN))
    turned = [" | ".join(reversed(line.strip("| ").split("|"))) for line in (HEADS, RULE, PLAIN)]
    assert row(table(*(f"| {line} |" for line in turned))) == wanted


def test_columns_nobody_knows_are_named_with_their_line_and_do_no_harm() -> None:
    text = table(HEADS + " colour |", RULE + "---|", PLAIN + " red |")
    assert row(text) == replace(row(table(HEADS, RULE, PLAIN)), details=(PublishedDetail(name="colour", text="red"),))
    assert read(text).unread == ("line 5: column 'colour' is not known and kept as it stands",)
    more = table(HEADS + " colour | taste |", RULE + "---|---|", PLAIN + " red | 7 |")
    assert row(more).details[1] == PublishedDetail(name="taste", text="7", value=7)
    assert read(more).unread == ("line 5: columns 'colour', 'taste' are not known and kept as they stand",)


def test_what_cannot_be_read_is_said_with_its_line() -> None:
    text = table(
        HEADS,
        RULE,
        "| N7 | fp32 | / | | 1 | 2 | 3 | | |",
        "| N7单机8卡(1x8) | fp32 | / | soon | 1e999 | ١٢٣ | 12,34 | good | full |",
    )
    page = read(text)
    assert [(found.topology, found.p_core) for found in page.rows] == [("unknown", 3), ("1x8", None)]
    said = " ".join(page.unread)
    assert "line 7: its configuration 'N7' gives no nodes and devices" in said
    for piece in ("e2e_time 'soon'", "p_whole '1e999'", "p_train '١٢٣'", "p_core '12,34'", "acc 'good'", "mem 'full'"):
        assert f"line 8: {piece}" in said
    kept = {detail.name: detail.text for detail in page.rows[1].details}
    assert kept["e2e_time"] == "soon", "what could not be read is kept as text"
    assert page.rows[1].line == 8


def test_a_page_without_tables_or_with_others_says_so() -> None:
    assert read("no table here").unread == ("line 1: the page has no table",)
    page = read("| a | b |\n|---|---|\n| 1 | 2 |\n")
    assert page.rows == ()
    assert page.unread[0] == "line 1: this table has no columns that are known: 'a', 'b'"


def test_a_table_in_a_code_block_is_not_a_result() -> None:
    assert read(f"```\n{table(HEADS, RULE, PLAIN)}```\n").rows == ()


def test_a_model_that_is_not_named_is_said_to_be_unknown() -> None:
    page = read("\n".join((HEADS, RULE, PLAIN)))
    assert page.rows[0].workload == "unknown"
    assert "the page does not name the model that was trained" in page.unread


def test_the_model_a_table_names_is_the_one_whatever_title_and_file_say() -> None:
    text = "# ViT and friends\n" + table(HEADS, RULE, PLAIN, model="bert")
    assert read(text, name="vit.md").rows[0].workload == "bert"
    assert read("\n".join(("# Results", HEADS, RULE, PLAIN)), name="vit.md").rows[0].workload == "vit"


def test_a_page_of_several_models_keeps_them_apart() -> None:
    page = read(table(HEADS, RULE, PLAIN) + "\n" + table(HEADS, RULE, PLAIN, model="bert") + "\n" + CHINESE)
    assert [found.workload for found in page.rows] == ["resnet50", "bert", "vit", "vit", "vit"]


def test_rows_that_would_have_one_name_are_numbered() -> None:
    names = [found.name for found in read(table(HEADS, RULE, PLAIN, PLAIN)).rows]
    assert names == ["published:page-n7-resnet50-1x8-fp32-bs64", "published:page-n7-resnet50-1x8-fp32-bs64-2"]


@pytest.mark.parametrize(
    ("text", "device", "topology"),
    [
        ("A100单机8卡（1x8）", "A100", "1x8"),
        ("A100 16机8卡(16x8)", "A100", "16x8"),
        ("A10016机8卡(16x8)", "A100", "16x8"),
        ("N7双机单卡", "N7", "2x1"),
        ("Q9两机16卡（2x8）", "Q9", "2x8"),
        ("Q9十机80卡（10x8）", "Q9", "10x8"),
        ("Q9单机8卡（1x8*80G）", "Q9", "1x8"),
        ("Q9单机8卡（1x8）（pretrain）", "Q9", "1x8"),
        ("/ 1机8卡（1x8）", "", "1x8"),
        ("BI-V100 x8", "BI-V100", "1x8"),
        ("V100x8", "V100", "1x8"),
        ("8x", "", "1x8"),
        ("Q9 2x8", "Q9", "2x8"),
        ("Xeon 8370C 2 nodes x 4 GPUs (2X4)", "Xeon 8370C", "2x4"),
        *((cell, "Q9-X", "1x8") for cell in ("8 x Q9-X", "Q9-X*8", "Q9-X × 8", "Q9-X (8 cards)", "Q9-X 8卡", "8*Q9-X")),
        ("N7", "N7", None),
        ("N370-X8", "N370-X8", None),
        ("N370-X8 x16", "N370-X8", "1x16"),
        ("N7 (0x8)", "N7", None),
    ],
)
def test_a_configuration_tells_device_and_topology(text: str, device: str, topology: str | None) -> None:
    found = cells.parse_place(text)
    assert found.device == device
    assert found.topology == (Topology.parse(topology) if topology else None)


@pytest.mark.parametrize(
    "text", ["", "abc", "1e999", "nan", "inf", "١٢٣", "1_000", "1,2,3", "5 6", "--5", "1.2.3", "0x10"]
)
def test_what_is_no_number_is_not_taken_for_one(text: str) -> None:
    assert cells.parse_figure(text) is None
