"""Platform files are checked data, and the CPU is a platform like any other."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec
import pytest
import torch
from support.records import make_plan

from trainmark.launch import preflight
from trainmark.platforms import files
from trainmark.platforms.detection import detect
from trainmark.platforms.platform import Platform
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.precision import PRECISIONS
from trainmark.train import setup

GOOD = 'title = "Mine"\ndevice_type = "cpu"\ncollectives = "gloo"\nprecisions = ["fp32"]\n'
PAGE = Path(__file__).parent.parent.parent / "docs" / "platforms.md"
PEAK = 'device = "A100"\nsource = "a sheet"\ntflops = { fp16 = 312 }\n'


@pytest.mark.parametrize("name", files.names())
def test_every_platform_file_of_ours_is_valid(name: str) -> None:
    assert files.load(name).name == name


def test_a_platform_can_be_a_file_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8")
    assert files.load(str(path)).title == "Mine"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD + 'colectives = "x"\n', "key 'colectives' is not known; did you mean 'collectives'?"),
        (GOOD.replace('device_type = "cpu"\n', ""), "key 'device_type' is missing"),
        (GOOD.replace('["fp32"]', '["fp31"]'), "precision 'fp31'; did you mean 'fp32'?"),
        (GOOD.replace('["fp32"]', '"fp32"'), "precisions must be a list"),
        (GOOD.replace('["fp32"]', "[]"), "precisions is empty"),
        (GOOD.replace('"Mine"', "7"), "title must be text, not 7"),
        (GOOD + 'plugin = "os; x"\n', "plugin 'os; x' is not the name of a module"),
        (GOOD + 'least_torch = "new"\n', "least_torch 'new' is not a version such as 2.6"),
        (GOOD + 'kubernetes_resource = "gpu"\n', "kubernetes_resource 'gpu' is not a resource"),
        (GOOD + "[host_settings]\nTHREADS = 3\n", "host_settings of THREADS must be text, not 3"),
        (GOOD + '[recognise]\nbild = "hip"\n', "recognise: key 'bild' is not known; did you mean 'build'?"),
        (GOOD + '[recognise]\ndevice_name = "(MI"\n', "recognise: device_name '(MI' is not a regular expression"),
        (GOOD + "[[peaks]]\n" + PEAK.replace("fp16", "fp17"), "peaks, entry 1: precision 'fp17'; did you mean 'fp16'?"),
        (GOOD + "[[peaks]]\n" + PEAK.replace("312", "inf"), "tflops of fp16 must be a number above 0, not inf"),
        (GOOD + "[[peaks]]\n" + PEAK.replace("312", "true"), "tflops of fp16 must be a number above 0, not True"),
        (GOOD + "[[peaks]]\n" + PEAK + "power = 3\n", "key 'power' is not known; did you mean 'power_w'?"),
        (GOOD + "[[peaks]]\n" + PEAK.replace("A100", "A(100"), "device 'A(100' is not a regular expression"),
        (GOOD + "[[peaks]]\n" + PEAK.replace("source", "# source"), "peaks, entry 1: key 'source' is missing"),
        (GOOD + "peaks = [3]\n", "peaks, entry 1 must be a table, not 3"),
        (GOOD + 'python = "standin"\n', "only for built-in platform files"),
        ("title = ", "is not valid TOML"),
    ],
)
def test_a_wrong_platform_file_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        files.load(str(path))
    assert sentence in str(refused.value)


def test_a_platform_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'no/where\.toml' is not known; there is no such file"):
        files.load("no/where.toml")
    with pytest.raises(UsageError, match="'nvidja' is not known; did you mean 'nvidia'"):
        files.load("nvidja")


@pytest.mark.parametrize("name", sorted(set(files.names()) - {"cpu", "standin"}))
def test_every_vendor_names_what_a_cluster_calls_its_devices_and_where_its_peaks_are_from(name: str) -> None:
    file = files.load(name)
    assert (file.kubernetes_resource is None) == (file.collectives == files.NO_COLLECTIVES)
    assert all(len(peak.source) > 10 for peak in file.peaks)
    families = {PRECISIONS[precision].family for precision in file.precisions}
    assert all(set(peak.tflops) <= families for peak in file.peaks)


@pytest.mark.parametrize(
    ("platform", "device", "family", "tflops"),
    [
        ("nvidia", "NVIDIA A100-SXM4-40GB", "tf32", 156),
        ("nvidia", "Tesla V100-SXM2-32GB", "fp16", 125),
        ("nvidia", "NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("iluvatar", "Iluvatar BI-V100", "fp32", 37),
        ("nvidia", "NVIDIA GH200 480GB", "bf16", None),
        ("nvidia", "NVIDIA T400 4GB", "fp16", None),
        ("iluvatar", "Iluvatar BI-V150", "fp16", None),
    ],
)
def test_a_peak_is_found_by_the_devices_name_or_is_not_known(
    platform: str, device: str, family: str, tflops: float | None
) -> None:
    peak = files.load(platform).peak(device)
    assert (peak.tflops[family] if peak else None) == tflops


def test_a_plugin_that_cannot_be_imported_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_broken.py").write_text("raise OSError('libdriver.so is not there')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + 'plugin = "torch_broken"\n', encoding="utf-8")
    with pytest.raises(NotReadyError, match=r"needs the module torch_broken: libdriver\.so is not there"):
        Platform(files.load(str(path)))


@pytest.mark.parametrize(
    ("platform", "version", "least"),
    [("nvidia", "2.5.1+cu121", "2.6"), ("nvidia", "1.13.0a0+corex.4", "2.6"), ("intel", "2.7.0+xpu", "2.8")],
)
def test_a_torch_that_is_too_old_for_a_platform_is_refused_with_the_version_needed(
    monkeypatch: pytest.MonkeyPatch, platform: str, version: str, least: str
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(NotReadyError, match=f"needs torch {least} or newer, this is torch {re.escape(version)}"):
        Platform(files.load(platform))
    Platform(files.load("cpu"))


def test_the_page_of_platforms_has_a_line_for_every_file_and_every_key() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for file in map(files.load, sorted(set(files.names()) - {"standin"})):
        [line] = [line for line in lines if line.startswith(f"| `{file.name}` |")]
        told = (file.device_type, file.collectives, file.plugin, file.kubernetes_resource, file.recognise.build)
        assert [word for word in told if word and word not in line] == []
    keys = set(files.PlatformFile.__struct_fields__) - {"name", "word", "text", "python", "recognise"}
    assert [key for key in sorted(keys) if not any(line.startswith(f"| `{key}` |") for line in lines)] == []


def test_a_missing_plugin_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + 'plugin = "torch_nowhere"\n', encoding="utf-8")
    with pytest.raises(NotReadyError, match="platform mine needs the module torch_nowhere"):
        Platform(files.load(str(path)))


def test_devices_that_are_not_here_are_counted_as_none() -> None:
    platform = Platform(files.load("nvidia"))
    assert platform.device_count == 0
    with pytest.raises(NotReadyError, match="platform nvidia has 0 cuda devices here, device 0 was requested"):
        platform.open(0)
    assert detect() == "cpu"


def test_the_cpu_trains_in_what_its_file_lists_and_refuses_the_rest() -> None:
    device = Platform(files.load("cpu")).open(0)
    refused = {name for name, precision in PRECISIONS.items() if device.explain_refusal(precision)}
    assert refused == {"tf32"}


def test_the_cpu_reports_memory_and_a_name() -> None:
    device = Platform(files.load("cpu")).open(0)
    peak, capacity = device.peak_memory_bytes(), device.memory_capacity_bytes()
    assert peak is not None
    assert capacity is not None
    assert 0 < peak < capacity
    assert device.name()


OWN = """
title = "Own"
device_type = "cpu"
collectives = "gloo"
precisions = ["fp32"]
speed_variables = ["OWN_SPEED"]
plugin = "msgspec"
out_of_memory = "no room"
driver = { argv = ["/bin/echo", "Driver Version: 5.3.1-beta"], pattern = 'Version: (\\S+)' }
"""


def test_the_record_keeps_a_users_file_its_plugin_its_driver_and_the_variables_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    monkeypatch.setenv("OWN_SPEED", "11")
    monkeypatch.setenv("OWN_SECRET", "no")
    device = Platform(files.load(str(path))).open(0)
    seen = setup.collect_environment(device, emulated_precision=False)
    assert (seen.platform.name, seen.platform.content) == ("own", OWN)
    assert seen.platform.sha256 == hashlib.sha256(OWN.encode()).hexdigest()
    assert (seen.platform.plugin, seen.platform.plugin_version) == ("msgspec", msgspec.__version__)
    assert seen.device.driver == "5.3.1-beta"
    assert seen.variables["OWN_SPEED"] == "11"
    assert "OWN_SECRET" not in seen.variables
    ours = setup.collect_environment(Platform(files.load("cpu")).open(0), emulated_precision=False)
    assert (ours.platform.name, ours.platform.content) == ("cpu", None)


@pytest.mark.parametrize(
    "driver", ["{ argv = ['/nowhere/smi'] }", "{ argv = ['/bin/echo', 'none here'] }", "{ argv = ['/bin/false'] }"]
)
def test_a_driver_that_does_not_say_its_version_has_none(driver: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(re.sub("(?m)^driver = .*$", f"driver = {driver}", OWN), encoding="utf-8")
    assert Platform(files.load(str(path))).driver_version() is None


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("driver = { argv = [] }", "driver needs a program, and a pattern with a group"),
        ("driver = { argv = ['x'], pattern = 'Version' }", "a pattern with a group"),
        ("out_of_memory = '('", "out_of_memory '(' is not a regular expression"),
        ("speed_variables = ['A=1']", "speed_variables must be a list"),
    ],
)
def test_the_newer_keys_are_checked_too(key: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(re.sub(f"(?m)^{key.partition(' ')[0]} = .*$", lambda _: key, OWN), encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        files.load(str(path))
    assert sentence in str(refused.value)


def test_collectives_that_torch_does_not_have_are_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace("gloo", "lccl"), encoding="utf-8")
    platform = Platform(files.load(str(path)))
    found = preflight.check_collectives(make_plan(topology="1x2"), platform)
    assert "names the collectives 'lccl', which this torch does not have; it has" in found.sentence
    assert (found.verdict, found.exit_code) == ("failed", 3)
    assert preflight.check_collectives(make_plan(topology="1x1"), platform).verdict == "ok"


def test_a_device_that_trains_in_nothing_is_said_in_a_whole_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Platform(files.load("cpu"))
    monkeypatch.setattr(
        "trainmark.platforms.platform.Device.explain_refusal", lambda self, precision: "it has no layers"
    )
    said = preflight.check_precision(make_plan(precision="fp32"), platform).sentence
    assert said.endswith("(it has no layers); nor does any other; see `trainmark platform check`")
