"""Every operator of a workload's step is tried beside the CPU's, and what is missing or wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmark import workloads
from trainmark.features.doctor import conformance
from trainmark.features.doctor.conformance import OperatorComparison
from trainmark.platforms import files, standin
from trainmark.platforms.platform import Device, Platform

pytestmark = pytest.mark.slow


def scripted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    path = tmp_path / "script.toml"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv(standin.VARIABLE, str(path))
    return Platform(files.load("standin")).open(0)


def test_an_honest_device_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = conformance.check_operators(scripted("", tmp_path, monkeypatch), "vit")
    assert found.verdict == "ok", found
    assert "operators of a step and an evaluation are there" in found.sentence


def test_operators_that_cannot_be_compared_are_named_so_that_nobody_takes_them_for_failed() -> None:
    seen = dict.fromkeys(("aten::mm", "aten::empty_like", "aten::bernoulli_"))
    device = Platform(files.load("standin")).open(0)
    assert OperatorComparison(device, seen=seen, compared={"aten::mm"}).judge().sentence == (
        "3 operators of a step and an evaluation are there, and 1 give what the CPU's give; not compared "
        "(random, uninitialized, or not on a CPU): aten::empty_like, aten::bernoulli_"
    )
    missing = dict.fromkeys(f"aten::op{number}" for number in range(9))
    assert OperatorComparison(device, missing=missing).judge().sentence.endswith("aten::op5 and 3 more")


LIES = [
    ("vit", "missing_operators = ['gelu', 'topk']", "2 of", "missing: aten::gelu, aten::topk"),
    ("vit", "wrong_operators = ['gelu_backward']", "1 of", "not as the CPU's: aten::gelu_backward (off by 10 %)"),
    ("vit", "unwritten_operators = ['_fused_adamw_']", "1 of", "not as the CPU's: aten::_fused_adamw_"),
    ("resnet50", "unwritten_operators = ['native_batch_norm']", "1 of", "aten::native_batch_norm (off by 100 %)"),
]


@pytest.mark.parametrize(("name", "lie", "share", "sentence"), LIES)
def test_what_is_missing_or_wrong_is_named_and_all_of_it_at_once(
    name: str, lie: str, share: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = conformance.check_operators(scripted(f"{lie}\n", tmp_path, monkeypatch), name)
    assert found.verdict == "failed"
    assert found.sentence.startswith(share)
    assert sentence in found.sentence


def test_every_workload_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, _ in conformance.list_checks("standin")]
    assert [f"operators {name}" for name in workloads.names()] == [name for name in names if "operators" in name]
