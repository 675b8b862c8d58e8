"""The vendor that CONTRIBUTING.md adds is one short file, and works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.platforms.sensors import open_reader
from trainmark.record.errors import NotReadyError, UsageError

PAGE = Path(__file__).parent.parent.parent / "CONTRIBUTING.md"
SAID = "index, power.draw [W], temp.core, memory.used\n0, 431.5, 61, 2048\n1, 90, 37, 12\n"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The file a reader would have after pasting the page's block."""
    block, *_ = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    path = tmp_path / "lumen.toml"
    path.write_text(block, encoding="utf-8")
    return path


def test_a_vendor_is_one_file_of_about_twenty_lines(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 30
    file = files.load(str(example))
    assert (file.name, file.device_type, file.collectives) == ("lumen", "lumen", "lccl")
    peak = file.peak("Lumen L9-64G")
    assert peak is not None
    assert peak.tflops["bf16"] == 320


def test_every_key_a_vendor_may_set_is_shown(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    beside = {"name", "word", "text", "python", "host_settings"}  # the file's own name, ours alone, and for CPUs
    assert [key for key in files.PlatformFile.__struct_fields__ if key not in beside and key not in text] == []


def test_where_its_plugin_is_not_installed_that_is_what_is_said(example: Path) -> None:
    with pytest.raises(NotReadyError, match="platform lumen needs the module torch_lumen"):
        Platform(files.load(str(example)))


def test_its_sensors_are_read(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "lumen-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{SAID}END\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    reader = open_reader(files.load(str(example)).sensors)
    try:
        first, second = reader.read()
        assert (first.power_w, first.temperature_c, first.memory_used_bytes) == (431.5, 61.0, 2048 * 2**20)
        assert (second.device, second.power_w) == (1, 90.0)
    finally:
        reader.close()


def test_a_slip_in_it_is_answered_with_the_word_that_was_meant(example: Path) -> None:
    text = example.read_text(encoding="utf-8").replace("kubernetes_resource", "kubernetes_resources")
    example.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="did you mean 'kubernetes_resource'"):
        files.load(str(example))
