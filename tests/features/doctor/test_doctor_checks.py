"""What the doctor finds is decided by what the kernel's files, the platform and the site say, and by nothing else."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from msgspec.structs import replace as changed

from trainmark.features.doctor import command, device_checks, host_checks, screen
from trainmark.features.doctor.device_checks import Rates
from trainmark.platforms import files, sensors
from trainmark.platforms.files import Peak, PlatformFile, Recognise
from trainmark.platforms.platform import Device, Platform
from trainmark.platforms.sensors import Reading
from trainmark.record import cores
from trainmark.record.checks import CheckResult, check, doubt, failed, ok, unknown
from trainmark.record.errors import UsageError


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


def test_a_kernel_without_governors_leaves_it_unknown(tmp_path: Path) -> None:
    assert host_checks.check_governor(tmp_path).verdict == "unknown"


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
    root = tree(QUOTAS[kind])
    found = host_checks.check_cores(root, range(8), {})
    assert found.verdict == "ok"
    assert "a quota of 1.5, so that a run takes 1 thread" in found.sentence
    found = host_checks.check_cores(root, range(8), {"OMP_NUM_THREADS": "8"})
    assert (found.verdict, found.remedy) == ("doubt", "export OMP_NUM_THREADS=1")


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
    assert host_checks.check_cores(tree({}), {0}).verdict == "doubt"


def test_the_number_version_1_writes_for_no_limit_is_none(tree: Tree) -> None:
    file = "sys/fs/cgroup/memory/memory.limit_in_bytes"
    assert cores.read_cgroup(tree({"proc/self/cgroup": "9:memory:/", file: "9223372036854771712"})).memory_bytes is None


@pytest.mark.parametrize(
    ("free_gib", "verdict", "words"),
    [
        (32, "ok", "32 GiB of 64 GiB free"),
        (2, "doubt", "little for a full-size network"),
        (0.25, "failed", "too little for any recipe"),
    ],
)
def test_memory_is_judged_by_what_is_free(
    tmp_path: Path, free_gib: float, verdict: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(total=64 << 30, available=int(free_gib * 2**30))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: found)
    result = host_checks.check_memory(tmp_path)
    assert (result.verdict, result.exit_code) == (verdict, 3 if verdict == "failed" else 0)
    assert words in result.sentence


def test_a_control_group_may_allow_less_than_the_machine_has(tree: Tree) -> None:
    found = host_checks.check_memory(tree({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": str(256 << 20)}))
    assert found.verdict == "failed"
    assert "256 MiB allowed by the control group" in found.sentence


def usage(free_mib: float) -> object:
    return shutil._ntuple_diskusage(int(free_mib * 2**20), 0, int(free_mib * 2**20))


@pytest.mark.parametrize(
    ("free_mib", "accelerators", "verdict"),
    [(64, 0, "ok"), (64, 1, "ok"), (64, 8, "doubt"), (8, 8, "failed"), (2048, 8, "ok"), (0.5, 0, "failed")],
)
def test_small_shared_memory_matters_to_the_collectives_of_several_devices(
    tmp_path: Path, free_mib: float, accelerators: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free_mib))
    found = host_checks.check_shared_memory(tmp_path, accelerators=accelerators)
    assert found.verdict == verdict
    assert ("--shm-size" in found.remedy) == (verdict != "ok")


@pytest.mark.parametrize(
    ("limits", "files", "verdict", "remedy"),
    [
        ({}, {}, "ok", ""),
        ({resource.RLIMIT_NOFILE: 256}, {}, "doubt", "ulimit -n 65536 || sudo prlimit -p $$ -n65536"),
        ({resource.RLIMIT_NPROC: 20}, {}, "failed", "ulimit -u 65536"),
        ({}, {"proc/self/cgroup": "8:pids:/", "sys/fs/cgroup/pids/pids.max": "200"}, "doubt", "ulimit -u 65536"),
        ({resource.RLIMIT_MEMLOCK: 65536}, {}, "ok", ""),
        ({resource.RLIMIT_MEMLOCK: 65536}, {"sys/class/infiniband/mlx5_0/n": "1"}, "doubt", "ulimit -l unlimited"),
    ],
)
def test_low_limits_come_with_the_line_that_lifts_them(
    limits: dict[int, int],
    files: dict[str, str],
    verdict: str,
    remedy: str,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits.get(kind, resource.RLIM_INFINITY), 0))
    found = host_checks.check_limits(tree(files))
    assert (found.verdict, found.remedy) == (verdict, remedy)


def test_a_high_load_of_others_is_doubted_and_the_busiest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = SimpleNamespace(pid=8, info={"name": "a (b) c"}, cpu_percent=lambda: 90.0)
    monkeypatch.setattr(psutil, "process_iter", lambda attributes: [busy])
    seconds = iter((10.0, 10.0, 10.0, 10.0 + 60 * (os.cpu_count() or 1)))
    monkeypatch.setattr(host_checks, "read_busy_s", lambda: next(seconds))
    assert host_checks.check_load(wait=lambda s: None).sentence == "others use 0 % of the cores"
    found = host_checks.check_load(wait=lambda s: None)
    assert found.verdict == "doubt"
    assert found.sentence.endswith(": a (b) c (8)")
    assert found.remedy.endswith(" -p 8")


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
    found = device_checks.judge_devices(a_file(), [a_card()] * 8)
    assert (found.verdict, found.sentence) == ("ok", "8 x Acme 1, 40 GiB")
    mixed = device_checks.judge_devices(a_file(), [a_card("old"), a_card(), a_card()])
    assert mixed.verdict == "doubt"
    assert mixed.remedy.startswith("export ACME_VISIBLE_DEVICES=1,2 ")


def test_the_precisions_of_a_real_cpu_are_trained_and_told() -> None:
    found = device_checks.check_precision(Platform(files.load("cpu")).open(0))
    assert found.verdict == "ok"
    assert found.sentence.startswith("fp32")


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


def test_no_device_fails_and_a_variable_that_hides_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "9")
    found = device_checks.judge_devices(a_file(title="Acme"), [])
    assert (found.verdict, found.exit_code, found.remedy) == ("failed", 3, "unset ACME_VISIBLE_DEVICES")
    assert found.sentence == "torch sees no Acme device here (ACME_VISIBLE_DEVICES=9)"


def test_a_device_whose_name_the_file_does_not_know_is_doubted() -> None:
    file = a_file(device_type="acme", recognise=Recognise(device_name="^Acme"))
    known = device_checks.check_platform(file, ["Acme 1"])
    assert known.verdict == "ok"
    assert "no peak is known for 'Acme 1'" in known.sentence
    assert device_checks.check_platform(file, ["Other 5"]).verdict == "doubt"


@pytest.mark.parametrize(
    ("readings", "verdict", "sentence"),
    [
        ([Reading(device=0, power_w=50.0, ecc_errors=0)], "ok", "power, ecc errors; no memory used"),
        ([Reading(device=0, temperature_c=40.0)], "unknown", "temperature; no memory used"),
        ([], "unknown", "nothing can be read; acme-smi is not installed"),
    ],
)
def test_sensors_say_what_they_read_and_why_not_the_rest(
    readings: list[Reading], verdict: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = sensors.Reader("acme-smi is not installed")
    monkeypatch.setattr(reader, "read", lambda: readings)
    monkeypatch.setattr(sensors, "open_reader", lambda table: reader)
    found = device_checks.check_sensors(a_file())
    assert found.verdict == verdict
    assert found.sentence.startswith(sentence)
    assert found.sentence.endswith("acme-smi is not installed")


def test_the_real_sensors_of_this_machine_are_read_without_an_error() -> None:
    found = device_checks.check_sensors(files.load("cpu"))
    assert found.verdict in ("ok", "unknown")
    assert "could not be checked" not in found.sentence


# Speed


def rates(*medians: float) -> list[Rates]:
    return [(0.99 * value, value, 1.01 * value) for value in medians]


@pytest.mark.parametrize(
    ("measured", "peak", "verdict", "words"),
    [
        (rates(250), 312, "ok", "250 TFLOP/s ±0.8 %, 80 % of 312 (sheet)"),
        (rates(100), 312, "doubt", "shared, hot, or power-limited"),
        (rates(400), 312, "doubt", "more than its peak"),
        (rates(0.035), None, "ok", "35 GFLOP/s ±0.8 %"),
        (rates(250, 251, 249, 180), 312, "doubt", "slowest is device 3 with 180 TFLOP/s, 28 % below the median"),
        ([(1, 2, 3, 4)], None, "doubt", "not steady"),
    ],
)
def test_a_speed_is_held_against_the_peak_the_others_and_itself(
    measured: list[Rates], peak: float | None, verdict: str, words: str
) -> None:
    found = device_checks.judge_rates(measured, unit="TFLOP/s", file=a_file(), peak=peak, source="sheet")
    assert found.verdict == verdict
    assert words in found.sentence
    assert bool(found.remedy) == (verdict == "doubt")


def test_real_products_and_copies_have_a_rate_and_count_towards_the_files_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_checks, "COPY_BYTES", 1 << 20)
    platform = Platform(a_file(peaks=(Peak(device="", source="sheet", tflops={"fp32": 1e-6}),)))
    multiplied, *_, copied = device_checks.check_speed([platform.open(0)], 0.02)
    assert (multiplied.name, multiplied.group, multiplied.verdict) == ("matmul fp32", "Speed", "doubt")
    assert multiplied.facts["share_of_peak"] > 1
    assert copied.facts["median"] > 0


def test_a_device_that_cannot_multiply_fails() -> None:
    def lose(device: Device) -> Rates:
        raise RuntimeError("device lost\nlong trace")

    found = device_checks.check_rate("matmul fp32", [a_card()], lose, unit="TFLOP/s")
    assert (found.verdict, found.sentence) == ("failed", "the device failed: device lost")


# Site


@pytest.mark.parametrize(("free_mib", "verdict"), [(100_000, "ok"), (1000, "doubt"), (10, "failed")])
def test_a_store_that_can_be_written_has_its_room_told(
    free_mib: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(free_mib))
    found = host_checks.check_folder("store", tmp_path / "new" / "store", "TRAINMARK_STORE")
    assert (found.name, found.verdict) == ("store", verdict)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written_fails() -> None:
    found = host_checks.check_folder("store", Path("/proc/self/store"), "TRAINMARK_STORE")
    assert (found.verdict, found.exit_code) == ("failed", 3)
    assert "cannot be written" in found.sentence
    assert found.remedy.startswith("export TRAINMARK_STORE=")


def test_a_wrong_site_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text("[date]\n")
    monkeypatch.setenv("TRAINMARK_CONFIG", str(tmp_path / "site.toml"))
    *_, found = host_checks.check_site(tmp_path)
    assert (found.name, found.verdict, found.exit_code) == ("site file", "failed", 3)
    assert "key 'date' is not known; did you mean 'data'?" in found.sentence


def test_a_data_set_must_be_where_the_site_file_says(pictures: Path, tmp_path: Path) -> None:
    assert host_checks.check_data("imagenet", pictures).verdict == "ok"
    assert host_checks.check_data("imagenet", tmp_path).verdict == "doubt"
    found = host_checks.check_data("imagenet", tmp_path / "nowhere")
    assert (found.verdict, found.exit_code) == ("failed", 3)
    assert str(tmp_path / "nowhere") in found.sentence


# All of it


def test_every_section_of_a_machine_says_its_name_group_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(device_checks, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(host_checks, "SAMPLE_S", 0.01)
    sections = list(command.examine(tmp_path / "store", "standin", 0.02))
    assert all(section.name and section.group and section.sentence for section in sections)
    assert len({section.name for section in sections}) == len(sections)
    assert {section.group for section in sections} == {"Device", "Software", "Host", "Site", "Speed"}
    found = {section.name: section for section in sections}
    assert found["devices"].verdict == "doubt"
    assert "whose speed means nothing" in found["devices"].sentence
    assert len(found["matmul fp32"].facts["devices"]) == 2


def test_a_platform_that_cannot_be_opened_is_a_finding_and_an_unknown_one_a_wrong_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    lacking = tmp_path / "acme.toml"
    lacking.write_text(
        'title = "Acme"\ndevice_type = "acme"\ncollectives = "none"\nprecisions = ["fp32"]\nplugin = "torch_acme"\n'
    )
    found = {section.name: section for section in command.examine(tmp_path, str(lacking), 1.0, root=tmp_path)}
    assert (found["devices"].verdict, found["devices"].exit_code) == ("failed", 3)
    assert "torch_acme" in found["devices"].sentence
    assert "acme.toml" in found["platform"].sentence
    assert found["/dev/shm"].verdict == "unknown"
    assert not any(name.startswith("matmul") for name in found)
    with pytest.raises(UsageError, match="did you mean 'cpu'"):
        list(command.examine(tmp_path, "cpuu", 1.0))


def test_a_torch_that_cannot_be_imported_fails_and_the_rest_is_still_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "trainmark.features.doctor.device_checks", None)
    monkeypatch.delattr("trainmark.features.doctor.device_checks")
    sections = list(command.examine(tmp_path / "store", None, 1.0, root=tmp_path))
    assert (sections[0].name, sections[0].exit_code) == ("torch", 3)
    assert "torch cannot be imported" in sections[0].sentence
    assert {section.group for section in sections} == {"Software", "Host", "Site"}


def test_the_summary_counts_what_is_not_ok() -> None:
    assert screen.summarize([ok("a"), ok("b")]) == "ready"
    assert screen.summarize([ok("a"), doubt("b"), doubt("c"), unknown("d")]) == "ready; 2 doubts, 1 unknown"
    assert screen.summarize([failed("a"), doubt("b")]) == "not ready; 1 failed, 1 doubt"


def test_whatever_a_check_raises_becomes_a_finding() -> None:
    @check("thing", "Group")
    def explode() -> CheckResult:
        raise KeyError("odd\nlines")

    found = explode()
    assert (found.name, found.group, found.verdict) == ("thing", "Group", "unknown")
    assert "KeyError" in found.sentence
    assert "\n" not in found.sentence
