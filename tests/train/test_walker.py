"""Operators are shown to a visitor one by one, and their arguments copied as they were passed."""

from __future__ import annotations

from typing import Any

import torch

from trainmark.train.walker import Walker, copy_arguments, is_random, is_uninitialized, is_view, read_name


def test_a_visitor_sees_the_backward_pass_and_decides_what_the_step_goes_on_with() -> None:
    seen: list[str] = []

    def visit(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(read_name(operator))
        return torch.zeros(2) if read_name(operator) == "tanh" else operator(*args, **kwargs)

    x = torch.ones(2, requires_grad=True)
    with Walker(visit):
        y = torch.tanh(x)
        y.sum().backward()
    assert {"tanh", "sum", "tanh_backward"} <= set(seen)
    assert y.tolist() == [0, 0]


def test_operators_are_known_by_what_they_give() -> None:
    aten = torch.ops.aten
    assert is_view(aten.view.default) and not is_view(aten.add_.Tensor)
    assert is_random(aten.bernoulli.default) and not is_random(aten.mm.default)
    assert is_uninitialized(aten.empty_like.default) and not is_uninitialized(aten.zeros_like.default)


def test_a_tensor_that_is_read_and_written_stays_one() -> None:
    tensor = torch.ones(3)
    (one, alias), other = copy_arguments(((tensor, tensor.detach()), torch.ones(3)), lambda each: each.clone())
    assert one is alias and one is not tensor and other is not one
