"""Segmenter computes what its authors' does, learns from scenes, and is judged by sums that any ranks add up to."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli
from PIL import Image
from torch import Tensor

from trainmark.data.ade20k import make
from trainmark.data.ade20k.reader import IGNORED
from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import NotReadyError, UsageError, WorkloadError
from trainmark.record.sample import ImagePart, NetworkUsed
from trainmark.train.collectives import Collectives
from trainmark.train.loop import reduce_sums
from trainmark.workloads import weights
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.segmenter import scoring, show
from trainmark.workloads.segmenter.batches import CropBatch, SceneBatch, SceneData
from trainmark.workloads.segmenter.model import Segmenter, upsample
from trainmark.workloads.segmenter.workload import RECIPES, WORKLOAD, pixel_loss
from trainmark.workloads.vision import HALVES, IMAGENET, normalise
from trainmark.workloads.vision_transformer import EncoderBlock, interpolate_positions, linear_drop_paths
from trainmark.workloads.vit.model import VisionTransformer
from trainmark.workloads.workload import Progress, Share

pytestmark = pytest.mark.usefixtures("one_thread")

FILL = RECIPES["fill"]
QUICK = RECIPES["quick"]
REFERENCE = RECIPES["reference"]
SMOKE = RECIPES["smoke"]


TINY: dict[str, Any] = {
    "image_px": 32,
    "patch_px": 8,
    "layers": 2,
    "decoder_layers": 1,
    "heads": 2,
    "hidden": 16,
    "mlp": 24,
    "classes": 5,
}
TINY_RECIPE = replace(SMOKE, **TINY, batch_per_device=4, window_stride=24, input_workers=0, steps=10)
ALONE = Share(rank=0, world=1, local_ranks=1)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes") / "set"
    make.make(folder, train=10, val=5, classes=5, long_side=64)
    return folder


def tiny() -> Segmenter:
    torch.manual_seed(3)
    return Segmenter(**TINY, drop_path=0.0).eval()


# The network, by numbers that the original's own code gave


def mix_hash(index: int, tensor: int) -> float:
    """SplitMix64 of a place in a tensor, from -1 to 1."""
    word = ((index + 1) + tensor * 1000003) * 0x9E3779B97F4A7C15 & (2**64 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> shift)) * factor & (2**64 - 1)
    return 2 * ((word ^ (word >> 31)) >> 11) / 2**53 - 1


def golden(shape: tuple[int, ...], tensor: int) -> Tensor:
    count = int(np.prod(shape))
    return torch.tensor([mix_hash(index, tensor) for index in range(count)], dtype=torch.float64).view(shape)


@pytest.fixture(scope="module")
def golden_scores() -> Tensor:
    """Of the decoder alone, with the parameters in the original's order and by its names."""
    network = Segmenter(
        image_px=16, patch_px=4, layers=1, decoder_layers=2, heads=2, hidden=8, mlp=32, classes=3
    ).double()
    own = network.state_dict()
    layer = ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    names = ["cls_emb", "proj_patch", "proj_classes"]
    names += [f"blocks.{block}.{name}.{kind}" for block in (0, 1) for name in layer for kind in ("weight", "bias")]
    names += [f"{name}.{kind}" for name in ("proj_dec", "decoder_norm", "mask_norm") for kind in ("weight", "bias")]
    assert len(names) == 33
    given: dict[str, Tensor] = {}
    for tensor, name in enumerate(names):
        given[f"decoder.{name}"] = golden(tuple(own[network.own_name(f"decoder.{name}")].shape), tensor)
    encoder = {name: value for name, value in own.items() if not name.startswith("decoder.")}
    weights.load_into(network, {**encoder, **given}, "golden values")
    scores: Tensor = network.decoder.eval()(golden((1, 16, 8), 1000), 4)
    return scores


def test_the_decoder_gives_the_originals_numbers(golden_scores: Tensor) -> None:
    assert golden_scores.shape == (1, 3, 4, 4)
    assert golden_scores.sum().item() == pytest.approx(-3.151299649, abs=1e-8)
    assert golden_scores[0, :, 0, 0].tolist() == pytest.approx([-0.485368070, 0.043803450, 0.175294497], abs=1e-8)
    assert golden_scores[0, :, 3, 2].tolist() == pytest.approx([-0.484954516, -0.056948006, 0.099483010], abs=1e-8)


def test_both_means_of_the_loss_and_the_counts_are_the_originals(golden_scores: Tensor) -> None:
    labels = (torch.arange(256) % 4).view(1, 16, 16)
    labels[labels == 3] = IGNORED
    pixels = upsample(golden_scores, (16, 16))
    assert pixel_loss(pixels, labels, judged_mean=True).item() == pytest.approx(1.152881115, abs=1e-8)
    assert pixel_loss(pixels, labels, judged_mean=False).item() == pytest.approx(0.864660837, abs=1e-8)
    right, taken, judged = (
        one.tolist() for one in scoring.count(scoring.best_class(golden_scores[0], (16, 16)), labels[0], 3)
    )
    assert (right, [a + b - c for a, b, c in zip(taken, judged, right, strict=True)]) == ([0, 0, 64], [64, 64, 192])
    assert scoring.mean_iou(right, taken, judged) == pytest.approx(100 / 9)


def test_the_reference_network_has_the_published_size_and_arithmetic() -> None:
    with torch.device("meta"):
        network = WORKLOAD.build(REFERENCE)
    decoder = sum(weight.numel() for weight in network.decoder.parameters())
    assert (sum(weight.numel() for weight in network.parameters()), decoder) == (102_497_580, 16_063_020)
    # three times 258.6 GFLOP, but no gradient of the pixels is needed
    assert WORKLOAD.flops_per_item(REFERENCE) == pytest.approx(WORKLOAD.facts.flops_per_item, rel=1e-3)


def test_stochastic_depth_leaves_out_whole_samples_and_makes_up_for_it() -> None:
    torch.manual_seed(0)
    block = EncoderBlock(8, 2, 16, drop_path=0.5)
    x = torch.randn(400, 3, 8)
    added = (block(x) - x).detach()
    left_out = (added == 0).all(2).all(1)
    assert 0.15 < left_out.float().mean() < 0.36, "a quarter goes without both"
    block.eval()
    assert added.mean().item() == pytest.approx((block(x) - x).mean().item(), abs=0.05)
    assert linear_drop_paths(0.1, 3) == [0, 0.05, 0.1]


# Weights to begin with


def public_name(name: str) -> str:
    """The original's for one of ours."""
    for ours, theirs in (
        ("encoder.layers.encoder_layer_", "encoder.blocks."),
        (".ln_", ".norm"),
        (".self_attention.in_proj_", ".attn.qkv."),
        (".self_attention.out_proj.", ".attn.proj."),
        (".mlp.0.", ".mlp.fc1."),
        (".mlp.3.", ".mlp.fc2."),
        ("encoder.ln.", "encoder.norm."),
        ("encoder.pos_embedding", "encoder.pos_embed"),
        ("class_token", "encoder.cls_token"),
        ("conv_proj.", "encoder.patch_embed.proj."),
    ):
        name = name.replace(ours, theirs)
    return name


def test_a_file_of_the_originals_loads_by_its_names(tmp_path: Path) -> None:
    wanted, network = tiny(), Segmenter(**TINY)
    named = {public_name(name): value for name, value in wanted.state_dict().items()}
    assert "encoder.blocks.0.attn.qkv.weight" in named and "decoder.blocks.0.norm1.bias" in named
    named["encoder.head.weight"] = torch.zeros(10, 16)
    torch.save({"model": named, "n_cls": 5, "epoch": 63}, tmp_path / "checkpoint.pth")
    weights.load_into(network, weights.read_weights(tmp_path / "checkpoint.pth"), "it", to_begin=True)
    image = torch.randn(1, 3, 32, 32)
    assert torch.equal(network.eval()(image), wanted(image))


def test_a_classifier_lends_its_encoder_with_positions_moved_and_the_head_left_out() -> None:
    classifier = VisionTransformer(image_px=24, patch_px=8, layers=2, heads=2, hidden=16, mlp=24, classes=7)
    network = tiny()
    decoder = {name: value.clone() for name, value in network.decoder.state_dict().items()}
    weights.load_into(network, classifier.state_dict(), "vit.pt", to_begin=True)
    assert all(torch.equal(value, decoder[name]) for name, value in network.decoder.state_dict().items())
    ours, theirs = network.encoder.pos_embedding, classifier.encoder.pos_embedding
    assert torch.equal(ours[:, 0], theirs[:, 0]) and ours.shape == (1, 17, 16)
    square = theirs[0, 1:].T.view(1, 16, 3, 3)
    moved = torch.nn.functional.interpolate(square, (4, 4), mode="bicubic", align_corners=False)
    assert torch.allclose(ours[0, 1:], moved[0].flatten(1).T)
    own = network.encoder.layers.encoder_layer_1.self_attention.in_proj_weight
    assert torch.equal(own, classifier.encoder.layers.encoder_layer_1.self_attention.in_proj_weight)
    same = interpolate_positions(theirs, 3, 3)
    assert torch.allclose(same, theirs, atol=1e-6), "a grid of the same size keeps its positions"


@pytest.mark.parametrize("change", [{"hidden": 32}, {"patch_px": 16}, {"layers": 3}])
def test_weights_of_another_network_are_refused_by_name(change: dict[str, int]) -> None:
    other = VisionTransformer(**_vit_sizes(change))
    with pytest.raises(NotReadyError, match="does not fit the model"):
        weights.load_into(tiny(), other.state_dict(), "other.pt", to_begin=True)


def test_a_classifier_is_a_beginning_and_no_trained_segmenter() -> None:
    with pytest.raises(NotReadyError, match=r"missing \(decoder.cls_emb"):
        weights.load_into(tiny(), VisionTransformer(**_vit_sizes({})).state_dict(), "vit.pt")


def _vit_sizes(change: dict[str, int]) -> dict[str, int]:
    return {**{name: value for name, value in TINY.items() if name != "decoder_layers"}, **change}


# Batches and scores


def open_tiny(folder: Path, share: Share = ALONE, skip_bad: int = 0, **changes: Any) -> SceneData:
    return WORKLOAD.open_data(replace(TINY_RECIPE, **changes), folder, share, skip_bad)


def test_a_small_network_learns_a_batch_of_scenes(scenes: Path) -> None:
    torch.manual_seed(0)
    data, network = open_tiny(scenes), WORKLOAD.build(TINY_RECIPE)
    optimizer = WORKLOAD.optimizer(network.parameters(), replace(TINY_RECIPE, learning_rate=5e-3))
    batch = next(data.train(0, 0))
    losses = []
    for _ in range(40):
        loss = WORKLOAD.loss(network, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    data.close()
    assert losses[-1] < 0.7 * losses[0]


def sums_of(data: SceneData, network: Segmenter) -> dict[str, Any]:
    sums: dict[str, Any] = dict.fromkeys(WORKLOAD.sums, 0)
    samples = 0
    with torch.no_grad():
        for batch in data.evaluation():
            scores = WORKLOAD.score(network, batch)
            sums = {name: sums[name] + scores[name] for name in sums}
            samples += batch.count
    return {**sums, "samples": samples}


@pytest.mark.parametrize("world", [2, 3, 7])
def test_ranks_together_have_the_very_sums_of_one(scenes: Path, world: int) -> None:
    network = tiny()
    alone = open_tiny(scenes)
    wanted = sums_of(alone, network)
    alone.close()
    together: dict[str, Any] = dict.fromkeys(wanted, 0)
    for rank in range(world):
        data = open_tiny(scenes, Share(rank=rank, world=world, local_ranks=1))
        found = sums_of(data, network)
        data.close()
        together = {name: together[name] + found[name] for name in together}
    assert wanted["samples"] == together["samples"] == 5
    for name in WORKLOAD.sums:
        assert torch.equal(together[name], wanted[name]), name
    values = WORKLOAD.quality(reduce_sums(Collectives(), wanted))
    assert set(values) == {quality.name for quality in WORKLOAD.facts.qualities}
    assert values["one_class_mIoU"] < values["ceiling_mIoU"] < 100


def test_taking_all_for_one_class_gives_its_share_over_the_classes(scenes: Path) -> None:
    data = open_tiny(scenes)
    sums = sums_of(data, tiny())
    judged = sums["judged"].double()
    share = judged.max() / judged.sum()
    one_class = WORKLOAD.quality(reduce_sums(Collectives(), sums))["one_class_mIoU"]
    assert one_class == pytest.approx(100 * share.item() / int((judged > 0).sum()))
    assert data.facts["chance"] == pytest.approx(one_class, abs=1e-3)
    data.close()
    commonest = int(judged.argmax())
    all_of_it = {"right": [0.0] * 5, "taken": [0.0] * 5, "judged": judged.tolist()}
    all_of_it["taken"][commonest], all_of_it["right"][commonest] = judged.sum().item(), judged.max().item()
    assert scoring.mean_iou(**all_of_it) == pytest.approx(one_class)


def test_sliding_windows_cover_an_image_and_average_where_they_overlap() -> None:
    def network(crops: Tensor) -> Tensor:
        """The first channel, and how far each crop is from black, as the scores of two classes."""
        return torch.stack((crops[:, 0], crops[:, 0].mean((1, 2), keepdim=True).expand_as(crops[:, 0])), 1)

    image = torch.rand(3, 20, 44)
    scores = scoring.slide(network, image, size=16, stride=12, classes=2)
    assert torch.allclose(scores[0], image[0], atol=1e-6), "each pixel is the mean of itself"
    tops, lefts = (0, 4), (0, 12, 24, 28)
    seen = [image[0, top : top + 16, left : left + 16].mean() for top in tops for left in lefts]
    assert scores[1, 0, 0] == pytest.approx(seen[0].item())
    assert scores[1, 10, 43].item() == pytest.approx((seen[3] + seen[7]).item() / 2, rel=1e-5)
    assert scoring.slide(network, image[:, :10, :12], size=16, stride=12, classes=2).shape == (2, 10, 12)


def test_the_ceiling_is_what_patches_can_tell() -> None:
    labels = torch.zeros(32, 32, dtype=torch.uint8)
    labels[:, 16:] = 3
    assert torch.equal(scoring.ceiling(labels, (32, 32), 8), labels.long()), "an edge between patches is exact"
    labels[12:14, 4:6] = 2
    assert 2 not in scoring.ceiling(labels, (32, 32), 8), "a speck in a patch is lost"
    labels[:] = IGNORED
    assert scoring.ceiling(labels, (32, 32), 8).shape == (32, 32)


def test_padding_is_zero_to_the_network_and_not_in_its_loss(scenes: Path) -> None:
    seen: list[Tensor] = []

    class Noted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, images: Tensor) -> Tensor:
            seen.append(images)
            return self.weight + images.new_zeros(len(images), 5, *images.shape[2:])

    labels = torch.full((1, 32, 32), IGNORED, dtype=torch.uint8)
    labels[:, :20, :24] = 1
    batch = CropBatch(
        images=torch.full((1, 3, 32, 32), 200, dtype=torch.uint8),
        labels=labels,
        extents=((20, 24),),
        recipe=TINY_RECIPE,
        count=1,
        global_count=1,
    )
    loss = WORKLOAD.loss(Noted(), batch)
    assert (seen[0] != 0).any(1)[0].sum() == 20 * 24
    assert loss.item() == pytest.approx(np.log(5) * 20 * 24 / 32**2), "over all pixels, as the recipe has it"
    judged = replace(batch, recipe=replace(TINY_RECIPE, loss_mean="judged"))
    assert WORKLOAD.loss(Noted(), judged).item() == pytest.approx(np.log(5), rel=1e-5)


def test_pixels_are_centred_as_the_weights_were_trained() -> None:
    image = torch.randint(0, 256, (1, 3, 4, 5), dtype=torch.uint8)
    assert torch.allclose(normalise(image, torch.float32, centring=HALVES), image / 127.5 - 1, atol=1e-6)
    assert REFERENCE.centring == IMAGENET
    assert replace(REFERENCE, pixels="half").centring == HALVES


def test_batches_are_cut_into_parts() -> None:
    labels = torch.zeros(5, 32, 32, dtype=torch.uint8)
    images = torch.zeros(5, 3, 32, 32, dtype=torch.uint8)
    crops = CropBatch(
        images=images, labels=labels, extents=((32, 32),) * 5, recipe=TINY_RECIPE, count=5, global_count=5
    )
    whole = SceneBatch(images=tuple(images), labels=tuple(labels), recipe=TINY_RECIPE, count=5, global_count=5)
    assert [part.count for part in crops.parts(2)] == [part.count for part in whole.parts(2)] == [2, 3]
    assert [len(part.extents) for part in crops.parts(2)] == [len(part.images) for part in whole.parts(2)] == [2, 3]


# Recipes and refusals


def test_the_rate_falls_by_a_power_of_what_is_left() -> None:
    rates = [WORKLOAD.learning_rate(REFERENCE, Progress(step, 0, 160_000, 8)) for step in (0, 80_000, 160_000)]
    assert rates == pytest.approx([1e-3, 9e-4 * 0.5**0.9 + 1e-4, 1e-4])
    assert WORKLOAD.learning_rate(replace(SMOKE, warmup_steps=10), Progress(0, 0, 900, 16)) < SMOKE.learning_rate / 9
    assert WORKLOAD.scaled_learning_rate(REFERENCE, 4) == pytest.approx(4e-3)


def test_reference_is_the_published_recipe() -> None:
    assert (REFERENCE.steps, REFERENCE.batch_per_device, WORKLOAD.reference_global_batch) == (160_000, 1, 8)
    assert (REFERENCE.learning_rate, REFERENCE.momentum, REFERENCE.weight_decay) == (1e-3, 0.9, 0)
    assert (REFERENCE.evaluate_every, REFERENCE.target, REFERENCE.window_stride) == ("16000 steps", 48.5, 480)
    assert FILL == REFERENCE and QUICK.hidden == 768
    [optimizer] = WORKLOAD.optimizer([torch.nn.Parameter(torch.zeros(1))], REFERENCE).param_groups
    assert (optimizer["momentum"], optimizer["weight_decay"]) == (0.9, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image_px": 100, "window_stride": 50}, "do not divide into patches of 16"),
        ({"heads": 7}, "does not divide among 7 heads"),
        ({"window_stride": 513}, "leave gaps"),
        ({"least_scale": 3.0}, "is above most_scale"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said), torch.device("meta"):
        WORKLOAD.build(replace(REFERENCE, **change))


def test_a_set_with_more_classes_than_the_network_is_refused(scenes: Path) -> None:
    with pytest.raises(NotReadyError, match=r"has 5 classes, the recipe's network 4; try --set classes=5"):
        WORKLOAD.check_data(replace(TINY_RECIPE, classes=4), scenes, 1)


def test_a_set_that_is_not_whole_is_refused_unless_asked_for(tmp_path: Path) -> None:
    make.make(tmp_path / "set", train=3, val=2, classes=5, long_side=64)
    next((tmp_path / "set" / "images" / "training").iterdir()).unlink()
    with pytest.raises(NotReadyError, match="expected 3 train and 2 val scenes, found 2 train and 2 val scenes"):
        WORKLOAD.check_data(TINY_RECIPE, tmp_path / "set", 1)
    WORKLOAD.check_data(replace(TINY_RECIPE, whole_set=False), tmp_path / "set", 1)


def test_a_bad_validation_image_is_named_or_left_out(tmp_path: Path) -> None:
    make.make(tmp_path / "set", train=3, val=3, classes=5, long_side=64)
    bad = tmp_path / "set" / "annotations" / "validation" / "ADE_val_00000002.png"
    bad.write_bytes(b"")
    data = open_tiny(tmp_path / "set")
    with pytest.raises(WorkloadError, match=r"ADE_val_00000002.jpg cannot be read: its mask is empty"):
        list(data.evaluation())
    data.close()
    data = open_tiny(tmp_path / "set", skip_bad=1)
    assert sum(batch.count for batch in data.evaluation()) == 2
    assert [Path(path).name for path, _ in data.skipped] == ["ADE_val_00000002.jpg"]
    data.close()


# What people see


def shown(folder: Path | None, **asked: Any) -> tuple[Any, Image.Image]:
    """What a tiny network shows, and the drawing of it."""
    device = Platform(files.load("cpu")).open(0)
    source = NetworkUsed(workload="segmenter", file="w.pt", sha256="0" * 64)
    trained = Trained(workload=WORKLOAD, model=tiny(), recipe=TINY_RECIPE, device=device, source=source)
    with torch.no_grad():
        sample = WORKLOAD.sample(trained, SampleRequest(data=folder, **asked))
    [part] = sample.parts
    assert isinstance(part, ImagePart) and len(part.png) < 300_000, "a page takes no more"
    with Image.open(io.BytesIO(part.png)) as image:
        return sample, image.copy()


def test_validation_images_are_shown_beside_truth_and_prediction(scenes: Path) -> None:
    sample, image = shown(scenes)
    assert image.width == 2 * 14 + 3 * show.WIDTH_PX + 2 * 10
    assert sample.parts[0].caption.startswith("3 validation images, the true classes of the pixels,")
    assert len(sample.facts["scenes"]) == 3
    assert all(0 <= scene["right"] <= 1 for scene in sample.facts["scenes"])
    assert sum(sample.facts["scenes"][0]["shares"].values()) == pytest.approx(1, abs=0.01)
    assert {*sample.facts["scenes"][0]["shares"]} <= {"background", "ground", *FORMS}
    assert shown(scenes, options=("seed=5", "scenes=2"))[0].shown != sample.shown


FORMS = ("striped star", "spotted ring", "chequered triangle")


def test_a_given_image_has_no_truth(scenes: Path, tmp_path: Path) -> None:
    shutil.copy(next((scenes / "images" / "training").iterdir()), tmp_path / "other.jpg")
    sample, image = shown(None, given=str(tmp_path / "other.jpg"))
    assert image.width == 2 * 14 + 2 * show.WIDTH_PX + 10
    assert sample.facts["scenes"][0]["right"] is None
    assert all(name.startswith("class ") for name in sample.facts["scenes"][0]["shares"])
    (tmp_path / "no.jpg").write_bytes(b"x")
    with pytest.raises(NotReadyError, match=r"no.jpg is no image that can be read"):
        shown(scenes, given=str(tmp_path / "no.jpg"))
    with pytest.raises(UsageError, match="scene"):
        shown(scenes, options=("scene=2",))


@pytest.mark.slow
def test_a_run_of_two_ranks_is_judged_as_the_same_weights_are_alone(cli: Cli, scenes: Path, tmp_path: Path) -> None:
    small = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    more = ("--set", "evaluate_first=true", "--set", "window_stride=24", "--set", "begins_with=trained")
    words = ("--data", scenes, "--platform", "cpu", "--topology", "1x2", "--steps", "2", "--json")
    ended = cli("run", "segmenter", "--recipe", "smoke", *small, *more, *words)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    [first] = document["quality"]["history"]
    torch.manual_seed(SMOKE.seed)
    network, data = WORKLOAD.build(TINY_RECIPE).eval(), open_tiny(scenes)
    alone = WORKLOAD.quality(reduce_sums(Collectives(), sums_of(data, network)))
    data.close()
    assert first["samples"] == 5 and first["values"] == alone
    assert {"random-start", "generated-data"} <= {doubt["code"] for doubt in document["doubts"]}
    [artifact] = document["artifacts"]
    assert artifact["caption"].startswith("3 validation images")
