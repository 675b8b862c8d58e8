"""ADE20K as the commands see it, without numpy."""

from pathlib import Path

from trainmark.data import DataSet, Option

DATA_SET = DataSet(
    name="ade20k",
    title="ADE20K",
    makes="an ADE20K-shaped folder of synthetic scenes with masks",
    prepares="images and masks from ADEChallengeData2016.zip",
    verifies="images and masks",
    things="scenes",
    takes="about 10 s on two cores",
    smallest={"train": 8, "val": 4},
    make_options=(
        Option(word="--train", help="scenes to train on (default: 960)"),
        Option(word="--val", help="scenes to evaluate on (default: 80)"),
        Option(word="--classes", help="with background and ground (default: 6)"),
    ),
    prepare_options=(Option(word="--zip", kind=Path, metavar="FILE", required=True, help="ADEChallengeData2016.zip"),),
)
