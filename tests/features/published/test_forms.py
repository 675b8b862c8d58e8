"""Published result formats on small pages: each figure is read by its name, or reported as unread."""

from __future__ import annotations

import pytest

from trainmark.analysis.published_library import PublishedPage
from trainmark.features.published.read import read_page as read_page
from trainmark.record.published_row import PublishedRow

RULES = {count: "|" + "---|" * count for count in range(1, 20)}


def read(*lines: str, title: str = "Sailnet", device: str = "Q9-X", name: str = "page.md") -> PublishedPage:
    """A page of a model with a list of its machines, and a table of results below a heading that says so."""
    table = [lines[0], RULES[lines[0].count("|") - 1], *lines[1:]] if lines else []
    machines = ["| GPU | SDK | Release |", RULES[3], f"| {device} | 4.1.0 | 24.06 |"]
    text = [f"# {title}", "", "## Supported Environments", "", *machines, "", "## Model Results", "", *table]
    return read_page("\n".join(text) + "\n", name=name)


def metrics(*lines: str, model: str = "sailnet", rows: tuple[str, ...] = (), name: str = "page.md") -> PublishedPage:
    """A page with a table of metrics and one of results."""
    table = ["| 指标名称 | 指标值 | 特殊说明 |", RULES[3], f"| 模型 | {model} | |", *rows, ""]
    text = [*table, lines[0], RULES[lines[0].count("|") - 1], *lines[1:]]
    return read_page("\n".join(text) + "\n", name=name)


def only(page: PublishedPage) -> PublishedRow:
    assert len(page.rows) == 1, page
    return page.rows[0]


def kept(row: PublishedRow) -> dict[str, object]:
    """What stands beside the columns, figures as such and the rest as text."""
    return {detail.name: detail.text if detail.value is None else detail.value for detail in row.details}


# results inside cells


def test_results_inside_a_cell_are_told_apart_by_their_names() -> None:
    page = read(
        "| Model | GPU | FP32 | AMP+NHWC |",
        "| Sailnet | Q9-X x4 | Acc@1=76.02,FPS=330,Time=4d3h，BatchSize=280 | Acc@1=75.5,FPS=550,Time=12h43m |",
    )
    wide, narrow = page.rows
    assert page.unread == ()
    assert (wide.precision, narrow.precision) == ("fp32", "AMP+NHWC"), "the head says in what its cells were measured"
    assert (wide.quality_name, wide.quality, wide.quality_unit) == ("acc1", 76.02, "%")
    assert (wide.e2e_time_s, narrow.e2e_time_s) == (4 * 86400 + 3 * 3600, 12 * 3600 + 43 * 60)
    assert (wide.fix_hp, wide.batch_per_device) == ("bs=280", None), "whose batch it is, is not said"
    assert (kept(wide)["FPS"], kept(narrow)["FPS"]) == (330, 550)
    assert {row.line for row in page.rows} == {13}


@pytest.mark.parametrize(
    ("cell", "quality", "others"),
    [
        ("top1=71.27000,top5=90.00800", ("acc1", 71.27), {"acc5": 90.008}),
        ("Accuracy @1 = 0.5633 Accuracy @ 5 = 0.7964", ("acc1", 56.33), {"acc5": 79.64}),
        ("'Top1-Acc': 0.4847, 'Top5-Acc': 0.7405", ("acc1", 48.47), {"acc5": 74.05}),
        ("hmean:0.7711, precision: 0.7752", ("hmean", 0.7711), {"precision": 0.7752}),
        ("Bleu_1: 0.797, Bleu_2: 0.644,Bleu_3: 0.503, ,Bleu_4: 0.388", ("Bleu_1", 0.797), {"Bleu_4": 0.388}),
        ("bbox ap: 0.259", ("bbox ap", 0.259), {}),
        ("mIoU =80.42%", ("mIoU", 80.42), {}),
        ("test_acc1 71.832 val_acc1 71.722", ("test_acc1", 71.832), {"val_acc1": 71.722}),
        ("0.0495(checkpoint 81)", ("ACC", 0.0495), {}),
        ("0.97933+-0.00624", ("ACC", 0.97933), {}),
    ],
)
def test_a_cell_of_qualities_gives_each_by_its_own_name(
    cell: str, quality: tuple[str, float], others: dict[str, float]
) -> None:
    page = read("| Model | GPU | ACC |", f"| Sailnet | Q9-X x4 | {cell} |")
    row = only(page)
    assert (row.quality_name, row.quality) == quality
    assert others.items() <= kept(row).items()
    assert page.unread == ()


@pytest.mark.parametrize("cell", ["soon", "fast = very", "Acc@1=76 and more", "Acc@1=", "8 = 9", "=,=,:", "a:b:c 5"])
def test_a_cell_that_is_not_certainly_pairs_is_kept_as_text_and_said(cell: str) -> None:
    page = read("| GPU | ACC | FPS |", f"| Q9-X x8 | {cell} | 12 images/s |")
    row = only(page)
    assert row.quality is None
    assert kept(row)["ACC"] == " ".join(cell.split())
    assert page.unread[0].startswith("line 13: ACC ")


# columns


@pytest.mark.parametrize(
    ("head", "cell", "name", "better"),
    [
        ("mAP", "41.2", "mAP", "higher"),
        ("mAP(0.5:0.95)", "0.361", "mAP (0.5:0.95)", "higher"),
        ("mAP<sup>val<br/>0.5", "61.3", "mAP val 0.5", "higher"),
        ("mIoU", "69.39", "mIoU", "higher"),
        ("IoU=0.50:0.95", "0.365", "IoU=0.50:0.95", "higher"),
        ("WER (attention)", "5.59%", "WER (attention)", "lower"),
        ("CER", "0.0495", "CER", "lower"),
        ("Bleu", "35.07", "Bleu", "higher"),
        ("AUC", "0.7955", "AUC", "higher"),
        ("F1", "81.422", "F1", "higher"),
        ("Loss", "1.8", "Loss", "lower"),
        ("ppl", "54.2", "ppl", "lower"),
        ("rougeLsum", "38.34", "rougeLsum", "higher"),
        ("Mean dice", "0.908", "Mean dice", "higher"),
        ("Metric FID", "120.5", "Metric FID", "lower"),
        ("Box AP", "39.7", "Box AP", "higher"),
        ("LFW_Accuracy", "0.979", "LFW_Accuracy", "higher"),
        ("acc", "0.42", "acc", "higher"),
    ],
)
def test_any_quality_is_read_under_the_pages_own_name(head: str, cell: str, name: str, better: str) -> None:
    page = read(f"| Model | GPUs | FPS | {head} |", f"| Sailnet | Q9-X ×8 | 12.5 | {cell} |")
    row = only(page)
    assert (row.quality_name, row.quality, row.better) == (name, float(cell.rstrip("%")), better)
    assert (row.quality_unit == "%") == cell.endswith("%")
    assert page.unread == ()


@pytest.mark.parametrize(
    ("head", "cell", "item", "rate"),
    [
        ("FPS", "1833.9 images/sec", "images", 1833.9),
        ("ips", "11.2 samples/s", "samples", 11.2),
        ("IPS", "714.42ins/s", "instances", 714.42),
        ("avg_ips", "71.19 sequences/sec", "sequences", 71.19),
        ("Training speed", "1.146 samples/sec", "samples", 1.146),
        ("train_samples_per_second", "32.639", "samples", 32.639),
        ("images/sec", "900", "images", 900),
        ("性能(samples/s)", "77", "samples", 77),
    ],
)
def test_a_rate_of_items_is_a_throughput(head: str, cell: str, item: str, rate: float) -> None:
    row = only(read(f"| GPU | {head} |", f"| Q9-X x8 | {cell} |"))
    assert (row.p_train, row.item) == (rate, item)


@pytest.mark.parametrize(
    ("head", "cell", "unit", "value"),
    [
        ("FPS", "5408", None, 5408),
        ("FPS", "5.78it/s", "it/s", 5.78),
        ("FPS", "1.5984 s / it", "s/it", 1.5984),
        ("per step time", "0.814s", "s", 0.814),
        ("train_steps_per_second", "0.128", None, 0.128),
        ("ips_per_device", "6.76", None, 6.76),
    ],
)
def test_what_does_not_say_which_items_it_counts_is_no_throughput(
    head: str, cell: str, unit: str | None, value: float
) -> None:
    row = only(read(f"| GPU | {head} | AUC |", f"| Q9-X x8 | {cell} | 0.7 |"))
    assert row.p_train is row.p_core is row.p_whole is None
    (detail,) = row.details
    assert (detail.name, detail.value, detail.unit, detail.text) == (head, value, unit, cell)


def test_devices_are_counted_wherever_the_table_counts_them() -> None:
    page = read("| Model | GPU | peft | num_gpus | train_samples_per_second |", "| Sailnet | Q9-X | LoRA | 16 | 12.4 |")
    assert (only(page).topology, kept(only(page))) == ("1x16", {"peft": "LoRA"})
    page = read("| Card Type | Prec. | Single Card | 8 Cards |", "| Q9-X | AMP | 351.040 | 2400.745 |")
    assert [(row.topology, row.precision, kept(row)) for row in page.rows] == [
        ("1x1", "amp", {"Single Card": 351.04}),
        ("1x8", "amp", {"8 Cards": 2400.745}),
    ]
    row = only(read("| Method | Crop Size | FPS (Q9 x 8) | mIOU |", "| Sailnet | 512x1024 | 28.68 | 0.726 |"))
    assert (row.device, row.topology) == ("Q9-X", "1x8"), "the head says where, and the page which device begins so"
    assert kept(row)["FPS"] == 28.68


@pytest.mark.parametrize(
    ("heads", "cells", "fields", "beside"),
    [
        (
            "| Model | GPU | Top1 | Top5 | ips |",
            "| Sailnet | Q9-X x4 | 0.684 | 0.881 | 1236 |",
            {"quality_name": "acc1", "quality": 68.4},
            {"acc5": 88.1, "ips": 1236},
        ),
        (
            "| Cards | Speed(s/step) | Time(h) | GPU Mem(MiB) | mAP(%) |",
            "| 8 | 0.5 | 8.5 | 20480 | 36.1 |",
            {"device": "Q9-X", "topology": "1x8", "e2e_time_s": 30600, "mem_used_gib": 20, "quality_unit": "%"},
            {"Speed": 0.5},
        ),
        ("| GPU | Training time | AUC |", "| Q9-X x8 | 8h30min | 0.7 |", {"e2e_time_s": 30600}, {}),
        ("| GPU | Training time | AUC |", "| Q9-X x8 | 5 | 0.7 |", {"e2e_time_s": None}, {"Training time": 5}),
        (
            "| GPU | Precision | Recall |",
            "| Q9-X x8 | 0.91 | 0.9 |",
            {"precision": "unknown", "quality_name": "Precision", "quality": 0.91},
            {"Recall": 0.9},
        ),
        (
            "| GPU | Result |",
            "| Q9-X x8 | mAP@0.5:0.95: 36.1 mAP@0.5: 54 |",
            {"quality_name": "mAP@0.5:0.95", "quality": 36.1},
            {"mAP@0.5": 54},
        ),
        ("| GPU | FPS | FID |", "| Q9-X | 16.1 | 120.5 |", {"topology": "unknown", "quality": 120.5}, {"FPS": 16.1}),
        (
            "| Model | keel | miou | fps |",
            "| Sailnet | 0.9488 | 0.653 | 65.3 samples/sec |",
            {"device": "Q9-X", "quality_name": "mIoU", "p_train": 65.3},
            {"keel": 0.9488},
        ),
        (
            "| Model | GPUs | Easy/Medium/Hard Set | Ips |",
            "| Sailnet | Q9-X x8 | 0.886/0.860/0.753 | 8.68 |",
            {},
            {"Easy": 0.886, "Medium": 0.86, "Hard Set": 0.753, "Ips": 8.68},
        ),
    ],
)
def test_each_figure_of_a_row_is_what_its_head_and_its_own_words_say(
    heads: str, cells: str, fields: dict[str, object], beside: dict[str, object]
) -> None:
    row = only(read(heads, cells))
    assert {name: getattr(row, name) for name in fields} == fields
    assert kept(row) == beside


@pytest.mark.parametrize("text", ["bs=256(global)", "global_bs=256", "GBS=256", "globalbs=2M"])
def test_a_batch_of_all_devices_is_not_one_devices(text: str) -> None:
    assert only(metrics(HEADS, f"| Q9单机8卡（1x8） | fp32 | {text} | | 1 | 2 | 3 | | |")).batch_per_device is None


def test_results_are_not_taken_for_a_list_of_machines_nor_machines_for_results() -> None:
    page = read("| Model | GPU | FP32 |", "| Sailnet | Q9-X x8 | MAP=43.2 |")
    assert (only(page).quality_name, only(page).quality) == ("MAP", 43.2)
    assert len(read().rows) == 0


def test_a_row_whose_cells_stand_under_other_heads_is_refused_with_its_text() -> None:
    page = read("| GPU | FP32 | mAP |", "| Sailnet | Q9-X x8 | 41.2 |")
    assert page.rows == ()
    assert page.unread[0] == "line 13: its cells do not stand under their heads: 'Sailnet | Q9-X x8 | 41.2'"


def test_rates_of_two_tables_are_one_run_only_where_nothing_differs() -> None:
    whole = "| Convergence criteria | Configuration | Performance | Accuracy | Power（W） |\n|---|---|---|---|---|\n"
    told = "| 0.75 | SDK V2.2,bs:64,8x,AMP | 800 | 0.75 | 60\\*8 |\n"
    text = (
        "# Sailnet\n\n| GPUs | FP16 | FPS | AUC |\n|---|---|---|---|\n| Q9-X x8 | {} | {} | 0.75 |\n\n" + whole + told
    )
    for flag, rate, rows in (("True", 800, 1), ("False", 800, 2), ("True", 346, 2), ("", 800, 2)):
        assert len(read_page(text.format(flag, rate), name="page.md").rows) == rows, (flag, rate)
    slow, fast = read_page(text.format("False", 346), name="page.md").rows
    assert (slow.line, kept(slow), slow.precision) == (5, {"FPS": 346}, "fp32")
    assert (fast.line, kept(fast)["Performance"], fast.precision, fast.device) == (9, 800, "amp", "Q9-X")


# the forms with nodes and devices

HEADS = "| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem |"


def test_a_bracket_can_tell_the_cards_memory_and_the_stage() -> None:
    heads = "| 配置 | config | precision | fix_hp | parallel_strategy | throughput | memory |"
    page = metrics(
        heads,
        "| Sail-7B | ---- | ---- | ---- | ---- | ---- | ---- |",
        "| Q9单机8卡（1x8*80G） | config_Q980Gx1x8 | fp16, level=\"O2\" | per_device_bs=4, (global bs = 2M tokens) "
        "| sharding=\"stage2\" | 17.23 * 2048 / 8 = 4410 tokens/s | 66.27 * 8 GB |",
        "| Sail-13B | ---- | ---- | ---- | ---- | ---- | ---- |",
        "| Q9单机8卡（1x8*80G）（finetune） | config_Q980Gx1x8 | fp16 | / | a=b | / | 35.8\\*2 + 34.7\\*2 GB |",
    )  # fmt: skip
    small, large = page.rows
    assert (small.workload, large.workload) == ("Sail-7B", "Sail-13B")
    assert (small.batch_per_device, large.batch_per_device) == (4, None)
    assert (small.mem_used_gib, small.mem_total_gib) == (66.27, 80)
    assert kept(small)["throughput"] == 4410
    assert large.remark == "finetune"
    assert kept(large)["memory"] == "35.8*2 + 34.7*2 GB"
    assert page.unread == ("line 10: memory '35.8*2 + 34.7*2 GB' is not memory as used/total",)


def test_the_page_about_language_models_gives_every_column() -> None:
    page = metrics(
        "| 配置 | precision | parallel | fix_hp | token/p/s | 是否精度对齐 | loss | mem | acc(MMMU) | MFU |",
        "| Q9四机32卡（4x8） | bf16 | TP4PP8DP1 | GAS=1024(GBS=1024=4M tokens) "
        "| 908.29 | True | 2.61 | 74/80 | / | 38.6% |",
        "| Q9单机8卡（1x8） | / | TP1PP1DP8 | / | 4318.9 | doing | 0.77 | 75/80 | 36.2 | 58.1% |",
        rows=("| 数据精度 | amp | |",),
    )
    first, second = page.rows
    assert kept(first) == {"parallel": "TP4PP8DP1", "token/p/s": 908.29, "是否精度对齐": "True", "MFU": 38.6}
    assert (first.quality_name, first.quality, first.precision) == ("loss", 2.61, "bf16")
    assert first.batch_per_device is None, "1024 is the batch of all devices"
    assert (second.quality_name, second.quality, second.precision) == ("acc (MMMU)", 36.2, "amp")
    assert kept(second)["loss"] == 0.77


def test_the_oldest_form_names_its_device_by_a_file() -> None:
    page = metrics(
        "| 训练资源 | 配置文件 | 运行时长(s) | 目标mAP精度(bbox && segm) | 收敛mAP精度(bbox && segm) | Steps数 "
        "| 性能（samples/s) |",
        "| 单机8卡 | config_Q9x1x8 | 1000 | 0.38 && 0.34 | 0.384 && 0.346 | 14935 | 77.5 |",
        "| 两机8卡 | config_Q9x2x8 | 3-4天 | / | / | / | |",
    )
    one, two = page.rows
    assert (one.device, one.topology, one.e2e_time_s, one.p_train) == ("Q9", "1x8", 1000, 77.5)
    assert (one.quality_name, one.quality, one.target) == ("mAP bbox", 0.384, 0.38)
    assert kept(one)["mAP segm"] == 0.346
    assert kept(one)["target of mAP segm"] == 0.34
    assert (two.topology, two.e2e_time_s, kept(two)["运行时长"]) == ("2x8", None, "3-4天")
    assert page.unread == ("line 8: 运行时长 '3-4天' is not a time",)


def test_a_cell_holds_what_was_reached_and_aimed_at_where_the_page_says_so() -> None:
    heads = "| 配置 | fix_hp | p_core | acc |"
    line = "| Q9单机8卡（1x8） | bs=12 | 299.3 | 0.657/0.655 |"
    row = only(metrics(heads, line, rows=("| 训练结果 | acc,见“性能指标” | masked_lm任务准确率(实际/目标) |",)))
    assert (row.quality_name, row.quality, row.target) == ("acc", 0.657, 0.655), "an accuracy of another task"
    silent = metrics(heads, line)
    assert only(silent).quality is None
    assert kept(only(silent))["acc"] == "0.657/0.655"
    assert silent.unread


# which model, whose, from where


@pytest.mark.parametrize("name", ["SE_ResNet50_vd", "ResNet50_vd", "Wide ResNet50", "CSPResNet50", "RepViT", "ViT-L"])
def test_a_model_with_more_in_its_name_is_another(name: str) -> None:
    assert only(read("| Model | GPU | ACC |", f"| {name} | Q9-X x8 | 0.75 |", title=name)).workload == name


@pytest.mark.parametrize("name", ["ResNet50", "RESNET-50", "resnet50 v1.5", "ResNet50 (PyTorch)"])
def test_a_workload_is_known_in_any_case(name: str) -> None:
    assert only(read("| Model | GPU | ACC |", f"| {name} | Q9-X x8 | 0.75 |", title="x")).workload == "resnet50"


def test_a_bare_accuracy_is_not_taken_for_top_1() -> None:
    row = only(read("| Model | GPU | acc | fps |", "| ResNet50 | Q9-X x8 | 0.9860 | 236.9 |"))
    assert (row.workload, row.quality_name, row.quality) == ("resnet50", "acc", 0.986)


def test_a_row_of_another_makers_card_says_so() -> None:
    text = "- 加速卡型号: 曦云®C500 64G\n\n" + "\n".join(
        (HEADS, RULES[9], "| A100单机8卡（1x8） | fp32 | bs=16 | / | | | | 0.64 | 25.5/64.0 |")
    )
    row = only(read_page(text, name="longformer.md"))
    assert (row.vendor, row.device) == ("nvidia", "A100")
    assert row.remark is not None
    assert "the page's own device is 曦云®C500 64G" in row.remark


def test_rows_keep_where_they_stand_and_what_ran_them() -> None:
    name = "training/metax/sailnet-paddle/README.md"
    text = "\n".join((HEADS, RULES[9], "| MXC500单机8卡（1x8） | fp32 | / | / | | | 5 | 0.6 | 9/64 |"))
    row = only(read_page(text, name=name))
    assert (row.source.address, row.line, row.framework, row.vendor) == (name, 3, "paddlepaddle", "metax")
    assert row.workload == "sailnet", "where the page does not say it, its folder does"
    assert row.name == "published:metax-sailnet-paddle-mxc500-sailnet-1x8-fp32"
    spelt = {
        read_page(f"- 训练框架版本：{said}\n\n{text}", name="p.md").rows[0].framework
        for said in ("torch-1.13", "PyTorch 2")
    }
    assert spelt == {"pytorch"}


@pytest.mark.parametrize("spelt", ["Iluvatar BI-V100", "天数智芯 BI-V100", "ILUVATAR_BI-V100", "BI-V100"])
def test_a_vendor_has_one_spelling(spelt: str) -> None:
    row = only(read("| GPU | AUC |", "| BI-V100 x8 | 0.7 |", device=spelt))
    assert (row.vendor, row.device) == ("iluvatar", "BI-V100")
