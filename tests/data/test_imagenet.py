from __future__ import annotations

from pathlib import Path

import pytest

from trainmark.data.image_sets import ImageSet, open_split
from trainmark.record.errors import NotReadyError


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def relative_paths(images: ImageSet) -> list[str]:
    return [images.path(index).removeprefix(f"{images.root}/") for index in range(len(images))]


def test_images_are_listed_in_sorted_order_with_their_class(tmp_path: Path) -> None:
    make(tmp_path, "train/n02/b.JPEG", "train/n01/z.jpg", "train/n01/a.Jpeg", "train/n02/a.jpeg")
    images = open_split(tmp_path, "train")
    assert len(images) == 4
    assert images.classes == ("n01", "n02")
    assert images.labels.tolist() == [0, 0, 1, 1]
    paths = relative_paths(images)
    assert paths == ["train/n01/a.Jpeg", "train/n01/z.jpg", "train/n02/a.jpeg", "train/n02/b.JPEG"]
    assert all(Path(images.path(index)).is_file() for index in range(4))


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    make(
        tmp_path, "train/n01/a.JPEG", "train/n01/._a.JPEG", "train/n01/notes.txt", "train/list.JPEG", "train/.git/a.jpg"
    )
    images = open_split(tmp_path, "train")
    assert relative_paths(images) == ["train/n01/a.JPEG"]


def test_folders_with_spaces_and_chinese_names_work(tmp_path: Path) -> None:
    root = tmp_path / "我的 data"
    make(root, "train/金鱼 1/图 片.JPEG")
    images = open_split(root, "train")
    assert Path(images.path(0)).is_file()
    assert relative_paths(images)[0] == "train/金鱼 1/图 片.JPEG"


def test_labels_of_the_validation_set_are_those_of_training(tmp_path: Path) -> None:
    make(tmp_path, "train/n01/a.JPEG", "train/n02/a.JPEG", "train/n03/a.JPEG", "val/n03/a.JPEG", "val/n02/b.JPEG")
    images = open_split(tmp_path, "val")
    assert images.classes == ("n01", "n02", "n03")
    assert images.labels.tolist() == [1, 2]
    assert relative_paths(images)[0] == "val/n02/b.JPEG"


@pytest.mark.parametrize(
    ("files", "split", "sentence"),
    [
        ([], "train", "train cannot be listed .*expected train/<class>"),
        (["train/n01/a.JPEG"], "val", "val cannot be listed .*expected train/<class>"),
        (["train/a.JPEG"], "train", "train holds no class folders; expected train/<class>"),
        (["train/n01/a.JPEG", "train/n02/a.txt"], "train", r"n02 holds no images; expected files \*.JPEG"),
        (
            ["train/n01/a.JPEG", "val/n01/a.JPEG", "val/n09/a.JPEG"],
            "val",
            "1 class folders that train does not have, the first is 'n09'; expected a subset of train's 1",
        ),
    ],
)
def test_a_folder_that_is_not_imagenet_is_refused_in_a_sentence(
    tmp_path: Path, files: list[str], split: str, sentence: str
) -> None:
    make(tmp_path, *files)
    with pytest.raises(NotReadyError, match=sentence) as caught:
        open_split(tmp_path, split)
    assert caught.value.exit_code == 3
