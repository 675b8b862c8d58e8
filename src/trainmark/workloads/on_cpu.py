"""Whether a tensor lies in a CPU's memory, for code that has another way there than on an accelerator."""

from __future__ import annotations

from torch import Tensor


def on_cpu(tensor: Tensor) -> bool:
    """False also for tensors of shapes alone: these lie on a numbered CPU, as an accelerator's would."""
    return tensor.is_cpu and tensor.device.index is None
