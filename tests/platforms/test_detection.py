"""`--platform auto` takes what is there, and among vendors that look alike the one that knows the device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.platforms import files
from trainmark.platforms.detection import detect
from trainmark.spec.errors import UsageError

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


def test_a_device_found_by_an_old_torch_is_named_so_that_it_can_be_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has("cuda", "Iluvatar BI-V100", cuda="10.2")
    monkeypatch.delattr(torch, "accelerator")
    assert detect() == "iluvatar"


def test_devices_that_cannot_work_together_are_refused_in_the_plan(machine: Machine) -> None:
    machine.has("mps")
    assert planning.decide("resnet50", RunOptions(topology="1x1")).platform == "apple"
    with pytest.raises(UsageError, match=r"1x2 needs devices that work together, which those of platform apple cannot"):
        planning.decide("resnet50", RunOptions(topology="1x2", platform="auto"))


def test_a_users_own_file_is_not_mistaken_for_ours_of_the_same_name(tmp_path: Path) -> None:
    own = tmp_path / "nvidia.toml"
    own.write_text(
        'title = "Own"\ndevice_type = "cpu"\ncollectives = "gloo"\nprecisions = ["fp32"]\n', encoding="utf-8"
    )
    plan = planning.decide("resnet50", RunOptions(platform=str(own)))
    assert files.load(plan.platform).title == "Own"
