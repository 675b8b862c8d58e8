"""Networks of shapes alone: the same as those that are trained, and made without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainmark import workloads
from trainmark.workloads import weights

IMPORTED = """
import sys
from trainmark import workloads
from trainmark.workloads import weights
for name in workloads.names():
    workload = workloads.load(name)
    weights.build_network(workload, workload.recipes["smoke"])
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_no_network_of_ours_needs_the_compiler_to_be_measured() -> None:
    said = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


@pytest.mark.parametrize("name", workloads.names())
def test_a_network_of_shapes_has_the_shapes_of_the_one_that_is_trained(name: str) -> None:
    workload = workloads.load(name)
    recipe = workload.recipes["smoke"]
    real, empty = workload.build(recipe), weights.build_network(workload, recipe)
    assert {key: value.shape for key, value in empty.state_dict().items()} == {
        key: value.shape for key, value in real.state_dict().items()
    }
    assert all(value.is_meta for value in empty.state_dict().values())
