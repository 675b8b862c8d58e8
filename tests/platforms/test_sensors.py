"""Sensors are read as a platform file declares them, and one that cannot be read is missing with its reason."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from msgspec.structs import replace as changed

from trainmark.platforms import files, sensors
from trainmark.platforms.host import HostReader
from trainmark.platforms.nvml import NvmlReader
from trainmark.platforms.sensors import FIELDS, ProgramReader, Reading, Sensors, run_program
from trainmark.record import tables
from trainmark.record.errors import UsageError

CSV = {"parse": "csv", "fields": {"device": {"from": "index"}, "power_w": {"from": "power"}}}


def tool(folder: Path, name: str, body: str) -> str:
    """A program as a vendor would ship one."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def reader(*programs: dict[str, Any]) -> ProgramReader:
    return ProgramReader(tables.read(Sensors, {"kind": "program", "programs": list(programs)}, "sensors").programs)


def test_a_program_is_run_without_a_locale_and_without_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    shown = tool(tmp_path, "smi", "print('index,power'); print('0,' + str(len(sys.argv[1])))")
    own = tool(tmp_path, "locale", "print(os.environ['LC_ALL'])")
    assert run_program((own,), 5) == ("C\n", "")
    [found] = reader({**CSV, "argv": [shown, "$HOME; *"]}).read()
    assert found == Reading(device=0, power_w=8)


def test_a_program_that_hangs_is_killed_with_all_it_started_and_given_up(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f"""
child = os.fork()
with open({str(pids)!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
time.sleep(600)
"""
    hanging = reader({**CSV, "argv": [tool(tmp_path, "smi", body)], "timeout_s": 0.3})
    assert [hanging.read() for _ in range(5)] == [[]] * 5
    assert hanging.unavailable["power_w"].endswith("did not answer within 0.3 s")
    started = [int(line) for line in pids.read_text().split()]
    assert 1 <= len(started) <= 2 * sensors.MAX_FAILURES
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_program_that_ends_but_leaves_a_child_with_its_pipes_is_not_waited_for(tmp_path: Path) -> None:
    body = "print('index,power\\n0,5', flush=True)\nif os.fork() == 0:\n    time.sleep(600)"
    said, why = run_program((tool(tmp_path, "smi", body),), 0.5)
    assert (said, why) == ("", "did not answer within 0.5 s")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("print('index,power\\n0,5'); sys.exit(9)", "ended with exit code 9"),
        ("print('no driver', file=sys.stderr); sys.exit(1)", "exit code 1: no driver"),
        ("print('index,heat\\n0,5')", "has no power"),
        ("print('index,power\\n0,')", "says nothing"),
        ("print('index,power\\n0,[Not Supported]')", "says [Not Supported]"),
        ("print('index,power\\n0,57,5')", "a row has 3 cells, its head 2"),
        ("print('index,power\\n0,-1')", "cannot be"),
        ("print('index,power\\n0,5 V')", "the unit of '5 V' is not known"),
        ("print('index,power\\nzero,5')", "does not say which device"),
        ("pass", "its output is empty"),
        ("sys.stdout.buffer.write(bytes(range(256)) * 10)", "its output"),
    ],
)
def test_whatever_a_program_does_is_a_reason_and_never_a_zero(tmp_path: Path, body: str, reason: str) -> None:
    seen = reader({**CSV, "argv": [tool(tmp_path, "smi", body)]})
    assert all(found.power_w is None for found in seen.read())
    assert reason in seen.unavailable["power_w"]
    assert seen.unavailable["energy_j"] == sensors.NOT_DECLARED


def test_a_program_that_is_not_there_is_asked_for_once(tmp_path: Path) -> None:
    seen = reader({**CSV, "argv": ["no-such-smi"]})
    assert seen.read() == seen.read() == []
    assert seen.unavailable["power_w"] == "no-such-smi: not found"


def test_a_field_comes_from_the_first_program_that_gives_it_and_the_rest_are_not_run_again(tmp_path: Path) -> None:
    def counting(name: str, output: str) -> dict[str, Any]:
        body = f"open({str(tmp_path / name)!r} + '.runs', 'a').write('x'); print({output!r})"
        return {"argv": [tool(tmp_path, name, body)], "parse": "csv"}

    first = {**counting("new", "i,p\n0,5\n1,6"), "fields": {"power_w": {"from": "p"}, "energy_j": {"from": "e"}}}
    second = {
        **counting("old", "i,p,t\n0,7,40\n1,8,41"),
        "fields": {"power_w": {"from": "p"}, "temperature_c": {"from": "t"}},
    }
    third = {**counting("last", "i,p\n0,9\n1,9"), "fields": {"power_w": {"from": "p"}}}
    seen = reader(first, second, third)
    wanted = [Reading(device=0, power_w=5, temperature_c=40), Reading(device=1, power_w=6, temperature_c=41)]
    assert [seen.read() for _ in range(3)] == [wanted] * 3
    assert "no e" in seen.unavailable["energy_j"]
    runs = {name: len((tmp_path / f"{name}.runs").read_text()) for name in ("new", "old")}
    assert runs == {"new": 3, "old": 3}
    assert not (tmp_path / "last.runs").exists()


def test_where_the_first_program_is_missing_the_next_gives_its_fields(tmp_path: Path) -> None:
    old = {**CSV, "argv": [tool(tmp_path, "old", "print('index,power\\n3,7')")]}
    assert reader({**CSV, "argv": ["no-such-smi"]}, old).read() == [Reading(device=3, power_w=7)]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kind": "programm"}, "program"),
        ({"kind": "none"}, "kind 'none' needs a reason"),
        ({"kind": "host", "programs": [{"argv": ["smi"], **CSV}]}, "does not go with kind 'host'"),
        ({"kind": "program"}, "at least one"),
        ({"kind": "nvml", "knid": 1}, "kind"),
    ],
)
def test_a_table_that_could_not_be_read_by_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        tables.read(Sensors, change, "own.toml")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"argv": "smi --all"}, "argv must be a list"),
        ({"argv": []}, "argv must be a list"),
        ({"parse": "xml"}, "parse 'xml' is not known"),
        ({"parse": "pattern", "rows": "(?P<index>x"}, "not a regular expression"),
        ({"parse": "pattern", "rows": "(?P<index>x)"}, "a group named 'power'"),
        ({"rows": "x"}, "rows does not go with parse 'csv'"),
        ({"timeout_s": 100}, "timeout_s must be a number up to 30"),
        ({"timeout_s": True}, "timeout_s must be a number"),
        ({"fields": {}}, "names at least one"),
        ({"fields": {"device": {"from": "index"}}}, "names at least one"),
        ({"fields": {"power_watts": {"from": "p"}}}, "power_w"),
        ({"fields": {"power_w": "p"}}, "must be a table"),
        ({"fields": {"power_w": {"from": ""}}}, "from must be a name"),
        ({"fields": {"power_w": {"from": []}}}, "from must be a name"),
        ({"fields": {"power_w": {"from": "p", "unit": "MiB"}}}, "unit 'MiB'"),
        ({"fields": {"power_w": {"from": "p", "form": "x"}}}, "from"),
        ({"fields": {"throttled": {"from": "p"}}}, "'reasons' is missing"),
        ({"fields": {"throttled": {"from": "p", "reasons": {}}}}, "reasons must be a table such as"),
        ({"units": {"MB": "MegaByte"}}, "which known unit"),
    ],
)
def test_a_program_that_could_not_be_read_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        reader({"argv": ["smi"], **CSV, **change})


def test_units_are_turned_into_the_field_s_own(tmp_path: Path) -> None:
    output = "p,e,m,t [C],u,c,x\n1.5 kW,2 Wh,3 MB,27,0.5,1.2GHz,7"
    fields = {
        "power_w": {"from": "p"},
        "energy_j": {"from": "e"},
        "memory_used_bytes": {"from": "m"},
        "temperature_c": {"from": "t"},
        "utilisation_percent": {"from": "u", "unit": "share"},
        "clock_mhz": {"from": "c"},
        "ecc_errors": {"from": ["x2", "x"]},
    }
    program = {"argv": [tool(tmp_path, "smi", f"print({output!r})")], "parse": "csv", "fields": fields}
    [found] = reader({**program, "units": {"MB": "MiB"}}).read()
    assert found == Reading(
        device=0,
        temperature_c=27,
        power_w=1500,
        energy_j=7200,
        memory_used_bytes=3 * 2**20,
        utilisation_percent=50,
        clock_mhz=1200,
        ecc_errors=7,
    )
    [found] = reader(program).read()
    assert found.memory_used_bytes == 3e6


def test_a_word_names_the_reason_that_is_active(tmp_path: Path) -> None:
    output = '{"gpu 5": {"reasons": {"state": "HOT"}}, "gpu 7": {"reasons": {"state": "none"}}, "driver": "1.2"}'
    program = {
        "argv": [tool(tmp_path, "smi", f"print({output!r})")],
        "parse": "json",
        "device_key": r"^gpu (\d+)",
        "fields": {"throttled": {"from": "reasons/state", "reasons": {"HOT": "heat"}}},
    }
    assert reader(program).read() == [Reading(device=5, throttled=("heat",)), Reading(device=7, throttled=())]


class NotSupportedError(Exception):
    pass


def a_stand_in_for_nvml(**changes: Any) -> ModuleType:
    """A mock: it has the functions we call of the module pynvml, as no card of its vendor is here."""
    module = ModuleType("pynvml")

    def of(values: list[Any]) -> Any:
        def answer(handle: int, *kind: Any) -> Any:
            if isinstance(values[handle], Exception):
                raise values[handle]
            return values[handle]

        return answer

    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": of([SimpleNamespace(used=3, total=8)] * 2),
        "nvmlDeviceGetPowerUsage": of([250_500, 260_000]),
        "nvmlDeviceGetTotalEnergyConsumption": of([1_000_500, NotSupportedError("Not Supported")]),
        "nvmlDeviceGetTemperature": of([61, 62]),
        "nvmlDeviceGetUtilizationRates": of([SimpleNamespace(gpu=97, memory=50)] * 2),
        "nvmlDeviceGetClockInfo": of([1410, 1380]),
        "nvmlDeviceGetCurrentClocksThrottleReasons": of([0x1, 0x44]),
        "nvmlDeviceGetTotalEccErrors": of([NotSupportedError("Not Supported")] * 2),
        "nvmlDeviceGetUUID": lambda handle: ["GPU-aa11", "GPU-bb22"][handle],
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        **changes,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def nvml_file(**changes: Any) -> files.PlatformFile:
    table = tables.read(Sensors, {"kind": "nvml", **changes}, "sensors")
    return changed(files.load("cpu"), device_type="cuda", visible_devices="SEEN", sensors=table)


def test_nvml_is_asked_for_each_value_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", a_stand_in_for_nvml())
    opened = sensors.open_reader(nvml_file().sensors)
    assert isinstance(opened, NvmlReader)
    alike = {"memory_used_bytes": 3, "memory_total_bytes": 8, "utilisation_percent": 97}
    assert opened.read() == [
        Reading(device=0, power_w=250.5, energy_j=1000.5, temperature_c=61, clock_mhz=1410, throttled=(), **alike),
        Reading(
            device=1,
            power_w=260,
            temperature_c=62,
            clock_mhz=1380,
            throttled=("software power cap", "hardware thermal slowdown"),
            **alike,
        ),
    ]
    assert opened.unavailable == {"ecc_errors": "NVML: Not Supported"}
    opened.close()


def test_a_card_that_is_lost_leaves_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*args: Any) -> Any:
        raise NotSupportedError("GPU is lost")

    asked = {f"nvmlDeviceGet{name}": lost for name in ("MemoryInfo", "PowerUsage", "Temperature", "UtilizationRates")}
    monkeypatch.setitem(sys.modules, "pynvml", a_stand_in_for_nvml(**asked))
    opened = sensors.open_reader(nvml_file().sensors)
    opened.read()
    assert opened.unavailable["power_w"] == "NVML: GPU is lost"


def test_without_the_module_the_program_is_used_and_without_both_the_reason_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    opened = sensors.open_reader(nvml_file().sensors)
    assert opened.read() == []
    assert "trainmark[nvidia]" in opened.unavailable["power_w"]
    fallback = {**CSV, "argv": [tool(tmp_path, "smi", "print('index,power\\n0,5')")]}
    assert sensors.open_reader(nvml_file(programs=[fallback]).sensors).read() == [Reading(device=0, power_w=5)]


def test_a_driver_that_is_not_loaded_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise NotSupportedError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", a_stand_in_for_nvml(nvmlInit=fails))
    assert "Driver Not Loaded" in sensors.open_reader(nvml_file().sensors).unavailable["power_w"]


@pytest.mark.parametrize(
    ("said", "count", "used"),
    [
        ("", 2, [0, 1]),
        ("1", 1, [1]),
        ("1,0", 2, [1, 0]),
        ("GPU-bb", 1, [1]),
        ("GPU-bb22,GPU-aa11", 2, [1, 0]),
        ("GPU-cc", 1, None),
        ("GPU-", 1, None),
        ("1", 2, None),
    ],
)
def test_the_variable_of_visible_devices_says_which_devices_are_ours(
    said: str, count: int, used: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", a_stand_in_for_nvml())
    assert sensors.find_used_devices(sensors.open_reader(nvml_file().sensors), count, said) == used


class Powercap:
    """The kernel's energy files, as a folder of our own."""

    def __init__(self, folder: Path, names: dict[str, str]) -> None:
        self.folder = folder
        for zone, name in names.items():
            (folder / zone).mkdir(parents=True)
            (folder / zone / "name").write_text(f"{name}\n")
            (folder / zone / "max_energy_range_uj").write_text("1000000000\n")
            self.set(zone, 0)

    def set(self, zone: str, microjoules: int) -> None:
        (self.folder / zone / "energy_uj").write_text(f"{microjoules}\n")


def test_energy_of_all_processors_is_summed_once_and_survives_the_counter_s_end(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:1": "package-1",
        "intel-rapl:0:0": "core",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    cap = Powercap(tmp_path / "class/powercap", zones)
    cap.set("intel-rapl:0", 999_000_000)
    host = HostReader(tmp_path)
    [first] = host.read()
    assert (first.energy_j, first.power_w) == (0, None)
    assert host.unavailable["power_w"] == "it takes two readings"
    for zone in zones:
        cap.set(zone, 5_000_000)  # package-0 has come round: 1 J to its end, 5 J after it and the step over
    [second] = host.read()
    assert second.energy_j == pytest.approx(6.000001 + 5)
    assert second.power_w is not None and second.power_w > 0
    assert "power_w" not in host.unavailable


def test_energy_files_that_only_root_may_read_are_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Powercap(tmp_path / "class/powercap", {"intel-rapl:0": "package-0"})
    plain = Path.read_text

    def refusing(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refusing)
    host = HostReader(tmp_path)
    [found] = host.read()
    assert (found.energy_j, found.power_w) == (None, None)
    assert host.unavailable["energy_j"].endswith("may be read by root only")


def test_a_damaged_energy_file_is_a_reason_at_that_moment_only(tmp_path: Path) -> None:
    cap = Powercap(tmp_path / "class/powercap", {"intel-rapl:0": "package-0"})
    host = HostReader(tmp_path)
    host.read()
    (tmp_path / "class/powercap" / "intel-rapl:0" / "energy_uj").write_text("")
    assert host.read()[0].energy_j is None
    assert "energy_j" in host.unavailable
    cap.set("intel-rapl:0", 2_000_000)
    assert host.read()[0].energy_j == 2


def test_the_kernel_s_other_files_give_heat_clock_throttling_and_memory_errors(tmp_path: Path) -> None:
    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    put("class/hwmon/hwmon0/name", "nvme\n")
    put("class/hwmon/hwmon0/temp1_input", "90000\n")
    put("class/hwmon/hwmon1/name", "coretemp\n")
    put("class/hwmon/hwmon1/temp1_input", "64000\n")
    for core in range(2):
        put(f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{2_000_000 + 500_000 * core}\n")
        put(f"devices/system/cpu/cpu{core}/topology/physical_package_id", "0\n")
        throttle = put(f"devices/system/cpu/cpu{core}/thermal_throttle/package_throttle_count", "3\n")
    put("devices/system/edac/mc/mc0/ue_count", "1\n")
    host = HostReader(tmp_path)
    [found] = host.read()
    assert (found.temperature_c, found.clock_mhz, found.throttled, found.ecc_errors) == (64, 2250, (), 1)
    for core in range(2):
        throttle = tmp_path / f"devices/system/cpu/cpu{core}/thermal_throttle/package_throttle_count"
        throttle.write_text("4\n")
    assert [host.read()[0].throttled for _ in range(2)] == [("thermal",), ()]


def test_a_machine_says_how_much_of_its_memory_is_used() -> None:
    host = HostReader(Path("/nowhere"))
    [found] = host.read()
    assert found.memory_used_bytes is not None and found.memory_total_bytes is not None
    assert 0 < found.memory_used_bytes < found.memory_total_bytes == psutil.virtual_memory().total
    assert host.unavailable["power_w"] == "/nowhere/class/powercap has no energy counter of a processor"
    assert set(host.unavailable) <= set(FIELDS)


def test_a_platform_without_sensors_says_why(tmp_path: Path) -> None:
    assert set(sensors.open_reader(None).unavailable.values()) == {"the platform file names no sensors"}
    opened = sensors.open_reader(Sensors(kind="none", reason="it needs root"))
    assert opened.read() == []
    assert opened.unavailable == dict.fromkeys(FIELDS, "it needs root")


def test_the_stand_in_s_sensors_follow_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.toml"
    script.write_text("power_w = 120\ndevices = 2\n", encoding="utf-8")
    monkeypatch.setitem(os.environ, "TRAINMARK_STANDIN", str(script))
    opened = sensors.open_reader(files.load("standin").sensors)
    assert [(found.device, found.power_w) for found in opened.read()] == [(0, 120), (1, 120)]
    script.write_text("this is not a script", encoding="utf-8")
    assert opened.read() == []
    assert "not valid TOML" in opened.unavailable["power_w"]
