"""ImageNet-1k as the commands see it, without numpy."""

from pathlib import Path

from trainmark.data import DataSet, Option

DATA_SET = DataSet(
    name="imagenet",
    title="ImageNet-1k",
    makes="ImageNet-shaped folders or shards of synthetic images",
    prepares="folders of classes from the ILSVRC2012 archives",
    verifies="classes and images",
    things="images",
    takes="about 10 s on two cores",
    smallest={"classes": 2, "train_per_class": 4, "val_per_class": 4},
    make_options=(
        Option(word="--classes", default=10, help="(default: 10)"),
        Option(word="--train-per-class", help="images of each class to train on"),
        Option(word="--val-per-class", help="images of each class to evaluate on"),
        Option(word="--shards", help="tar files per split, instead of folders"),
    ),
    prepare_options=(
        Option(word="--train-tar", kind=Path, metavar="FILE", required=True, help="ILSVRC2012_img_train.tar"),
        Option(word="--val-tar", kind=Path, metavar="FILE", required=True, help="ILSVRC2012_img_val.tar"),
        Option(word="--devkit", kind=Path, metavar="FILE", required=True, help="ILSVRC2012_devkit_t12.tar.gz"),
    ),
)
