"""Writes runs as a page with a table of metrics and a row for each run, in the form FlagPerf publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from trainmark.published import names
from trainmark.published.own_rows import written
from trainmark.published.write import TASKS, Machine, Written, machines, notes, sections, table
from trainmark.spec import escape
from trainmark.spec.topology import Topology

if TYPE_CHECKING:
    from trainmark.spec.published_row import PublishedRow
    from trainmark.spec.record import Record

SHOWN = ("p_whole", "p_train", "p_core", "mem", "mem_total")

Choose = Callable[[str, str], str]
"""Of an English and a Chinese wording, the one that was asked for."""


def write(records: Sequence[Record], *, lang: str) -> str:
    """The page, in English (`en`) or Chinese (`zh`): a section for each model and target."""

    def choose(english: str, chinese: str) -> str:
        return chinese if lang == "zh" else english

    return "\n".join(line for section in sections(records) for line in (*_section(section, lang, choose), ""))


def _section(section: Written, lang: str, choose: Choose) -> Iterator[str]:
    devices = " / ".join(dict.fromkeys(f"{row.vendor} {row.device}" for row in section.rows))
    yield f"### {escape.markdown_cell(devices)}{choose(': configuration and results', ' 配置与运行信息')}"
    yield "#### " + choose("Environment", "环境配置")
    for machine in machines(section):
        yield from _environment(machine, choose)
    yield ""
    yield "### " + choose("Results", "运行情况")
    yield "* " + choose("General metrics", "通用指标")
    yield ""
    yield from table(
        _pick(choose, ("Metric", "指标名称"), ("Value", "指标值"), ("Notes", "特殊说明")), _metrics(section, choose)
    )
    yield ""
    yield "* " + choose("Performance", "性能指标")
    yield ""
    yield from table(
        (
            choose("Configuration", "配置"), "precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core",
            section.quality, "mem",
        ),
        (_row(row, section, choose) for row in section.rows),
    )  # fmt: skip
    if lines := notes(section, lang, SHOWN):
        yield ""
        yield choose("Notes:", "注：")
        yield ""
        yield from lines


def _environment(machine: Machine, choose: Choose) -> Iterator[str]:
    missing = choose("not collected", "未采集")

    def item(english: str, chinese: str, value: str) -> str:
        return f"    - {choose(english, chinese)}: {escape.markdown_cell(value) or missing}"

    yield "- ##### " + choose("Hardware", "硬件环境")
    yield item("Accelerator model", "加速卡型号", machine.device)
    yield item("CPU model", "CPU型号", machine.cpu)
    yield item("Network between nodes, measured", "多机网络类型、带宽（实测）", machine.network)
    yield "- ##### " + choose("Software", "软件环境")
    yield item("OS and kernel", "OS与kernel版本", machine.system)
    yield item("Driver of the device", "加速卡驱动版本", machine.driver)
    yield item("Framework", "训练框架版本", machine.framework)
    yield item("Other software", "依赖软件版本", machine.software)


def _metrics(section: Written, choose: Choose) -> Iterator[tuple[str, str, str]]:
    """Every row of the table of metrics: its name, where its value stands, what it means."""

    def see(word: str) -> str:
        return f"{word}{choose(', see Performance', ',见“性能指标”')}"

    first, record = section.first, section.records[0]
    rate = choose(f"unit: {first.item}/s", f"单位为{first.item}/s")
    task = TASKS.get(first.workload, ("/", "/"))
    data = record.plan.data
    kind = choose("generated, not the real set", "生成数据，非真实数据集") if data.generated else ""
    yield choose("Task category", "任务类别"), choose(*task), ""
    yield choose("Model", "模型"), first.workload, ""
    yield choose("Data set", "数据集"), data.name, kind
    yield choose("Data precision", "数据精度"), see("precision"), choose("read back from what ran", "由实际运行读回")
    yield (
        choose("Hyper-parameter changes", "超参修改"),
        see("fix_hp"),
        choose("computed against the reference recipe; / where none", "与参考配置逐项比较得出，无差异为/"),
    )
    for name in dict.fromkeys(f"{row.vendor} {_shown(row, section)}" for row in section.rows):
        yield choose("Device name", "硬件设备简称"), name, ""
    yield (
        choose("Device memory", "硬件存储使用"),
        see("mem"),
        choose("unit: GiB; peak of the worst rank / memory of one device", "单位为GiB；占用最多的进程的峰值/单卡容量"),
    )
    yield (
        choose("End-to-end time", "端到端时间"),
        see("e2e_time"),
        choose("unit: s; from launch to the end, of full runs", "单位为s；自启动至结束，仅完整训练"),
    )
    yield (
        choose("Overall throughput", "总吞吐量"),
        see("p_whole"),
        f"{rate}{choose('; evaluation and data wait included', '；含评估与数据等待')}",
    )
    yield (
        choose("Training throughput", "训练吞吐量"),
        see("p_train"),
        f"{rate}{choose('; without evaluation', '；不含评估')}",
    )
    yield (
        choose("Compute throughput", "计算吞吐量"),
        see("p_core"),
        f"{rate}{choose('; without evaluation and data wait', '；不含评估与数据等待')}",
    )
    yield choose("Training result", "训练结果"), see(section.quality), f"{choose('target', '目标')} {section.goal}"


def _row(row: PublishedRow, section: Written, choose: Choose) -> tuple[str, ...]:
    topology = Topology.parse(row.topology)
    unit = row.quality_unit if row.quality_unit not in (None, "-") else ""
    return (
        choose(_english(_shown(row, section), topology), _chinese(_shown(row, section), topology)),
        row.precision,
        row.fix_hp or "",
        written(row.e2e_time_s),
        written(row.p_whole),
        written(row.p_train),
        written(row.p_core),
        written(row.quality, unit or "") if row.quality is not None else "",
        _memory(row),
    )


def _shown(row: PublishedRow, section: Written) -> str:
    """The short name of a row's device, or all of it where another device of the section has the same."""
    short = names.short_device(row.device)
    alike = {other.device for other in section.rows if names.short_device(other.device) == short}
    return short if len(alike) == 1 else row.device


def _english(device: str, topology: Topology) -> str:
    nodes = f"{topology.nodes} node{'s' if topology.nodes > 1 else ''}"
    devices = f"{topology.devices_per_node} device{'s' if topology.devices_per_node > 1 else ''}"
    return f"{device} {nodes}, {devices} ({topology})"


def _chinese(device: str, topology: Topology) -> str:
    nodes = {1: "单机", 2: "两机"}.get(topology.nodes, f" {topology.nodes}机")
    devices = "单卡" if topology.devices_per_node == 1 else f"{topology.devices_per_node}卡"
    return f"{device}{nodes}{devices}（{topology}）"


def _memory(row: PublishedRow) -> str:
    if row.mem_used_gib is None and row.mem_total_gib is None:
        return ""
    return "/".join(_decimal(value) for value in (row.mem_used_gib, row.mem_total_gib))


def _decimal(value: float | None) -> str:
    text = written(value)
    return f"{text}.0" if text and "." not in text else text


def _pick(choose: Choose, *pairs: tuple[str, str]) -> list[str]:
    return [choose(*pair) for pair in pairs]
