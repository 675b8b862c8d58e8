"""Platform files are checked data, and the CPU is a platform like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmark.platforms import files
from trainmark.platforms.platform import Platform, detect
from trainmark.spec.errors import NotReadyError, UsageError
from trainmark.spec.precision import PRECISIONS

GOOD = 'title = "Mine"\ndevice_type = "cpu"\ncollectives = "gloo"\nprecisions = ["fp32"]\n'


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
        ("title = ", "is not valid TOML"),
    ],
)
def test_a_wrong_platform_file_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        files.load(str(path))
    assert sentence in str(refused.value)


def test_a_missing_plugin_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + 'plugin = "torch_nowhere"\n', encoding="utf-8")
    with pytest.raises(NotReadyError, match="platform mine needs the module torch_nowhere"):
        Platform(files.load(str(path)))


def test_devices_that_are_not_here_are_counted_as_none() -> None:
    platform = Platform(files.load("nvidia"))
    assert platform.device_count == 0
    with pytest.raises(NotReadyError, match="platform nvidia has 0 cuda devices here, device 0 was asked for"):
        platform.open(0)
    assert detect() == "cpu"


def test_the_cpu_trains_in_what_its_file_lists_and_refuses_the_rest() -> None:
    device = Platform(files.load("cpu")).open(0)
    refused = {name for name, precision in PRECISIONS.items() if device.refuses(precision)}
    assert refused == {"tf32"}


def test_the_cpu_reports_memory_and_a_name() -> None:
    device = Platform(files.load("cpu")).open(0)
    peak, capacity = device.peak_memory_bytes(), device.memory_capacity_bytes()
    assert peak is not None
    assert capacity is not None
    assert 0 < peak < capacity
    assert device.name()
