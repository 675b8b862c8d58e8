"""What the doctor finds is decided by what the kernel's files, the platform and the site say, and by nothing else."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace as changed

from trainmark.data import MANIFEST
from trainmark.features.doctor import checks, device_checks, host_checks, site_checks
from trainmark.features.doctor.device_checks import Rate
from trainmark.features.doctor.site_checks import Interface
from trainmark.platforms import files, sensors
from trainmark.platforms.files import Peak, PlatformFile, Recognise
from trainmark.platforms.platform import Device, Platform
from trainmark.platforms.reading import Reading
from trainmark.record import cores
from trainmark.record.checks import CheckResult, check, doubt, failed, ok, unknown
from trainmark.record.errors import UsageError
from trainmark.record.precision import PRECISIONS

MEMINFO = "MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: {free} kB\nSwapTotal: {swap} kB\nSwapFree: 0 kB\n"
ROOMY = {"files": (65536, 65536), "locked_bytes": (-1, -1), "processes": (-1, -1)}


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """A root folder that holds these files of /proc and /sys, and nothing else."""

    def plant(contents: dict[str, str]) -> Path:
        for name, text in contents.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return plant


Tree = Callable[[dict[str, str]], Path]


# The kernel's files


@pytest.mark.parametrize(
    "look",
    [
        lambda root: host_checks.check_cores(root, {0, 1}),
        host_checks.check_memory,
        host_checks.check_load,
        host_checks.check_clock,
        lambda root: host_checks.check_shared_memory(root / "dev/shm", accelerators=0),
    ],
)
def test_a_file_that_is_not_there_makes_the_finding_unknown_and_is_named(
    tmp_path: Path, look: Callable[[Path], CheckResult]
) -> None:
    found = look(tmp_path)
    assert found.verdict == "unknown"
    assert found.sentence.startswith(str(tmp_path))
    assert "cannot be read: No such file or directory" in found.sentence
    assert found.exit_code == 0


def test_junk_in_a_file_of_the_kernel_is_told_and_not_raised(tree: Tree) -> None:
    found = host_checks.check_memory(tree({"proc/meminfo": "MemTotal: much\n"}))
    assert (found.verdict, found.name, found.group) == ("unknown", "memory", "Host")
    assert "ValueError" in found.sentence


@pytest.mark.parametrize(
    ("words", "preference", "verdict"),
    [
        ("performance", None, "ok"),
        ("schedutil", None, "ok"),
        ("powersave", None, "doubt"),
        ("powersave", "power", "doubt"),
        ("powersave", "balance_performance", "ok"),
        ("conservative", None, "doubt"),
    ],
)
def test_a_governor_that_saves_power_is_doubted(tree: Tree, words: str, preference: str | None, verdict: str) -> None:
    folder = "sys/devices/system/cpu/cpu{}/cpufreq"
    contents = {f"{folder.format(core)}/scaling_governor": f"{words}\n" for core in (0, 1)}
    if preference:
        contents[f"{folder.format(0)}/energy_performance_preference"] = f"{preference}\n"
    found = host_checks.check_governor(tree(contents))
    assert (found.verdict, found.sentence.split()[0].strip(":")) == (verdict, words)
    assert ("tee /sys/devices/system/cpu" in found.remedy) == (verdict == "doubt")


def test_one_slow_core_among_fast_ones_is_doubted(tree: Tree) -> None:
    folder = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
    found = host_checks.check_governor(tree({folder.format(0): "performance", folder.format(7): "powersave"}))
    assert found.verdict == "doubt"
    assert found.facts["governors"] == ["performance", "powersave"]


def test_a_kernel_without_governors_leaves_it_unknown(tmp_path: Path) -> None:
    assert host_checks.check_governor(tmp_path).verdict == "unknown"


def test_cores_are_counted_as_present_usable_and_threads_of_one(tree: Tree) -> None:
    folder = "sys/devices/system/cpu"
    siblings = {f"{folder}/cpu{core}/topology/thread_siblings_list": f"{core % 2},{core % 2 + 2}" for core in range(4)}
    found = host_checks.check_cores(tree({f"{folder}/present": "0-3,8", **siblings}), {0, 1, 2, 3})
    assert (found.verdict, found.sentence) == ("ok", "4 of 5 cores usable, as threads of 2 (SMT)")


QUOTAS = {
    "version 2": {
        "proc/self/cgroup": "0::/pod/own\n",
        "sys/fs/cgroup/pod/own/x": "",
        "sys/fs/cgroup/pod/cpu.max": "150000 100000",
    },
    "version 2 in a container": {"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "150000 100000"},
    "version 1": {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    },
    "several on the way": {
        "proc/self/cgroup": "0::/pod/own\n",
        "sys/fs/cgroup/pod/own/cpu.max": "600000 100000",
        "sys/fs/cgroup/pod/cpu.max": "150000 100000",
    },
}


@pytest.mark.parametrize("kind", QUOTAS)
def test_a_quota_below_the_cores_is_said_and_doubted_where_more_threads_are_asked_for(tree: Tree, kind: str) -> None:
    root = tree({"sys/devices/system/cpu/present": "0-7", **QUOTAS[kind]})
    found = host_checks.check_cores(root, range(8), {})
    assert (found.verdict, found.facts["quota_cores"]) == ("ok", 1.5)
    assert "a quota of 1.5, so that a run takes 1 thread" in found.sentence
    found = host_checks.check_cores(root, range(8), {"OMP_NUM_THREADS": "8"})
    assert (found.verdict, found.remedy) == ("doubt", "export OMP_NUM_THREADS=1")


@pytest.mark.parametrize("kind", QUOTAS)
def test_a_run_counts_the_cores_its_quota_leaves(tree: Tree, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert cores.count_usable_cores(tree({})) == 8
    assert cores.count_usable_cores(tree(QUOTAS[kind])) == 1


@pytest.mark.parametrize(
    "contents",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"},
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        {"proc/self/cgroup": "junk\n\n:::\n", "sys/fs/cgroup/cpu.max": ""},
        {},
    ],
)
def test_no_quota_leaves_all_cores(tree: Tree, contents: dict[str, str]) -> None:
    assert cores.read_cgroup(tree(contents)) == cores.Allowance()


def test_a_single_core_is_doubted(tree: Tree) -> None:
    assert host_checks.check_cores(tree({"sys/devices/system/cpu/present": "0"}), {0}).verdict == "doubt"


@pytest.mark.parametrize(
    ("free_gib", "swap_gib", "verdict", "words"),
    [
        (32, 0, "ok", "32 GiB of 64 GiB free, no swap in use"),
        (2, 0, "doubt", "little for a full-size network"),
        (0.25, 0, "failed", "too little for any recipe"),
        (32, 8, "doubt", "8 GiB swapped out"),
        (32, 1, "ok", "1 GiB swapped out"),
    ],
)
def test_memory_is_judged_by_what_is_free_and_what_was_pushed_out(
    tree: Tree, free_gib: float, swap_gib: int, verdict: str, words: str
) -> None:
    found = host_checks.check_memory(
        tree({"proc/meminfo": MEMINFO.format(free=int(free_gib * 2**20), swap=swap_gib << 20)})
    )
    assert found.verdict == verdict
    assert words in found.sentence
    assert found.exit_code == (3 if verdict == "failed" else 0)


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/", "sys/fs/cgroup/memory.max"), ("9:memory:/a/b", "sys/fs/cgroup/memory/memory.limit_in_bytes")],
)
def test_a_control_group_may_allow_less_than_the_machine_has(tree: Tree, line: str, file: str) -> None:
    root = tree({"proc/meminfo": MEMINFO.format(free=32 << 20, swap=0), "proc/self/cgroup": line, file: str(2 << 30)})
    found = host_checks.check_memory(root)
    assert found.verdict == "doubt"
    assert "2 GiB allowed by the control group" in found.sentence


def test_the_number_version_1_writes_for_no_limit_is_none(tree: Tree) -> None:
    file = "sys/fs/cgroup/memory/memory.limit_in_bytes"
    assert cores.read_cgroup(tree({"proc/self/cgroup": "9:memory:/", file: "9223372036854771712"})).memory_bytes is None


@pytest.mark.parametrize(
    ("free_mib", "accelerators", "verdict"),
    [(64, 0, "ok"), (64, 1, "ok"), (64, 8, "doubt"), (8, 8, "failed"), (2048, 8, "ok"), (0.5, 0, "failed")],
)
def test_small_shared_memory_matters_to_the_collectives_of_several_devices(
    tmp_path: Path, free_mib: float, accelerators: int, verdict: str
) -> None:
    free = int(free_mib * 2**20)
    found = host_checks.check_shared_memory(tmp_path, accelerators=accelerators, usage=lambda path: (free, 0, free))
    assert found.verdict == verdict
    assert ("--shm-size" in found.remedy) == (verdict != "ok")


@pytest.mark.parametrize(
    ("changed", "verdict", "remedy"),
    [
        ({}, "ok", ""),
        ({"files": (256, 65536)}, "doubt", "ulimit -n 65536"),
        ({"files": (256, 512)}, "doubt", "sudo prlimit -p $$ -n65536"),
        ({"files": (256, -1), "processes": (100, 100)}, "doubt", "ulimit -n 65536 && ulimit -u 65536"),
        ({"processes": (20, 20)}, "failed", "ulimit -u 65536"),
    ],
)
def test_low_limits_of_the_shell_come_with_the_line_that_lifts_them(
    tmp_path: Path, changed: dict[str, tuple[int, int]], verdict: str, remedy: str
) -> None:
    found = host_checks.check_limits(tmp_path, {**ROOMY, **changed})
    assert (found.verdict, found.remedy) == (verdict, remedy)


def test_the_control_group_counts_processes_too(tree: Tree) -> None:
    root = tree({"proc/self/cgroup": "8:pids:/", "sys/fs/cgroup/pids/pids.max": "200"})
    found = host_checks.check_limits(root, ROOMY)
    assert (found.verdict, found.facts["processes"]) == ("doubt", 200)


def test_locked_memory_is_only_needed_by_infiniband(tree: Tree, tmp_path: Path) -> None:
    little = {**ROOMY, "locked_bytes": (65536, 65536)}
    assert host_checks.check_limits(tmp_path, little).verdict == "ok"
    found = host_checks.check_limits(tree({"sys/class/infiniband/mlx5_0/node_type": "1"}), little)
    assert (found.verdict, found.remedy) == ("doubt", "ulimit -l unlimited")


def stat(pid: int, name: str, ticks: int) -> str:
    return f"{pid} ({name}) R {'0 ' * 10}{ticks} 0 {'0 ' * 10}\n"


def test_a_high_load_of_others_is_doubted_and_the_busiest_are_named(tree: Tree) -> None:
    root = tree(
        {
            "proc/stat": "cpu 0 0 0 1000 0 0 0 0 0 0\ncpu0 0\ncpu1 0\n",
            "proc/self/stat": stat(7, "doctor", 0),
            "proc/7/stat": stat(7, "doctor", 0),
            "proc/8/stat": stat(8, "a (b) c", 0),
            "proc/9/stat": "junk",
        }
    )

    def a_second(seconds: float) -> None:
        tree(
            {
                "proc/stat": "cpu 100 0 10 1070 0 0 0 20 100 0\ncpu0 0\ncpu1 0\n",
                "proc/self/stat": stat(7, "doctor", 10),
                "proc/7/stat": stat(7, "doctor", 10),
                "proc/8/stat": stat(8, "a (b) c", 90),
            }
        )

    found = host_checks.check_load(root, wait=a_second)
    assert found.verdict == "doubt"
    assert found.facts["share"] == 0.6
    assert found.sentence == (
        "others use 60 % of the cores, of which 10 % are stolen by other guests of the host: a (b) c (8)"
    )
    assert found.remedy.endswith(" -p 8")


def test_a_quiet_machine_is_ok_and_a_frozen_count_is_unknown(tree: Tree) -> None:
    quiet = {"proc/stat": "cpu 5 0 0 1000 0\ncpu0 0\n", "proc/self/stat": stat(7, "doctor", 0)}
    root = tree(quiet)
    assert host_checks.check_load(root, wait=lambda s: None).verdict == "unknown"
    found = host_checks.check_load(root, wait=lambda s: tree({"proc/stat": "cpu 6 0 0 1099 0\ncpu0 0\n"}))
    assert (found.verdict, found.sentence) == ("ok", "others use 1 % of the cores")


@pytest.mark.parametrize(
    ("current", "verdict", "remedy"), [("tsc", "ok", ""), ("hpet", "doubt", "echo tsc | sudo tee /sys/devices/")]
)
def test_a_clock_that_is_slow_to_read_is_doubted(tree: Tree, current: str, verdict: str, remedy: str) -> None:
    folder = "sys/devices/system/clocksource/clocksource0"
    found = host_checks.check_clock(
        tree({f"{folder}/current_clocksource": f"{current}\n", f"{folder}/available_clocksource": "tsc hpet\n"})
    )
    assert found.verdict == verdict
    assert found.remedy.startswith(remedy)


def plant_card(root: Path, kind: str, driver: str | None) -> None:
    card = root / f"sys/bus/pci/devices/0000:{kind[2:4]}:00.0"
    card.mkdir(parents=True)
    (card / "class").write_text(f"{kind}\n")
    if driver:
        (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True)
        (card / "driver").symlink_to(root / f"sys/bus/pci/drivers/{driver}")


def test_drivers_are_found_on_the_bus_with_their_version(tree: Tree) -> None:
    root = tree({"sys/module/acme/version": "5.1\n"})
    assert host_checks.check_driver(root, is_cpu=True).verdict == "ok"
    assert host_checks.check_driver(root, is_cpu=False).verdict == "unknown"
    plant_card(root, "0x030200", "acme")
    found = host_checks.check_driver(root, is_cpu=False)
    assert (found.verdict, found.sentence) == ("ok", "acme 5.1")
    assert "a CPU is used" in host_checks.check_driver(root, is_cpu=True).sentence


def test_a_card_without_a_driver_is_doubted_and_a_small_screen_card_is_not(tmp_path: Path) -> None:
    plant_card(tmp_path, "0x030000", None)
    assert host_checks.check_driver(tmp_path, is_cpu=True).verdict == "ok"
    plant_card(tmp_path, "0x120000", None)
    assert "1 accelerator on the PCI bus without a driver" in host_checks.check_driver(tmp_path, is_cpu=True).sentence


# Devices


def a_file(**changes: object) -> PlatformFile:
    return changed(files.load("cpu"), visible_devices="ACME_VISIBLE_DEVICES", **changes)  # type: ignore[arg-type]


def a_card(name: str = "Acme 1", gib: int = 40) -> Device:
    return SimpleNamespace(  # type: ignore[return-value]
        name=lambda: name, memory_capacity_bytes=lambda: gib << 30, is_stand_in=False, is_cpu=False
    )


def test_like_devices_are_counted_and_unlike_ones_doubted() -> None:
    found = device_checks.check_devices(a_file(), [a_card()] * 8, environ={})
    assert (found.verdict, found.sentence) == ("ok", "8 x Acme 1, 40 GiB")
    mixed = device_checks.check_devices(a_file(), [a_card("old"), a_card(), a_card()], environ={})
    assert mixed.verdict == "doubt"
    assert mixed.remedy.startswith("export ACME_VISIBLE_DEVICES=1,2 ")


def test_no_device_fails_and_a_variable_that_hides_them_is_named() -> None:
    found = device_checks.check_devices(a_file(title="Acme"), [], environ={"ACME_VISIBLE_DEVICES": "9"})
    assert (found.verdict, found.exit_code, found.remedy) == ("failed", 3, "unset ACME_VISIBLE_DEVICES")
    assert found.sentence == "torch sees no Acme device here (ACME_VISIBLE_DEVICES=9)"


def test_a_device_whose_name_the_file_does_not_know_is_doubted() -> None:
    file = a_file(device_type="acme", recognise=Recognise(device_name="^Acme"))
    known = device_checks.check_platform(file, chosen_by="as asked", device_names=["Acme 1"])
    assert (known.verdict, known.facts["recognised_by_name"]) == ("ok", True)
    assert "no peak is known for 'Acme 1'" in known.sentence
    assert device_checks.check_platform(file, chosen_by="as asked", device_names=["Other 5"]).verdict == "doubt"


def test_the_precisions_of_a_real_cpu_are_trained_and_told() -> None:
    found = device_checks.check_precision(Platform(files.load("cpu")).open(0))
    assert found.verdict == "ok"
    assert found.facts["runs"] == list(files.load("cpu").precisions)


@pytest.mark.parametrize(("refused", "verdict"), [("fp32", "failed"), ("fp16", "doubt")])
def test_a_precision_that_is_listed_and_does_not_run_is_told(
    monkeypatch: pytest.MonkeyPatch, refused: str, verdict: str
) -> None:
    device = Platform(files.load("cpu")).open(0)
    monkeypatch.setattr(device, "explain_refusal", lambda asked: "no kernel" if asked.name == refused else None)
    found = device_checks.check_precision(device)
    assert found.verdict == verdict
    assert f"{refused} not at all: no kernel" in found.sentence
    assert found.remedy.startswith("trainmark run --precision ")


def with_reader(monkeypatch: pytest.MonkeyPatch, readings: list[Reading], unavailable: dict[str, str]) -> list[str]:
    closed: list[str] = []
    reader = SimpleNamespace(read=lambda: readings, unavailable=unavailable, close=lambda: closed.append("closed"))
    monkeypatch.setattr(sensors, "open_reader", lambda file: reader)
    return closed


def test_sensors_say_what_they_read_and_why_not_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"energy_j": "no counter", "ecc_errors": "no counter", "clock_mhz": "not asked"}
    closed = with_reader(monkeypatch, [Reading(device=0, power_w=50.0, temperature_c=40.0)], missing)
    found = device_checks.check_sensors(a_file())
    assert found.verdict == "ok"
    assert found.sentence == "power, temperature; no energy, ECC errors: no counter; no clock: not asked"
    assert found.facts["unavailable"] == missing
    assert closed == ["closed"]


def test_sensors_without_power_or_of_nothing_leave_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with_reader(monkeypatch, [Reading(device=0, temperature_c=40.0)], {"power_w": "hidden"})
    assert device_checks.check_sensors(a_file()).sentence == "temperature; no power: hidden"
    with_reader(monkeypatch, [], {"power_w": "acme-smi is not installed"})
    found = device_checks.check_sensors(a_file())
    assert (found.verdict, found.sentence) == ("unknown", "nothing can be read; acme-smi is not installed")


def test_the_real_sensors_of_this_machine_are_read_without_an_error() -> None:
    found = device_checks.check_sensors(files.load("cpu"))
    assert found.verdict in ("ok", "unknown")
    assert "could not be checked" not in found.sentence


# Speed


def rates(*medians: float) -> list[Rate]:
    return [Rate(values=(0.99 * value, value, 1.01 * value)) for value in medians]


@pytest.mark.parametrize(
    ("measured", "peak", "verdict", "words"),
    [
        (rates(250), 312, "ok", "250 TFLOP/s ±0.8 %, 80 % of 312 (sheet)"),
        (rates(100), 312, "doubt", "shared, hot, or power-limited"),
        (rates(400), 312, "doubt", "more than its peak"),
        (rates(0.035), None, "ok", "35 GFLOP/s ±0.8 %"),
        (rates(250, 251, 249, 180), 312, "doubt", "slowest is device 3 with 180 TFLOP/s, 28 % below the median"),
        ([Rate(values=(1, 2, 3, 4))], None, "doubt", "not steady"),
    ],
)
def test_a_speed_is_held_against_the_peak_the_others_and_itself(
    measured: list[Rate], peak: float | None, verdict: str, words: str
) -> None:
    found = device_checks.judge_rates(measured, unit="TFLOP/s", file=a_file(), peak=peak, source="sheet")
    assert found.verdict == verdict
    assert words in found.sentence
    assert bool(found.remedy) == (verdict == "doubt")


def test_real_products_and_copies_have_a_rate_and_count_towards_the_files_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_checks, "COPY_BYTES", 1 << 20)
    platform = Platform(a_file(peaks=(Peak(device="", source="sheet", tflops={"fp32": 1e-6}),)))
    device = platform.open(0)
    found = device_checks.check_matmul([device], PRECISIONS["fp32"], budget_s=0.01)
    assert (found.name, found.group, found.verdict) == ("matmul fp32", "Speed", "doubt")
    assert found.facts["share_of_peak"] > 1
    assert device_checks.measure_copy(device, budget_s=0.01).median > 0


def test_a_device_that_cannot_multiply_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*words: object, **more: object) -> Rate:
        raise RuntimeError("device lost\nlong trace")

    monkeypatch.setattr(device_checks, "measure_matmul", lost)
    monkeypatch.setattr(device_checks, "measure_copy", lost)
    device = Platform(files.load("cpu")).open(0)
    for found in (
        device_checks.check_matmul([device], PRECISIONS["fp32"], budget_s=1),
        device_checks.check_copy([device], budget_s=1),
    ):
        assert (found.verdict, found.sentence) == ("failed", "the device failed: device lost")


def test_work_is_repeated_until_the_budget_is_used_and_timed_between_two_waits() -> None:
    moments: list[str] = []
    clock = iter(range(10_000))
    device = SimpleNamespace(synchronize=lambda: moments.append("wait"))
    rate = device_checks._measure_rate(
        device,  # type: ignore[arg-type]
        lambda: moments.append("work"),
        amount=6.0,
        budget_s=30.0,
        once_s=1.0,
        now_s=lambda: float(next(clock)),
    )
    assert moments[:3] == ["wait", "work", "wait"]
    assert set(rate.values) == {6.0}
    assert next(clock) in range(30, 35)  # each reading of it takes a second


# Site


def test_a_store_that_can_be_written_has_its_room_told(tmp_path: Path) -> None:
    def of(free_mib: int) -> CheckResult:
        return site_checks.check_store(tmp_path / "new" / "store", usage=lambda path: (1, 1, free_mib << 20))

    assert [of(size).verdict for size in (100_000, 1000, 10)] == ["ok", "doubt", "failed"]
    assert not (tmp_path / "new").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written_fails() -> None:
    found = site_checks.check_store(Path("/proc/self/store"))
    assert (found.verdict, found.exit_code) == ("failed", 3)
    assert "cannot be written" in found.sentence
    assert found.remedy.startswith("export TRAINMARK_STORE=")


def test_a_site_file_is_told_and_a_wrong_one_fails(tmp_path: Path) -> None:
    assert "no trainmark.toml" in site_checks.check_site_file({}, tmp_path).sentence
    file = tmp_path / "trainmark.toml"
    file.write_text('[data]\nimagenet = "pictures"\n[network]\ninterface = "ib0"\nport = 5000\n[remote]\nuser = "me"\n')
    found = site_checks.check_site_file({}, tmp_path)
    assert found.sentence == (
        "trainmark.toml is valid and gives data of imagenet, interface ib0, port 5000, how other hosts are entered"
    )
    file.write_text("[date]\n")
    found = site_checks.check_site_file({}, tmp_path)
    assert (found.verdict, found.exit_code) == ("failed", 3)
    assert "key 'date' is not known; did you mean 'data'?" in found.sentence


def test_the_embedded_sets_are_made_or_will_be(tmp_path: Path) -> None:
    def found() -> CheckResult:
        return site_checks.check_data_set("imagenet", None, made_in=lambda name: tmp_path / name)

    assert (found().name, found().verdict, found().facts["made"]) == ("data imagenet", "ok", False)
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet" / MANIFEST).write_text("{}")
    assert (found().sentence, found().facts["made"]) == ("the synthetic set exists", True)


def test_a_cache_that_cannot_be_written_fails_where_a_set_is_still_to_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = site_checks.check_data_set("ljspeech", None, made_in=lambda name: tmp_path / name)
    assert (found.verdict, found.remedy) == ("failed", "export TRAINMARK_CACHE=/a/folder/with/room")


def test_the_folder_the_site_names_is_looked_at_shallowly(pictures: Path, tmp_path: Path) -> None:
    assert "3 train and 3 val classes" in site_checks.check_data_set("imagenet", str(pictures)).sentence
    copied = tmp_path / "set"
    shutil.copytree(pictures, copied)
    lost = min((copied / "val").iterdir())
    shutil.rmtree(lost)
    found = site_checks.check_data_set("imagenet", str(copied))
    assert found.verdict == "doubt"
    assert f"1 of them not in both, such as {lost.name}" in found.sentence
    assert found.remedy == f"trainmark data verify imagenet {copied}"


@pytest.mark.parametrize("name", ["imagenet", "ljspeech"])
def test_a_folder_that_is_not_there_fails(name: str, tmp_path: Path) -> None:
    found = site_checks.check_data_set(name, str(tmp_path / "nowhere"))
    assert (found.verdict, found.exit_code) == ("failed", 3)
    assert str(tmp_path / "nowhere") in found.sentence


def test_a_port_in_use_is_doubted_with_another_to_take() -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        taken = int(listener.getsockname()[1])
        found = site_checks.check_ports(taken)
        assert found.verdict == "doubt"
        assert f"port = {found.facts['free_port']}" in found.remedy
    assert site_checks.check_ports(taken).verdict == "ok"


def test_programs_are_facts_and_none_is_required() -> None:
    nothing = site_checks.check_programs(which=lambda name: None)
    assert (nothing.verdict, nothing.facts["compiler"]) == ("ok", None)
    assert "no ssh, srun, kubectl, C++ compiler" in nothing.sentence
    some = site_checks.check_programs(which=lambda name: f"/bin/{name}" if name in ("ssh", "g++") else None)
    assert some.sentence == "ssh, g++; no srun, kubectl"


def test_the_interface_the_site_names_has_to_be_up() -> None:
    known = [
        Interface(name="lo", up=True, addresses=("127.0.0.1",)),
        Interface(name="eth0", up=True, addresses=("10.0.0.1",), speed_mbit=25_000),
        Interface(name="ib0", up=False, addresses=("10.1.0.1",)),
    ]
    assert site_checks.check_network(known, None).sentence == "lo, eth0 (25 Gbit/s)"
    assert site_checks.check_network(known, "eth0").verdict == "ok"
    assert site_checks.check_network(known, "ib0").exit_code == 3
    assert site_checks.check_network([], None).verdict == "doubt"


# All of it


def test_the_whole_examination_survives_a_machine_whose_kernel_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    asked = checks.DoctorOptions(store=tmp_path / "store", platform="cpu", root=tmp_path / "nothing")
    sections = list(checks.examine(asked))
    assert [section.group for section in sections if section.name in ("devices", "torch", "memory", "store")] == [
        "Device",
        "Software",
        "Host",
        "Site",
    ]
    verdicts = {section.name: section.verdict for section in sections}
    for name in ("cores", "governor", "load", "memory", "/dev/shm", "clock"):
        assert verdicts[name] == "unknown"
    assert "failed" not in verdicts.values()
    assert not any(section.group == "Speed" for section in sections)


def test_every_section_says_its_name_group_and_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(device_checks, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(host_checks, "SAMPLE_S", 0.0)
    told: list[str] = []
    asked = checks.DoctorOptions(store=tmp_path / "store", platform="cpu", probe_s=0.02)
    sections = list(checks.examine(asked, told.append))
    assert all(section.name and section.group and section.sentence for section in sections)
    assert len({section.name for section in sections}) == len(sections)
    assert {section.group for section in sections} == {"Device", "Software", "Host", "Site", "Speed"}
    assert len(told) == 1


def test_a_platform_that_cannot_be_opened_is_a_finding_and_an_unknown_one_a_wrong_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    lacking = tmp_path / "acme.toml"
    lacking.write_text(
        'title = "Acme"\ndevice_type = "acme"\ncollectives = "none"\nprecisions = ["fp32"]\nplugin = "torch_acme"\n'
    )
    asked = checks.DoctorOptions(store=tmp_path / "store", platform=str(lacking), root=tmp_path, probe_s=1.0)
    found = {section.name: section for section in checks.examine(asked)}
    assert (found["devices"].verdict, found["devices"].exit_code) == ("failed", 3)
    assert "torch_acme" in found["devices"].sentence
    assert "from acme.toml" in found["platform"].sentence
    assert not any(name.startswith("matmul") for name in found)
    with pytest.raises(UsageError, match="did you mean 'cpu'"):
        list(checks.examine(dataclasses.replace(asked, platform="cpuu")))


def test_the_stand_in_is_examined_like_any_accelerator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(device_checks, "COPY_BYTES", 1 << 20)
    asked = checks.DoctorOptions(store=tmp_path / "store", platform="standin", root=tmp_path, probe_s=0.02)
    found = {section.name: section for section in checks.examine(asked)}
    assert found["devices"].verdict == "doubt"
    assert "whose speed means nothing" in found["devices"].sentence
    assert len(found["matmul fp32"].facts["devices"]) == found["devices"].facts["count"]


def test_a_torch_that_cannot_be_imported_fails_and_the_rest_is_still_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "trainmark.features.doctor.device_checks", None)
    monkeypatch.delattr("trainmark.features.doctor.device_checks")
    asked = checks.DoctorOptions(store=tmp_path / "store", root=tmp_path, probe_s=1.0)
    sections = list(checks.examine(asked))
    assert (sections[0].name, sections[0].exit_code) == ("torch", 3)
    assert "torch cannot be imported" in sections[0].sentence
    assert {section.group for section in sections} == {"Software", "Host", "Site"}


def test_the_summary_counts_what_is_not_ok() -> None:
    assert checks.summarize([ok("a"), ok("b")]) == "ready"
    assert checks.summarize([ok("a"), doubt("b"), doubt("c"), unknown("d")]) == "ready; 2 doubts, 1 unknown"
    assert checks.summarize([failed("a"), doubt("b")]) == "not ready; 1 failed, 1 doubt"


def test_whatever_a_check_raises_becomes_a_finding() -> None:
    @check("thing", "Group")
    def explode() -> CheckResult:
        raise KeyError("odd\nlines")

    found = explode()
    assert (found.name, found.group, found.verdict) == ("thing", "Group", "unknown")
    assert "KeyError" in found.sentence
    assert "\n" not in found.sentence
