"""Facts of ResNet-50, without torch."""

from trainmark.record.recipe import RECIPES
from trainmark.record.workload_facts import ReferenceFacts, WorkloadFacts
from trainmark.workloads import vision_facts

PUBLISHED = ReferenceFacts(
    batch_per_device=32, learning_rate=0.1, weight_decay=1e-4, epochs=100, target=75.5, global_batch=256
)
"""Settings of the published tables."""

FACTS = WorkloadFacts(
    name="resnet50",
    title="ResNet-50",
    task=vision_facts.TASK,
    item=vision_facts.ITEM,
    sample="image",
    items_per_sample=1,
    most_items_per_sample=1,
    data_set=vision_facts.DATA_SET,
    least_loss=0,
    samples_per_epoch=vision_facts.SAMPLES_PER_EPOCH,
    flops_per_item=24.3e9,
    qualities=vision_facts.QUALITIES,
    shows=vision_facts.SHOWS,
    reference=PUBLISHED,
    recipes=(*RECIPES, "mlperf"),
    on_pages=(r"resnet[\s_-]*50",),
)
