"""Facts of ViT-B/16, without torch."""

from trainmark.record.workload_facts import ReferenceFacts, WorkloadFacts
from trainmark.workloads import vision_facts

PUBLISHED = ReferenceFacts(
    batch_per_device=256,
    accumulate=2,
    learning_rate=0.003,
    weight_decay=0.3,
    epochs=300,
    target=79.982,
    global_batch=4096,
)
"""Settings of the published tables."""

FACTS = WorkloadFacts(
    name="vit",
    title="ViT-B/16",
    task=vision_facts.TASK,
    item=vision_facts.ITEM,
    sample="image",
    items_per_sample=1,
    most_items_per_sample=1,
    data_set=vision_facts.DATA_SET,
    least_loss=0,
    samples_per_epoch=vision_facts.SAMPLES_PER_EPOCH,
    flops_per_item=105.2e9,
    qualities=vision_facts.QUALITIES,
    shows=vision_facts.SHOWS,
    reference=PUBLISHED,
    quality_on_pages="final_acc1",
    on_pages=(r"(?<![a-z])vit(?![a-z])", r"vision[\s_-]*transformer"),
)
