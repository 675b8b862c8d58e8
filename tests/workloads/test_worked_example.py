"""The image model that CONTRIBUTING.md shows is short, and trains."""

from __future__ import annotations

import importlib.util
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train.setup import build_stepper
from trainmark.workloads.workload import Progress, Share, Workload

PAGE = Path(__file__).parent.parent.parent / "CONTRIBUTING.md"


def examples(page: Path = PAGE) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module a reader would have after pasting the page's block into a file."""
    block = examples()[0]
    file = tmp_path_factory.mktemp("workloads") / "convnet.py"
    file.write_text(block, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("convnet", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_third_image_model_takes_no_more_than_forty_lines(example: Any) -> None:
    assert len(Path(example.__file__).read_text(encoding="utf-8").splitlines()) <= 40


def test_it_has_everything_a_workload_has(example: Any) -> None:
    wanted = {*Workload.__annotations__, *(name for name in vars(Workload) if not name.startswith("_"))}
    assert {"build", "recipes", "score"} <= wanted
    assert [name for name in sorted(wanted) if not hasattr(example.WORKLOAD, name)] == []


def test_it_trains_and_is_scored(example: Any, pictures: Path) -> None:
    workload = example.WORKLOAD
    recipe = replace(workload.recipes["smoke"], classes=3, image_px=32, eval_resize_px=36, input_workers=0)
    device = Platform(files.load("cpu")).open(0)
    stepper = build_stepper(workload, recipe, Precision.parse("fp32"), device, 1)
    losses: list[float] = []
    with closing(workload.open_data(recipe, pictures, Share(rank=0, world=1, local_ranks=1), 0)) as data:
        for epoch in range(8):  # the same images each time, to be learnt by heart
            progress = Progress(step=3 * epoch, epoch=epoch, planned_steps=3 * recipe.epochs, items_per_step=16)
            stepper.set_learning_rate(workload.learning_rate(recipe, progress))
            losses += [float(stepper.step(batch)) for batch in data.train(0, 0)]
        sums = dict.fromkeys(workload.sums, 0.0)
        with torch.no_grad():
            for batch in data.evaluation():
                scores = workload.score(stepper.bare_model, batch)
                sums = {name: sums[name] + float(scores[name]) for name in sums}
    assert len(losses) == 24
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    quality = workload.quality({**sums, "samples": 12})
    assert 0 <= quality[workload.target.name] <= 100
