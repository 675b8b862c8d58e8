"""Facts of Llama 3.1 8B, without torch."""

from trainmark.record.workload_facts import BandPoint, LossBand, ReferenceFacts, WorkloadFacts
from trainmark.workloads.decoder.common_facts import DATA_SET, ITEM, QUALITIES, SHOWS, TASK

PUBLISHED = ReferenceFacts(
    batch_per_device=1,
    accumulate=4,
    learning_rate=8e-4,
    weight_decay=0.1,
    epochs=0,
    target=3.3,
    global_batch=32,
)
"""MLPerf's llama31_8b, closed division, by the training rules of 2026-05-14, at the batch of 32 that most submit with
and for which 8 cards take 4 windows each."""

MAY_DIFFER = frozenset(
    {
        "batch_per_device", "accumulate", "warmup_steps", "parallel", "recompute", "compiled", "evaluate_every",
        "steps", "learning_rate", "checkpoint_every", "eval_batch_per_device", "seed", "input_workers", "leave_sample",
        "loss_chunk", "host_settings", "optimizer_kind", "tensor_parallel",
    }
)  # fmt: skip
LOGS = "logs of MLPerf Training v5.1, llama31_8b"


def _band(global_batch: int, learning_rate: float, points: tuple[tuple[int, float, float], ...]) -> LossBand:
    return LossBand(
        quality="val_loss",
        global_batch=global_batch,
        learning_rate=learning_rate,
        points=tuple(BandPoint(*point) for point in points),
        source=LOGS,
        may_differ=MAY_DIFFER,
    )


def _around(samples: int, mean: float, deviation: float) -> tuple[int, float, float]:
    """Three standard deviations on either side."""
    return samples, round(mean - 3 * deviation, 3), round(mean + 3 * deviation, 3)


BANDS = (
    _band(
        16,
        4e-4,
        (
            _around(12_288, 5.243, 0.052),
            _around(24_576, 4.257, 0.024),
            _around(36_864, 3.958, 0.017),
            _around(49_152, 3.794, 0.016),
            _around(73_728, 3.601, 0.015),
            _around(98_304, 3.484, 0.015),
            _around(122_880, 3.401, 0.014),
            _around(147_456, 3.340, 0.014),
            _around(172_032, 3.297, 0.009),
        ),
    ),
    _band(
        32,
        8e-4,
        (
            _around(12_288, 5.63, 0.07),
            (24_576, 4.47, 4.54),
            (49_152, 3.87, 3.91),
            (73_728, 3.65, 3.68),
            (98_304, 3.51, 3.54),
            (122_880, 3.42, 3.44),
        ),
    ),
)
"""Of 140 runs at a batch of 16 and 40 to 60 at 32, where most points are known as the range of submitters' means."""

FACTS = WorkloadFacts(
    name="llama8b",
    title="Llama 3.1 8B",
    task=TASK,
    item=ITEM,
    sample="window",
    sample_words=("sequence", "sequences", "sample", "samples", "window", "windows"),
    items_per_sample=8192,
    data_set=DATA_SET,
    flops_per_item=57.91e9,
    qualities=QUALITIES,
    reference=PUBLISHED,
    bands=BANDS,
    shows=SHOWS,
    on_pages=(r"llama[\s_-]*3(?:\.?1)?[\s_-]*8[\s_-]*b",),
)
