"""Every operator of a workload's step is tried beside the CPU's, and what is missing or wrong is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

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


# Operators that no CPU has, made for it here as a vendor would make them for a card

Give = Callable[..., None]


@pytest.fixture
def give() -> Iterator[Give]:
    """Gives the CPU an operator until the test ends."""
    library = torch.library.Library("aten", "IMPL")
    yield lambda name, made: library.impl(name, made, "CPU")
    library._destroy()


def fused_lstm_cell(lie: float = 1.0) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def compute(by_input: Tensor, by_hidden: Tensor, cell: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        into, forget, new, out = (by_input + by_hidden + sum(biases)).chunk(4, 1)
        after = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        workspace = torch.stack((into, forget, new, out))  # in a layout of its own
        return lie * out.sigmoid() * after.tanh(), after, workspace

    return compute


def fused_lstm_cell_backward(lie: float = 1.0) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def compute(
        of_hidden: Tensor, of_after: Tensor, cell: Tensor, after: Tensor, workspace: Tensor, has_bias: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        one, tanh = torch.ones(()), torch.tanh
        into, forget, out = (workspace[place].sigmoid() for place in (0, 1, 3))
        new = tanh(workspace[2])
        inner = of_after + of_hidden * out * (one - tanh(after) ** 2)
        parts = [inner * new * into * (1 - into), inner * cell * forget * (1 - forget), inner * into * (1 - new**2)]
        of_gates = torch.cat([*parts, lie * of_hidden * tanh(after) * out * (1 - out)], 1)
        return of_gates, inner * forget, of_gates.sum(0)

    return compute


@pytest.mark.parametrize(("forward", "backward"), [(1.0, 1.0), (1.01, 1.0), (1.0, 1.01)])
def test_a_vendors_fused_lstm_cell_is_compared_with_plain_operators(
    give: Give, forward: float, backward: float
) -> None:
    give("_thnn_fused_lstm_cell", fused_lstm_cell(forward))
    give("_thnn_fused_lstm_cell_backward_impl", fused_lstm_cell_backward(backward))
    found = OperatorComparison(Platform(files.load("standin")).open(0))
    by_input, by_hidden, cell = torch.randn(3, 20), torch.randn(3, 20), torch.randn(3, 5)
    biases, of_hidden, of_after = torch.randn(2, 20), torch.randn(3, 5), torch.randn(3, 5)
    cells = torch.ops.aten._thnn_fused_lstm_cell.default, torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default
    _, after, workspace = found.visit(cells[0], (by_input, by_hidden, cell, *biases), {})
    found.visit(cells[1], (of_hidden, of_after, cell, after, workspace, True), {})
    assert len(found.compared) == 2
    lied = {cells[0].name(): forward, cells[1].name(): backward}
    assert list(found.wrong) == [name for name, lie in lied.items() if lie != 1]


def give_synced_batch_norm(give: Give, lie: float = 1.0) -> None:
    def view(values: Tensor) -> Tensor:
        return values.view(1, -1, 1, 1)

    def gather(
        x: Tensor,
        means: Tensor,
        inverses: Tensor,
        kept: Tensor,
        spread: Tensor,
        part: float,
        eps: float,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        shares = (counts / counts.sum())[:, None]
        mean = (shares * means).sum(0)
        variance = (shares * (inverses**-2 - eps + (means - mean) ** 2)).sum(0)
        kept.lerp_(mean, part)
        spread.lerp_(variance * lie * counts.sum() / (counts.sum() - 1), part)
        return mean, (variance + eps).rsqrt()

    def reduce(of_y: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, *rest: object) -> tuple[Tensor, ...]:
        of_mean, of_spread = of_y.sum((0, 2, 3)), (of_y * (x - view(mean))).sum((0, 2, 3))
        return of_mean, of_spread, of_spread * inverse, of_mean

    give("batch_norm_stats", lambda x, eps: (x.mean((0, 2, 3)), (x.var((0, 2, 3), False) + eps).rsqrt()))
    give("batch_norm_gather_stats_with_counts", gather)
    give(
        "batch_norm_elemt",
        lambda x, weight, bias, mean, inverse, eps: (x - view(mean)) * view(inverse * weight) + view(bias),
    )
    give("batch_norm_backward_reduce", reduce)
    give(
        "batch_norm_backward_elemt",
        lambda of_y, x, mean, inverse, weight, of_mean, of_spread, counts: (
            (of_y - view(of_mean / counts.sum()) - (x - view(mean)) * view(inverse**2 * of_spread / counts.sum()))
            * view(inverse * weight)
        ),
    )


def test_a_vendors_synced_batch_norm_is_compared_with_the_batch_norm_of_a_cpu(give: Give) -> None:
    device = Platform(files.load("standin")).open(0)
    absent = conformance.check_synced_batch_norm(device)
    assert (absent.verdict, "no aten::batch_norm_stats here" in absent.sentence) == ("unknown", True)
    give_synced_batch_norm(give)
    honest = conformance.check_synced_batch_norm(device)
    assert honest.verdict == "ok", honest


def test_a_wrong_synced_batch_norm_fails(give: Give) -> None:
    give_synced_batch_norm(give, lie=1.01)
    found = conformance.check_synced_batch_norm(Platform(files.load("standin")).open(0))
    assert (found.verdict, found.sentence) == ("failed", "not as the CPU's batch norm: running variance")


def test_every_workload_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, _ in conformance.list_checks("standin")]
    assert [f"operators {name}" for name in workloads.names()] == [name for name in names if "operators" in name]
