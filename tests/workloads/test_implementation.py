"""Every workload of ours says whether its network is the published one by autograd, or has hand-written gradients."""

from __future__ import annotations

import pytest

from trainmark import workloads
from trainmark.launch.options import RunOptions
from trainmark.launch.planning import make_plan
from trainmark.record.errors import UsageError
from trainmark.record.recipe import fix_hp

FAST = {"gpt124m", "llama8b", "tacotron2", "wavenet"}


@pytest.mark.parametrize("name", workloads.names())
def test_a_plan_names_the_implementation_and_another_is_a_deviation(name: str) -> None:
    usual, other = ("fast", "plain") if name in FAST else ("plain", "fast")
    plan = make_plan(name, RunOptions(recipe="reference", platform="cpu"))
    assert plan.recipe["implementation"] == usual
    options = RunOptions(recipe="reference", platform="cpu", settings=(f"implementation={other}",))
    if name not in FAST:
        with pytest.raises(UsageError, match="implementation must be one of plain"):
            make_plan(name, options)
        return
    changed = make_plan(name, options)
    assert fix_hp(changed.deviations) == "implementation=plain"
    assert changed.fingerprint != plan.fingerprint
