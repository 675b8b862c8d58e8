"""Measures how fast, how accurately, at what power and how steadily a machine trains real models.

`import trainmark` costs nothing and needs no torch: what is named here is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmark.api import (
        Moment as Moment,
        Records as Records,
        Shown as Shown,
        Verdict as Verdict,
        compare as compare,
        load as load,
        plan as plan,
        records as records,
        report as report,
        run as run,
        run_all as run_all,
        sample as sample,
    )
    from trainmark.launch.options import RunOptions as RunOptions
    from trainmark.record.errors import (
        HangError as HangError,
        InvalidResultError as InvalidResultError,
        NotReadyError as NotReadyError,
        TrainmarkError as TrainmarkError,
        UsageError as UsageError,
        WorkloadError as WorkloadError,
    )
    from trainmark.record.plan import Plan as Plan
    from trainmark.record.record import Record as Record

__version__ = "0.1.0"

__all__ = [
    "HangError",
    "InvalidResultError",
    "Moment",
    "NotReadyError",
    "Plan",
    "Record",
    "Records",
    "RunOptions",
    "Shown",
    "TrainmarkError",
    "UsageError",
    "Verdict",
    "WorkloadError",
    "__version__",
    "compare",
    "load",
    "plan",
    "records",
    "report",
    "run",
    "run_all",
    "sample",
]

_HOMES = ("trainmark.record.errors", "trainmark.api")
"""Where the names are looked for, the lightest first."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in map(importlib.import_module, _HOMES):
            if hasattr(home, name):
                globals()[name] = getattr(home, name)
                return globals()[name]
    raise AttributeError(f"module 'trainmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
