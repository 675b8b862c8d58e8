"""Facts common to all image classifiers."""

from __future__ import annotations

from trainmark.record.workload_facts import QualityFacts, ShowFacts

ITEM = "images"
DATA_SET = "imagenet"
TASK = "Image classification"
SAMPLES_PER_EPOCH = 1_281_167
SHOWS = ShowFacts(takes="image", gives="text", does="names the classes of an image")
QUALITIES = (
    QualityFacts(
        name="acc1",
        unit="%",
        better="higher",
        least=0,
        most=100,
        counted=True,
        never_above="acc5",
        word="acc",
        plain="accuracy",
        on_pages=(
            "acc",
            "acc1",
            "acc@1",
            "final_acc1",
            "final_acc",
            "top1",
            "top-1",
            "top1_acc",
            "top1 accuracy",
            "top1-acc",
            "accuracy@1",
            "prec@1",
            "val_acc",
        ),
    ),
    QualityFacts(
        name="acc5",
        unit="%",
        better="higher",
        least=0,
        most=100,
        counted=True,
        on_pages=("acc5", "acc@5", "top5", "top-5", "top5-acc", "top5 accuracy", "accuracy@5", "prec@5"),
    ),
    QualityFacts(name="val_loss", better="lower", least=0),
)
