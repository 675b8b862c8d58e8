"""Measures how many pictures a second our input makes beside a plain DataLoader with Pillow, both in one run.

Each way has a process of its own, and they take turns. Ours gets the host settings that a run on a CPU has, the others
what their users have.

Cropped and flipped as for ResNet-50, with the random operations ViT adds, and pictures with masks as for Segmenter:
scaled, cropped by the rule of three quarters, mirrored, their colours distorted. With `--shards N`, pictures in tar
shards beside the same ones in folders. With `--peers`, cropped and flipped by torchvision, timm and DALI, too,
where they are installed, each the way its users run it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import figures
import numpy as np
import numpy.typing as npt
import psutil
import torch
import turns
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import DataLoader, Dataset

from trainmark.data.ade20k.make import make as make_scenes
from trainmark.data.ade20k.reader import SceneSet, open_split as open_scenes
from trainmark.data.distributed_sampler import rank_batches
from trainmark.data.image_sets import ImageSet, open_split, scan_shard
from trainmark.data.imagenet.make import pack
from trainmark.data.input_pool import ImageBatch, ImageMaker
from trainmark.data.sample_pool import SamplePool
from trainmark.platforms import files
from trainmark.workloads.segmenter.batches import SceneData
from trainmark.workloads.segmenter.workload import RECIPES
from trainmark.workloads.vision import MEAN, STD, normalise
from trainmark.workloads.workload import Share

BATCH = 64
SIZE_PX = 224
SCENE_BATCH, SCENE_PX = 8, 512
PASSES = 5
AUGMENT_OPS = 2
AUGMENT_MAGNITUDE = 9
LOOK_S, PATIENCE_S = 0.1, 5.0
"""How often workers are asked whether they still fill their queues, and for how long at most."""


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
    parser.add_argument("--child", choices=LOADERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--operations", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(options.child, Work(folder=options.folder, workers=options.workers, operations=options.operations))
        return
    with tempfile.TemporaryDirectory(prefix="trainmark-input-") as name:
        folder, work = Path(name), Work(folder=Path(name), workers=options.workers)
        if options.shards:
            make_set(folder, options.images)
            print(f"crop and flip, pictures in folders and in {options.shards} shards")
            shards = make_shards(folder, options.shards)
            report(measure({"folders": ("ours", work), "shards": ("ours", replace(work, folder=shards))}, options))
            return
        if options.peers:
            make_set(folder, options.images)
            print("crop and flip, beside other loaders")
            peers = {name: (name, work) for name in PEERS}
            report(
                measure({"DataLoader + Pillow": ("plain", work), **peers, "trainmark": ("ours", work)}, options),
                "pictures",
            )
            return
        if options.scenes != "no":
            print("scale, crop, flip and distort 683x512 pictures and masks to 512x512")
            scenes = replace(work, folder=folder / "scenes")
            make_scenes(scenes.folder, train=min(64, options.images), val=1, classes=150, long_side=683)
            ways = {"DataLoader + Pillow": ("plain scenes", scenes), "trainmark": ("our scenes", scenes)}
            report(measure(ways, options))
        if options.scenes == "only":
            return
        make_set(folder, options.images)
        for operations in {"no": (0,), "yes": (AUGMENT_OPS,), "both": (0, AUGMENT_OPS)}[options.augment]:
            title = f"{operations} random operations" if operations else "no random operations"
            print(f"crop, flip, {title}")
            work = replace(work, operations=operations)
            ways = {"DataLoader + Pillow": ("plain", work), "trainmark": ("ours", work)}
            report(measure(ways, options), "augmented pictures" if operations else "pictures")


@dataclass(frozen=True, kw_only=True)
class Work:
    folder: Path
    """Where the set lies."""
    workers: int
    operations: int = 0
    """Random ones after the crop."""


Loader = Callable[[Work], Iterator[torch.Tensor]]
"""Endless batches of the pictures in a folder; ImportError where it is not installed."""


def measure(ways: Mapping[str, tuple[str, Work]], options: argparse.Namespace) -> dict[str, list[Pass]]:
    """Passes of each way, by the loader's kind and its work, in turns; ways that cannot be used here are left out."""
    with ExitStack() as stack:
        # each starts its processes once and goes through epoch after epoch, as in a long run
        children = {}
        for name, (kind, work) in ways.items():
            child = start(kind, work)
            stack.callback(child.close)
            if why_not := child.turn(0):
                print(f"{name:20s} {why_not}")
            else:
                children[name] = child
        passes: dict[str, list[Pass]] = {name: [] for name in children}
        for _ in range(PASSES):
            for name, child in children.items():
                passes[name].append(Pass(**child.turn(options.seconds)))
    return passes


def start(kind: str, work: Work) -> turns.Child:
    command = [__file__, "--child", kind, "--folder", str(work.folder)]
    command += ["--workers", str(work.workers), "--operations", str(work.operations)]
    ours = kind in ("ours", "our scenes")
    return turns.Child(command, {**os.environ, **files.load("cpu").host_settings} if ours else os.environ)


def serve(kind: str, work: Work) -> None:
    """A child: to the first line it answers why it cannot be used or nothing, to the others with a pass so long."""
    # the cores belong to the decoding processes; a consumer that spins on them slows every way
    torch.set_num_threads(1)
    batches: Iterator[torch.Tensor] = iter(())
    for line in sys.stdin:
        answer: object = ""
        if float(line):
            answer = asdict(one_pass(batches, float(line), work.workers))
        else:
            try:
                batches = LOADERS[kind](work)
                next(batches)
            except ImportError:
                answer = "is not installed"
            except (RuntimeError, OSError) as error:  # built for another torch, or a library of its own is missing
                if kind not in PEERS:
                    raise
                answer = f"cannot be used here: {error}"
        wait_until_idle()
        print(json.dumps(answer), flush=True)


def wait_until_idle() -> None:
    """Returns once the workers have filled their queues and sit still, so that whose turn is next has the machine."""
    until = time.perf_counter() + PATIENCE_S
    used, before = cpu_s(), -1.0
    while used - before > LOOK_S / 4 and time.perf_counter() < until:
        time.sleep(LOOK_S)
        used, before = cpu_s(), used


def make_shards(folder: Path, count: int) -> Path:
    """The same pictures once more, below the folder of the others."""
    out = folder / "shards"
    out.mkdir()
    pack(folder, "train", out, shards=count)
    start = time.perf_counter()
    sharded = [scan_shard(path) for path in sorted(out.iterdir())]
    each_us = 1e6 * (time.perf_counter() - start) / sum(len(shard.images) for shard in sharded)
    print(f"{'index':20s} {each_us:6.0f} us a picture, read once")
    return out


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


def one_pass(batches: Iterator[torch.Tensor], seconds: float, workers: int) -> Pass:
    """Measures once the batches that waited ready in the queues are used up."""
    for _ in range(2 * workers + 2):
        next(batches)
    count = 0
    start, cpu_start = time.perf_counter(), cpu_s()
    while time.perf_counter() - start < seconds:
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


def our_batches(work: Work) -> Iterator[torch.Tensor]:
    """Our way: bytes decoded into shared slots, made floats in one batch."""
    images = open_split(work.folder, "train")
    maker = ImageMaker(
        sets=(images,), image_px=SIZE_PX, augment_ops=work.operations, augment_magnitude=AUGMENT_MAGNITUDE
    )
    with closing(SamplePool({"train": images}, maker, workers=work.workers, batch_capacity=BATCH)) as pool:
        yield from endless(partial(our_epoch, pool, images))


def our_epoch(pool: SamplePool[ImageBatch], images: ImageSet, epoch: int) -> Iterator[torch.Tensor]:
    shares = rank_batches(len(images), batch_per_device=BATCH, world=1, rank=0, seed=0, epoch=epoch, shuffle=True)
    for batch in pool.batches("train", shares, transform="train", epoch=epoch):
        yield normalise(batch.images, torch.float32)


def our_scenes(work: Work) -> Iterator[torch.Tensor]:
    recipe = replace(RECIPES["reference"], batch_per_device=SCENE_BATCH, input_workers=work.workers)
    data = SceneData(recipe, work.folder, Share(rank=0, world=1, local_ranks=1), 0)
    epoch = 0
    while True:
        for batch in data.train(epoch, 0):
            yield normalise(batch.images, torch.float32)
        epoch += 1


def plain_scenes(work: Work) -> Iterator[torch.Tensor]:
    scenes = PlainScenes(open_scenes(work.folder, "train"))
    return repeated(DataLoader(scenes, SCENE_BATCH, **loading(work.workers)))


def plain_batches(work: Work) -> Iterator[torch.Tensor]:
    pictures = PlainPictures(open_split(work.folder, "train"), work.operations)
    return repeated(DataLoader(pictures, BATCH, **loading(work.workers)))


def loading(workers: int) -> dict[str, Any]:
    return {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}


def repeated(loader: Iterable[tuple[torch.Tensor, object]]) -> Iterator[torch.Tensor]:
    """The pictures of a loader's batches, epoch after epoch."""
    return endless(lambda _: (pixels for pixels, _ in loader))


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


def torchvision_batches(work: Work) -> Iterator[torch.Tensor]:
    """As torchvision's own training script reads ImageNet."""
    torchvision = import_module("torchvision")
    transforms = torchvision.transforms
    steps = [transforms.RandomResizedCrop(SIZE_PX), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    pictures = torchvision.datasets.ImageFolder(
        str(work.folder / "train"), transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    )
    return repeated(DataLoader(pictures, BATCH, **loading(work.workers)))


def timm_batches(work: Work) -> Iterator[torch.Tensor]:
    """As timm's training script reads a folder of classes, with nothing but the crop and the flip."""
    timm = import_module("timm.data")
    loader = timm.create_loader(
        timm.create_dataset("", root=str(work.folder / "train")),
        input_size=(3, SIZE_PX, SIZE_PX),
        batch_size=BATCH,
        is_training=True,
        color_jitter=None,
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=work.workers,
        use_prefetcher=False,
        device=torch.device("cpu"),
    )
    return repeated(loader)


def dali_batches(work: Work) -> Iterator[torch.Tensor]:
    """As DALI's examples read ImageNet, every operator on the CPU; its workers are threads."""
    dali, fn, types = (import_module(name) for name in ("nvidia.dali", "nvidia.dali.fn", "nvidia.dali.types"))
    plugin = import_module("nvidia.dali.plugin.pytorch")
    pipeline = dali.Pipeline(batch_size=BATCH, num_threads=work.workers, device_id=None, seed=0)
    with pipeline:
        files, labels = fn.readers.file(file_root=str(work.folder / "train"), random_shuffle=True, name="pictures")
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
LOADERS: Mapping[str, Loader] = {
    "plain": plain_batches,
    "ours": our_batches,
    "plain scenes": plain_scenes,
    "our scenes": our_scenes,
    **PEERS,
}


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
