"""What Llama 3.1 8B is to those who never train it."""

from trainmark.spec.workload_facts import ReferenceFacts, WorkloadFacts
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
    shows=SHOWS,
    on_pages=(r"llama[\s_-]*3(?:\.?1)?[\s_-]*8[\s_-]*b",),
)
