"""Facts of the GPT of 124 M parameters, without torch."""

from trainmark.record.workload_facts import ReferenceFacts, WorkloadFacts
from trainmark.workloads.decoder.common_facts import DATA_SET, ITEM, QUALITIES, SHOWS, TASK

PUBLISHED = ReferenceFacts(
    batch_per_device=64,
    learning_rate=0.0018,
    weight_decay=0.1,
    epochs=0,
    target=3.28,
    global_batch=512,
)
"""The record of 2024-06-06 of KellerJordan/modded-nanogpt: 9536 steps of 524 288 tokens of FineWeb to 3.276. That
commit also scaled each gradient to unit norm, which its author removed a week later for making no difference: here it
is plain AdamW."""

FACTS = WorkloadFacts(
    name="gpt124m",
    title="GPT-124M",
    task=TASK,
    item=ITEM,
    sample="window",
    sample_words=("sequence", "sequences", "sample", "samples", "window", "windows"),
    items_per_sample=1024,
    data_set=DATA_SET,
    samples_per_epoch=9_665_000,
    flops_per_item=0.8544e9,
    qualities=QUALITIES,
    reference=PUBLISHED,
    shows=SHOWS,
    on_pages=(r"gpt[\s_-]*2?[\s_-]*\(?124[\s_-]*m",),
)
