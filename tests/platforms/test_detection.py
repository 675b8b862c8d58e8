"""`--platform auto` takes what is there, and among vendors that look alike the one that knows the device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainmark.cli.main import main
from trainmark.features.doctor import device_checks
from trainmark.features.doctor.platform_command import draft_file
from trainmark.launch import planning, session
from trainmark.launch.options import RunOptions
from trainmark.platforms import files
from trainmark.platforms.detection import detect, find_undescribed_if_auto
from trainmark.platforms.files import tomllib
from trainmark.record import tables
from trainmark.record.errors import NotReadyError, UsageError

BUILDS = {"cuda": "12.8", "hip": None, "maca": None}


class Machine:
    """What torch says of a machine that has other devices than this one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        patch.setattr(torch.accelerator, "is_available", lambda: False)
        patch.delenv("TRAINMARK_PLATFORM", raising=False)

    def has(self, device_type: str, name: str = "", **builds: str | None) -> None:
        module = SimpleNamespace(get_device_name=lambda _: name, is_available=lambda: True)
        self._patch.setattr(torch, device_type, module, raising=False)
        self._patch.setattr(torch.accelerator, "is_available", lambda: True)
        self._patch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type=device_type))
        for build, version in {**BUILDS, **builds}.items():
            self._patch.setattr(torch.version, build, version, raising=False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("name", "builds", "platform"),
    [
        ("NVIDIA A100-SXM4-40GB", {}, "nvidia"),
        ("Tesla V100-SXM2-16GB", {}, "nvidia"),
        ("AMD Instinct MI300X", {"cuda": None, "hip": "6.3"}, "amd"),
        ("K100_AI", {"cuda": None, "hip": "6.3"}, "hygon"),
        ("Iluvatar BI-V150", {"cuda": "10.2"}, "iluvatar"),
        ("MetaX C500", {"cuda": "11.6", "maca": "3.8.1.0"}, "metax"),
        ("a name nobody has seen", {"cuda": "11.6", "maca": "3.8.1.0"}, "metax"),
        ("KUNLUNXIN-P800", {}, "kunlunxin"),
    ],
)
def test_vendors_that_share_a_device_type_are_told_apart(
    machine: Machine, name: str, builds: dict[str, str | None], platform: str
) -> None:
    machine.has("cuda", name, **builds)
    assert detect() == platform


@pytest.mark.parametrize(
    ("device_type", "platform"),
    [
        ("npu", "ascend"),
        ("mlu", "cambricon"),
        ("musa", "mthreads"),
        ("xpu", "intel"),
        ("hpu", "gaudi"),
        ("mps", "apple"),
    ],
)
def test_a_vendor_with_a_device_type_of_its_own_needs_no_name(
    machine: Machine, device_type: str, platform: str
) -> None:
    machine.has(device_type)
    assert detect() == platform


def test_without_a_device_or_with_one_nobody_described_it_is_the_cpu(machine: Machine) -> None:
    assert detect() == "cpu"
    machine.has("mtia")
    assert detect() == "cpu"


def test_an_accelerator_that_no_file_knows_is_said_loudly_and_a_file_offered(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_undescribed_if_auto(None) is None
    machine.has("mtia")
    said = find_undescribed_if_auto("auto") or ""
    assert "torch sees an accelerator, mtia, that no platform file describes, so THE CPU IS USED" in said
    assert "`trainmark platform new mtia`" in said
    assert find_undescribed_if_auto("cpu") is None
    monkeypatch.setenv("TRAINMARK_PLATFORM", "cpu")
    assert find_undescribed_if_auto(None) is None
    monkeypatch.delenv("TRAINMARK_PLATFORM")
    machine.has("npu")
    assert find_undescribed_if_auto(None) is None


def test_a_run_says_so_before_it_begins(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("mtia")
    heard: list[str] = []
    monkeypatch.setattr(session.planning, "make_plans", lambda options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.run(RunOptions(store=str(tmp_path), quiet=True), say=heard.append)
    assert "THE CPU IS USED" in heard[0]


def test_the_doctor_doubts_a_platform_while_an_accelerator_is_left_unused(machine: Machine) -> None:
    machine.has("mtia")
    found = device_checks.check_platform(files.load("cpu"), ["a CPU"], find_undescribed_if_auto(None))
    assert found.verdict == "doubt"
    assert found.remedy == "trainmark platform new NAME"


def test_a_new_file_is_written_from_what_torch_reports_and_is_valid(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has("mtia", 'Meta "T1"\nrm -rf')
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    assert main(["platform", "new", "mine"]) == 0
    written = files.load("mine.toml")
    assert (written.title, written.device_type, written.collectives) == ("mine", "mtia", "none")
    assert written.precisions == ("fp32",)
    assert "# not bf16: " in written.text
    keys = re.sub(r"(?m)^# (?=(\w+ = |\[|\]|  \{))", "", written.text)
    found = tables.read(files.PlatformFile, tomllib.loads(keys), "a file", name="mine", word="mine", text=keys)
    assert (found.plugin, found.speed_variables) == ("torch_vendor", ("MTIA_LAUNCH_BLOCKING",))
    assert found.driver is not None
    assert found.sensors is not None
    assert found.peaks
    assert "next: trainmark platform check ./mine.toml" in capsys.readouterr().out
    assert main(["platform", "new", "mine"]) == 2
    assert main(["platform", "new", "../mine"]) == 2


def test_without_an_accelerator_there_is_nothing_to_write_a_file_from(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="torch sees no accelerator here"):
        draft_file("mine")


def installed(folder: Path, plugin: str) -> dict[str, str]:
    """The variables of a process in which torch finds this text as the plugin torch_lumen."""
    (folder / "torch_lumen.py").write_text(plugin, encoding="utf-8")
    package = folder / "lumen_torch-1.2.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: lumen-torch\nVersion: 1.2\n", encoding="utf-8")
    (package / "entry_points.txt").write_text("[torch.backends]\ntorch_lumen = torch_lumen:load\n", encoding="utf-8")
    paths = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    variables = {**os.environ, "PYTHONPATH": paths, "TRAINMARK_CACHE": str(folder / "cache")}
    variables.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)  # of a command that ran in this process for a CPU
    return variables


@pytest.mark.slow
def test_a_new_file_of_a_device_that_a_plugin_taught_torch_has_what_can_be_trained_there(tmp_path: Path) -> None:
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch cannot be taught a device from Python")
    variables = installed(
        tmp_path, (Path(__file__).parents[1] / "support" / "lumen_plugin.py").read_text(encoding="utf-8")
    )
    argv = [sys.executable, "-m", "trainmark", "platform", "new", "mine"]
    ran = subprocess.run(argv, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("mine.toml: written from what torch reports")
    written = files.load(str(tmp_path / "mine.toml"))
    assert (written.device_type, written.plugin, written.collectives) == ("lumen", "torch_lumen", "none")
    assert {"fp32", "bf16", "amp-bf16"} <= set(written.precisions)
    assert "tf32" not in written.precisions  # a layer trains under its settings, and its matmuls are not in it
    assert "# not tf32: " in written.text
    assert "of 2 x Lumen L9." in written.text


@pytest.mark.slow
def test_a_plugin_that_breaks_torch_is_named_and_a_cpu_does_without_it(tmp_path: Path) -> None:
    variables = installed(tmp_path, "import no_such_driver\n")

    def planned(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "trainmark", "plan", "resnet50", *words]
        return subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)

    broken = planned()
    assert broken.returncode == 3, broken.stderr
    assert "its plugin torch_lumen of the package lumen-torch 1.2 fails" in broken.stderr
    assert "ModuleNotFoundError: No module named 'no_such_driver'" in broken.stderr
    assert "Traceback" not in broken.stderr
    assert "--platform cpu" in broken.stderr
    assert planned("--platform", "cpu").returncode == 0


def test_the_stand_in_is_never_taken_for_a_device(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_STANDIN", "scripted.toml")
    assert detect() == "cpu"


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place where modules are installed, and are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_plugin_that_is_installed_but_not_imported_is_tried(
    machine: Machine, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "teach", lambda: machine.has("musa"), raising=False)
    (plugins / "torch_musa.py").write_text("import torch\ntorch.teach()\n", encoding="utf-8")
    assert detect() == "mthreads"


@pytest.mark.parametrize("failure", ["ImportError('no driver')", "OSError('libascend.so')", "KeyError('amdsmi')"])
def test_a_plugin_that_cannot_be_imported_is_passed_over_in_silence(
    machine: Machine, plugins: Path, capfd: pytest.CaptureFixture[str], failure: str
) -> None:
    (plugins / "torch_npu.py").write_text(f"raise {failure}\n", encoding="utf-8")
    (plugins / "habana_frameworks").mkdir()  # a parent without the module below it
    assert detect() == "cpu"
    assert capfd.readouterr() == ("", "")


def test_a_plugin_without_a_device_gives_the_cpu(machine: Machine, plugins: Path) -> None:
    (plugins / "torch_npu.py").write_text("", encoding="utf-8")
    assert detect() == "cpu"


def test_a_torch_that_is_too_old_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator")
    with pytest.raises(NotReadyError, match=r"install a build of torch 2\.6 or newer"):
        detect()


def test_devices_that_cannot_work_together_are_refused_in_the_plan(machine: Machine) -> None:
    machine.has("mps")
    assert planning.make_plan("resnet50", RunOptions(topology="1x1")).platform == "apple"
    with pytest.raises(UsageError, match=r"1x2 needs collectives, which platform apple does not have"):
        planning.make_plan("resnet50", RunOptions(topology="1x2", platform="auto"))


def test_a_users_own_file_is_not_mistaken_for_ours_of_the_same_name(tmp_path: Path) -> None:
    own = tmp_path / "nvidia.toml"
    own.write_text(
        'title = "Own"\ndevice_type = "cpu"\ncollectives = "gloo"\nprecisions = ["fp32"]\n', encoding="utf-8"
    )
    plan = planning.make_plan("resnet50", RunOptions(platform=str(own)))
    assert files.load(plan.platform).title == "Own"
