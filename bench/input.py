"""Measures how many pictures a second our input makes beside a plain DataLoader with Pillow, both in one run.

Cropped and flipped as for ResNet-50, with the random operations ViT adds, and pictures with masks as for Segmenter:
scaled, cropped by the rule of three quarters, mirrored, their colours distorted. With `--shards N`, pictures in tar
shards beside the same ones in folders. With `--peers`, cropped and flipped by torchvision, timm and DALI, too,
where they are installed, each the way its users run it.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import figures
import numpy as np
import numpy.typing as npt
import psutil
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset

from trainmark.datasets import image_shards
from trainmark.datasets.ade20k.make import make as make_scenes
from trainmark.datasets.ade20k.reader import SceneSet, open_split as open_scenes
from trainmark.datasets.image_folder import ImageSet, open_split
from trainmark.datasets.imagenet.pack import pack
from trainmark.datasets.input_pool import InputPool
from trainmark.datasets.order import rank_batches
from trainmark.datasets.pictures import Pictures, open_split as open_pictures
from trainmark.workloads.normalise import MEAN, STD, normalise
from trainmark.workloads.segmenter import recipes as segmenter
from trainmark.workloads.segmenter.batches import SceneData
from trainmark.workloads.workload import Share

BATCH = 64
SIZE_PX = 224
SCENE_BATCH, SCENE_PX = 8, 512
PASSES = 5
AUGMENT_OPS = 2
AUGMENT_MAGNITUDE = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=512, help="different pictures in the temporary set")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each pass")
    parser.add_argument("--workers", type=int, default=2, help="decoding processes, for both")
    parser.add_argument("--scenes", choices=("no", "yes", "only"), default="yes", help="pictures with masks, too")
    parser.add_argument(
        "--augment", choices=("no", "yes", "both"), default="both", help="random operations after the crop, as ViT has"
    )
    parser.add_argument(
        "--shards", type=int, default=0, metavar="N", help="only folders beside N tar shards of the same pictures"
    )
    parser.add_argument("--peers", action="store_true", help="only crop and flip, beside DALI, torchvision and timm")
    options = parser.parse_args()
    torch.set_num_threads(
        1
    )  # the cores belong to the decoding processes; a consumer that spins on them slows both ways
    if options.shards:
        with tempfile.TemporaryDirectory(prefix="trainmark-input-") as folder:
            make_set(Path(folder), options.images)
            print(f"crop and flip, pictures in folders and in {options.shards} shards")
            report(measure_shards(Path(folder), options))
        return
    if options.peers:
        with tempfile.TemporaryDirectory(prefix="trainmark-input-") as folder:
            make_set(Path(folder), options.images)
            print("crop and flip, beside other loaders")
            report(measure(open_split(Path(folder), "train"), 0, options, PEERS), "pictures")
        return
    if options.scenes != "no":
        with tempfile.TemporaryDirectory(prefix="trainmark-input-") as folder:
            print("scale, crop, flip and distort 683x512 pictures and masks to 512x512")
            report(measure_scenes(Path(folder), options))
    if options.scenes == "only":
        return
    with tempfile.TemporaryDirectory(prefix="trainmark-input-") as folder:
        make_set(Path(folder), options.images)
        images = open_split(Path(folder), "train")
        for operations in {"no": (0,), "yes": (AUGMENT_OPS,), "both": (0, AUGMENT_OPS)}[options.augment]:
            title = f"{operations} random operations" if operations else "no random operations"
            print(f"crop, flip, {title}")
            report(measure(images, operations, options), "augmented pictures" if operations else "pictures")


Loader = Callable[[Path, int], Iterator[torch.Tensor]]
"""Endless batches of the pictures in a folder, made by so many workers; ImportError where it is not installed."""


def measure(
    images: ImageSet, operations: int, options: argparse.Namespace, peers: Mapping[str, Loader] = MappingProxyType({})
) -> dict[str, list[Pass]]:
    # each way starts its processes once and goes through epoch after epoch, as in a long run
    with InputPool(
        {"train": images},
        workers=options.workers,
        batch_capacity=BATCH,
        image_px=SIZE_PX,
        augment_ops=operations,
        augment_magnitude=AUGMENT_MAGNITUDE,
    ) as pool:
        ours = endless(partial(our_epoch, pool, images, batch_of_floats()))
        plain = endless(plain_epochs(images, operations, options.workers))
        ways = {"DataLoader + Pillow": plain}
        for name, loader in peers.items():
            try:
                ways[name] = loader(images.root / images.split, options.workers)
            except ImportError:
                print(f"{name:20s} is not installed")
            except (RuntimeError, OSError) as error:  # built for another torch, or a library of its own is missing
                print(f"{name:20s} cannot be used here: {error}")
        ways["trainmark"] = ours
        passes: dict[str, list[Pass]] = {name: [] for name in ways}
        for _ in range(PASSES):
            for name, batches in ways.items():
                # the other way's workers sit still meanwhile: they have filled their queues and wait
                passes[name].append(one_pass(batches, options))
    return passes


def measure_shards(folder: Path, options: argparse.Namespace) -> dict[str, list[Pass]]:
    out = folder / "shards"
    out.mkdir()
    written = list(pack(folder, "train", out, shards=options.shards))
    start = time.perf_counter()
    sharded = image_shards.look_at_shards(out, [shard.path for shard in written])
    each_us = 1e6 * (time.perf_counter() - start) / sum(len(shard.pictures) for shard in sharded)
    print(f"{'index':20s} {each_us:6.0f} us a picture, read once")
    with ExitStack() as stack:
        ways = {}
        for name, root in (("folders", folder), ("shards", out)):
            images = open_pictures(root, "train")
            pool = stack.enter_context(
                InputPool({"train": images}, workers=options.workers, batch_capacity=BATCH, image_px=SIZE_PX)
            )
            ways[name] = endless(partial(our_epoch, pool, images, batch_of_floats()))
        passes: dict[str, list[Pass]] = {name: [] for name in ways}
        for _ in range(PASSES):
            for name, batches in ways.items():
                passes[name].append(one_pass(batches, options))
    return passes


@dataclass(frozen=True, kw_only=True)
class Pass:
    images_per_s: float
    cpu_ms_per_image: float
    """Processor time of this process and all its workers; hardly moved by what else the machine does."""


def report(passes: dict[str, list[Pass]], figure: str = "") -> None:
    """Prints them; under a name, how many times as fast ours are is noted."""
    for name, ones in passes.items():
        speed = spread([one.images_per_s for one in ones], "6.0f")
        print(f"{name:20s} {speed} images/s, {spread([one.cpu_ms_per_image for one in ones], '5.2f')} CPU ms an image")
    *others, (_, ours) = passes.items()
    for name, theirs in others:
        pairs = list(zip(theirs, ours, strict=True))
        faster = [our.images_per_s / their.images_per_s for their, our in pairs]
        if figure:
            figures.note(f"{figure} over {name}", statistics.median(faster))
        speed = spread(faster, "6.2f")
        cpu = spread([their.cpu_ms_per_image / our.cpu_ms_per_image for their, our in pairs], "5.2f")
        beside = f" beside {name}" if len(others) > 1 else ""
        passes_of = f"median (least to most) of {PASSES} interleaved passes"
        print(f"{'times as good':20s} {speed},          {cpu}{beside}; {passes_of}")


def spread(values: list[float], form: str) -> str:
    short = form[form.index(".") :]
    return f"{statistics.median(values):{form}} ({min(values):{short}} to {max(values):{short}})"


def one_pass(batches: Iterator[torch.Tensor], options: argparse.Namespace) -> Pass:
    """Measures once the batches that waited ready in the queues are used up."""
    for _ in range(2 * options.workers + 2):
        next(batches)
    count = 0
    start, cpu_start = time.perf_counter(), cpu_s()
    while time.perf_counter() - start < options.seconds:
        count += len(next(batches))
    return Pass(
        images_per_s=count / (time.perf_counter() - start), cpu_ms_per_image=1000 * (cpu_s() - cpu_start) / count
    )


def cpu_s() -> float:
    """Processor seconds used so far by this process and its workers."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def endless(epoch_batches: Callable[[int], Iterator[torch.Tensor]]) -> Iterator[torch.Tensor]:
    epoch = 0
    while True:
        yield from epoch_batches(epoch)
        epoch += 1


def batch_of_floats() -> torch.Tensor:
    return torch.empty(BATCH, 3, SIZE_PX, SIZE_PX, memory_format=torch.channels_last)


def our_epoch(pool: InputPool, images: Pictures, floats: torch.Tensor, epoch: int) -> Iterator[torch.Tensor]:
    """Our way: bytes decoded into shared slots, made floats in one buffer that is used again."""
    shares = rank_batches(len(images), batch_per_device=BATCH, world=1, rank=0, seed=0, epoch=epoch, shuffle=True)
    for batch in pool.batches("train", shares, transform="train", epoch=epoch):
        yield normalise(batch.images, torch.float32, out=floats[: batch.count])


def measure_scenes(folder: Path, options: argparse.Namespace) -> dict[str, list[Pass]]:
    make_scenes(folder / "set", train=min(64, options.images), val=1, classes=150, long_side=683)
    recipe = replace(segmenter.REFERENCE, batch_per_device=SCENE_BATCH, input_workers=options.workers)
    data = SceneData(recipe, folder / "set", Share(rank=0, world=1, local_ranks=1), 0)
    floats = torch.empty(2 * SCENE_BATCH, 3, SCENE_PX, SCENE_PX, memory_format=torch.channels_last)

    def our_scenes(epoch: int) -> Iterator[torch.Tensor]:
        for batch in data.train(epoch, 0):
            yield normalise(batch.images, torch.float32, out=floats[: batch.count])

    scenes = open_scenes(folder / "set", "train")
    loader = DataLoader(
        PlainScenes(scenes),
        SCENE_BATCH,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    ways = {
        "DataLoader + Pillow": endless(lambda _: (pixels for pixels, _ in loader)),
        "trainmark": endless(our_scenes),
    }
    passes: dict[str, list[Pass]] = {name: [] for name in ways}
    for _ in range(PASSES):
        for name, batches in ways.items():
            passes[name].append(one_pass(batches, options))
    data.close()
    return passes


class PlainScenes(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same work with Pillow and numpy, as training scripts do it that have no OpenCV."""

    def __init__(self, scenes: SceneSet) -> None:
        self.files = [(scenes.path(index), scenes.mask_path(index)) for index in range(len(scenes))]
        self.mean, self.std = (np.array(values, np.float32) for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture, mask = (Image.open(path) for path in self.files[index])
        scale = random.uniform(0.5, 2)
        factor = min(2048 * scale / max(picture.size), 512 * scale / min(picture.size))
        size = round(picture.width * factor), round(picture.height * factor)
        pixels = np.array(picture.convert("RGB").resize(size, Image.Resampling.BILINEAR))
        labels = np.array(mask.resize(size, Image.Resampling.NEAREST)).astype(np.int64) - 1
        labels[labels < 0] = 255
        top, left = random_corner(labels)
        pixels = pixels[top : top + SCENE_PX, left : left + SCENE_PX]
        labels = labels[top : top + SCENE_PX, left : left + SCENE_PX]
        if random.random() < 0.5:
            pixels, labels = pixels[:, ::-1], labels[:, ::-1]
        floats = (plain_distortion(pixels).astype(np.float32) / 255 - self.mean) / self.std
        padding = ((0, SCENE_PX - len(labels)), (0, SCENE_PX - labels.shape[1]))
        whole = np.pad(floats, (*padding, (0, 0))), np.pad(labels, padding, constant_values=255)
        return torch.from_numpy(whole[0]).permute(2, 0, 1).contiguous(), torch.from_numpy(whole[1])


def random_corner(labels: npt.NDArray[np.int64]) -> tuple[int, int]:
    for _ in range(10):
        top, left = (random.randint(0, max(0, side - SCENE_PX)) for side in labels.shape)
        classes, counts = np.unique(labels[top : top + SCENE_PX, left : left + SCENE_PX], return_counts=True)
        counts = counts[classes != 255]
        if len(counts) > 1 and counts.max() / counts.sum() < 0.75:
            break
    return top, left


def plain_distortion(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Brightness, contrast, saturation and hue, each half the time, as the recipe's authors wrote them."""

    def line(levels: npt.NDArray[np.uint8], factor: float = 1, plus: float = 0) -> npt.NDArray[np.uint8]:
        moved: npt.NDArray[np.uint8] = np.clip(levels.astype(np.float32) * factor + plus, 0, 255).astype(np.uint8)
        return moved

    if random.random() < 0.5:
        pixels = line(pixels, plus=random.uniform(-32, 32))
    first, contrast = random.random() < 0.5, random.random() < 0.5
    if contrast and first:
        pixels = line(pixels, random.uniform(0.5, 1.5))
    # Pillow's own conversion, whose hues go to 255: quicker than any by numpy, though not the authors' to the bit
    if random.random() < 0.5:
        colours = np.array(Image.fromarray(pixels).convert("HSV"))
        colours[..., 1] = line(colours[..., 1], random.uniform(0.5, 1.5))
        pixels = np.array(Image.fromarray(colours, "HSV").convert("RGB"))
    if random.random() < 0.5:
        colours = np.array(Image.fromarray(pixels).convert("HSV"))
        colours[..., 0] = (colours[..., 0].astype(int) + random.randint(-25, 25)) % 256
        pixels = np.array(Image.fromarray(colours, "HSV").convert("RGB"))
    if contrast and not first:
        pixels = line(pixels, random.uniform(0.5, 1.5))
    return pixels


class PlainPictures(Dataset[tuple[torch.Tensor, int]]):
    """The same work as most training scripts do it."""

    def __init__(self, images: ImageSet, operations: int) -> None:
        self.operations = operations
        self.paths = [images.path(index) for index in range(len(images))]
        self.labels = images.labels.tolist()
        self.mean = torch.tensor(MEAN).view(3, 1, 1)
        self.std = torch.tensor(STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.open(self.paths[index]).convert("RGB")
        square = picture.crop(random_box(*picture.size)).resize((SIZE_PX, SIZE_PX), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        for _ in range(self.operations):
            square = random_operation(square)
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div_(255).sub_(self.mean).div_(self.std), self.labels[index]


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def random_operation(picture: Image.Image) -> Image.Image:
    """One of the usual fourteen, at the usual strength, as most training scripts do it."""
    share = AUGMENT_MAGNITUDE / 30
    sign = random.choice((-1, 1))
    shear, shift, degrees, factor = (
        sign * 0.3 * share,
        int(sign * 150 / 331 * SIZE_PX * share),
        sign * 30 * share,
        1 + sign * 0.9 * share,
    )
    operations: tuple[Callable[[], Image.Image], ...] = (
        lambda: picture,
        lambda: affine(picture, (1, shear, 0, 0, 1, 0)),
        lambda: affine(picture, (1, 0, 0, shear, 1, 0)),
        lambda: affine(picture, (1, 0, -shift, 0, 1, 0)),
        lambda: affine(picture, (1, 0, 0, 0, 1, -shift)),
        lambda: picture.rotate(degrees, Image.Resampling.BILINEAR),
        lambda: ImageEnhance.Brightness(picture).enhance(factor),
        lambda: ImageEnhance.Color(picture).enhance(factor),
        lambda: ImageEnhance.Contrast(picture).enhance(factor),
        lambda: ImageEnhance.Sharpness(picture).enhance(factor),
        lambda: ImageOps.posterize(picture, 8 - round(4 * share)),
        lambda: ImageOps.solarize(picture, math.ceil(255 - 255 * share)),
        lambda: ImageOps.autocontrast(picture),
        lambda: ImageOps.equalize(picture),
    )
    return random.choice(operations)()


def affine(picture: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


def plain_epochs(images: ImageSet, operations: int, workers: int) -> Callable[[int], Iterator[torch.Tensor]]:
    loader = DataLoader(
        PlainPictures(images, operations),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda epoch: (pixels for pixels, _ in loader)


def torchvision_batches(folder: Path, workers: int) -> Iterator[torch.Tensor]:
    """As torchvision's own training script reads ImageNet."""
    torchvision = import_module("torchvision")
    transforms = torchvision.transforms
    steps = [transforms.RandomResizedCrop(SIZE_PX), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    pictures = torchvision.datasets.ImageFolder(
        str(folder), transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    )
    loader: DataLoader[tuple[torch.Tensor, int]] = DataLoader(
        pictures, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return endless(lambda _: (pixels for pixels, _ in loader))


def timm_batches(folder: Path, workers: int) -> Iterator[torch.Tensor]:
    """As timm's training script reads a folder of classes, with nothing but the crop and the flip."""
    timm = import_module("timm.data")
    loader = timm.create_loader(
        timm.create_dataset("", root=str(folder)),
        input_size=(3, SIZE_PX, SIZE_PX),
        batch_size=BATCH,
        is_training=True,
        color_jitter=None,
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=workers,
        use_prefetcher=False,
        device=torch.device("cpu"),
    )
    return endless(lambda _: (pixels for pixels, _ in loader))


def dali_batches(folder: Path, workers: int) -> Iterator[torch.Tensor]:
    """As DALI's examples read ImageNet, every operator on the CPU; its workers are threads."""
    dali, fn, types = (import_module(name) for name in ("nvidia.dali", "nvidia.dali.fn", "nvidia.dali.types"))
    plugin = import_module("nvidia.dali.plugin.pytorch")
    pipeline = dali.Pipeline(batch_size=BATCH, num_threads=workers, device_id=None, seed=0)
    with pipeline:
        files, labels = fn.readers.file(file_root=str(folder), random_shuffle=True, name="pictures")
        cropped = fn.decoders.image_random_crop(files, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        square = fn.resize(cropped, size=(SIZE_PX, SIZE_PX), interp_type=types.INTERP_TRIANGULAR)
        floats = fn.crop_mirror_normalize(
            square,
            mirror=fn.random.coin_flip(),
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            output_layout="CHW",
        )
        pipeline.set_outputs(floats, labels)
    batches = plugin.DALIClassificationIterator(pipeline, reader_name="pictures", auto_reset=True)
    return endless(lambda _: (batch[0]["data"] for batch in batches))


PEERS: Mapping[str, Loader] = {"torchvision": torchvision_batches, "timm": timm_batches, "DALI": dali_batches}


def make_set(root: Path, count: int) -> None:
    """Photograph-like 500x375 JPEGs of quality 90: clouds of every scale, some shapes with edges, a little grain."""
    rng = np.random.default_rng(0)
    width, height = 500, 375
    rows, columns = np.mgrid[:height, :width]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1.0

    def clouds(roughness: float) -> npt.NDArray[np.float64]:
        spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**roughness
        field: npt.NDArray[np.float64] = np.fft.irfft2(spectrum, s=(height, width))
        field -= field.mean()
        field /= field.std()
        return field

    for number in range(count):
        light = 45 * clouds(1.2)
        picture = np.stack([125 + light + 15 * clouds(1.6) for _ in range(3)], axis=-1)
        for _ in range(12):
            y, x, radius = rng.uniform(0, height), rng.uniform(0, width), rng.uniform(10, 90)
            picture[(rows - y) ** 2 * rng.uniform(0.5, 2) + (columns - x) ** 2 < radius**2] += rng.uniform(-60, 60, 3)
        path = root / "train" / f"n{number % 8:08d}" / f"{number:06d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(path, quality=90)


if __name__ == "__main__":
    main()
