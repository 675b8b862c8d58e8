"""Facts of Segmenter, without torch."""

from trainmark.record.workload_facts import QualityFacts, ReferenceFacts, ShowFacts, WorkloadFacts

PUBLISHED = ReferenceFacts(
    batch_per_device=1,
    learning_rate=0.001,
    weight_decay=0.0,
    epochs=64,
    target=48.5,
    global_batch=8,
)
"""160,000 steps of 8 crops are 63.3 passes over ADE20K; 64 is the cap nearest above."""

FACTS = WorkloadFacts(
    name="segmenter",
    title="Segmenter ViT-B/16",
    task="Semantic segmentation",
    item="images",
    sample="scene",
    items_per_sample=1,
    most_items_per_sample=1,
    least_loss=0,
    data_set="ade20k",
    samples_per_epoch=20_210,
    flops_per_item=774.6e9,
    qualities=(
        QualityFacts(
            name="mIoU",
            unit="%",
            better="higher",
            least=0,
            most=100,
            plain="mean intersection over union",
            never_above="mAcc",
            on_pages=("miou", "mean iou", "mean_iou", "miou(ss)", "miou (ss)", "final_miou"),
            meaning="Of each class, the pixels that are it and were taken for it, of those that are it or were taken "
            "for it, over all validation images at their own size; then the mean over the classes that occur.",
        ),
        QualityFacts(
            name="aAcc",
            unit="%",
            better="higher",
            least=0,
            most=100,
            on_pages=("aacc", "pixel accuracy", "pixacc"),
            meaning="Pixel accuracy: the share of evaluated pixels predicted correctly, over all validation images.",
        ),
        QualityFacts(
            name="mAcc",
            unit="%",
            better="higher",
            least=0,
            most=100,
            on_pages=("macc", "mean accuracy"),
            meaning="Per-class accuracy, averaged over the classes that occur.",
        ),
        QualityFacts(
            name="one_class_mIoU",
            unit="%",
            better="higher",
            least=0,
            most=100,
            meaning="mIoU of predicting the commonest class for every pixel: the baseline to beat.",
        ),
        QualityFacts(
            name="ceiling_mIoU",
            unit="%",
            better="higher",
            least=0,
            most=100,
            meaning="What mIoU would be if every patch knew how much of it each class covers: masks are decided "
            "a patch at a time and then interpolated, and this is as good as that gets.",
        ),
    ),
    reference=PUBLISHED,
    shows=ShowFacts(takes="image", gives="image", does="colours an image by its classes"),
    on_pages=(r"segmenter", r"seg[\s_-]*b[\s_-]*mask"),
)
