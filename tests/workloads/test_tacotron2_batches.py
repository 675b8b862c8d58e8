"""Clips become batches: padded, sorted into buckets, each once whatever the number of ranks."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import at_epoch

from trainmark.data.ljspeech import make, reader
from trainmark.data.prefetch import prefetch
from trainmark.record.errors import NotReadyError, WorkloadError
from trainmark.workloads.tacotron2.model import Outputs
from trainmark.workloads.tacotron2.workload import SMOKE, WORKLOAD, SpeechBatch, SpeechData, Tacotron2Recipe
from trainmark.workloads.workload import Share

CLIPS = 40
RECIPE = replace(SMOKE, batch_per_device=4, longest_frames=0, bucket_batches=0, eval_batch_per_device=3)


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "set"
    make.make(folder, clips=CLIPS)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path_factory.getbasetemp() / "shared-cache"))


def open_data(
    folder: Path, recipe: Tacotron2Recipe = RECIPE, rank: int = 0, world: int = 1, skip_bad: int = 0
) -> SpeechData:
    return SpeechData(recipe, folder, Share(rank=rank, world=world, local_ranks=world), skip_bad)


def clips_in(batches: Iterable[SpeechBatch]) -> list[int]:
    return [number for batch in batches for number in batch.numbers]


def padding_share(data: SpeechData) -> float:
    batches = list(data.train(0, 0))
    return 1 - sum(b.real_frames for b in batches) / sum(b.mels.shape[0] * b.count for b in batches)


def test_a_batch_holds_each_clip_and_zeros_after_it(speech: Path) -> None:
    batch = next(open_data(speech).train(0, 0))
    assert batch.text.shape[1] == max(batch.symbols) and batch.mels.shape[0] == int(batch.frames.max())
    assert batch.real_frames == int(batch.frames.sum()) == WORKLOAD.items(batch)
    for place, (symbols, frames) in enumerate(zip(batch.symbols, batch.frames.tolist(), strict=True)):
        assert (batch.text[place, :symbols] > 0).all() and (batch.text[place, symbols:] == 0).all()
        assert (batch.mels[:frames, place] != 0).all() and (batch.mels[frames:, place] == 0).all()


def test_parts_of_a_batch_keep_its_padding_and_share_its_clips(speech: Path) -> None:
    batch = next(open_data(speech).train(0, 0))
    one, two, three = batch.parts(3)
    assert one.numbers + two.numbers + three.numbers == batch.numbers
    assert one.real_frames + two.real_frames + three.real_frames == batch.real_frames
    assert {part.mels.shape[0] for part in (one, two, three)} == {batch.mels.shape[0]}
    assert torch.equal(torch.cat([part.mels for part in (one, two, three)], 1), batch.mels)
    assert [part.count for part in batch.parts(99)] == [1] * batch.count


def test_accumulating_makes_a_step_of_several_batches(speech: Path) -> None:
    assert [batch.count for batch in open_data(speech, replace(RECIPE, accumulate=3)).train(0, 0)] == [12, 12, 6]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("bucket_batches", [0, 2])
def test_every_clip_is_trained_on_once_an_epoch(speech: Path, world: int, bucket_batches: int) -> None:
    recipe = replace(RECIPE, bucket_batches=bucket_batches)
    ranks = [open_data(speech, recipe, rank, world) for rank in range(world)]
    seen = sorted(number for data in ranks for number in clips_in(data.train(1, 0)))
    assert seen == list(range(30))  # 40 clips: five each for testing and validation
    steps = [len(list(data.train(1, 0))) for data in ranks]
    assert steps == [ranks[0].steps_per_epoch] * world


def test_buckets_make_padding_small_and_still_change_from_epoch_to_epoch(speech: Path) -> None:
    plain, bucketed = open_data(speech), open_data(speech, replace(RECIPE, bucket_batches=4))
    assert padding_share(bucketed) < 0.5 * padding_share(plain)
    assert bucketed.facts["padding_share"] == pytest.approx(padding_share(bucketed), abs=1e-3)
    first, second = clips_in(bucketed.train(0, 0)), clips_in(bucketed.train(1, 0))
    assert sorted(first) == sorted(second) and first != second


def test_ranks_get_clips_of_like_length_from_a_bucket(speech: Path) -> None:
    recipe = replace(RECIPE, bucket_batches=4)
    one, other = (list(open_data(speech, recipe, rank, 2).train(0, 0)) for rank in (0, 1))
    for mine, yours in zip(one, other, strict=True):
        assert mine.mels.shape[0] == pytest.approx(yours.mels.shape[0], rel=0.35)


def test_a_resumed_epoch_goes_on_with_the_same_batches(speech: Path) -> None:
    data = open_data(speech, replace(RECIPE, bucket_batches=3))
    assert clips_in(data.train(2, 3)) == clips_in(list(data.train(2, 0))[3:])


def test_evaluation_pads_alike_at_every_world_size(speech: Path) -> None:
    alone = {number: batch.mels.shape for batch in open_data(speech).evaluation() for number in batch.numbers}
    assert sorted(alone) == list(range(5))
    for world in (2, 4):
        together = {}
        for rank in range(world):
            for batch in open_data(speech, rank=rank, world=world).evaluation():
                assert not set(batch.numbers) & set(together)
                together |= dict.fromkeys(batch.numbers, batch.mels.shape)
        assert {number: shape[0] for number, shape in together.items()} == {
            number: shape[0] for number, shape in alone.items()
        }


def scores(speech: Path, model: torch.nn.Module, world: int, recipe: Tacotron2Recipe = RECIPE) -> dict[str, float]:
    sums = dict.fromkeys((*WORKLOAD.sums, "samples"), 0.0)
    for rank in range(world):
        for batch in open_data(speech, recipe, rank, world).evaluation():
            sums["samples"] += batch.count
            with torch.no_grad():
                for name, value in WORKLOAD.score(model, batch).items():
                    sums[name] += float(value)
    return WORKLOAD.quality(sums)


@pytest.mark.slow
def test_all_qualities_are_the_same_at_every_world_size(speech: Path) -> None:
    torch.manual_seed(0)
    model = WORKLOAD.build(RECIPE).eval()
    alone = scores(speech, model, 1)
    assert scores(speech, model, 3) == pytest.approx(alone, rel=1e-4)
    assert set(alone) == {"val_loss", "masked_val_loss", "diagonality", "attention_focus"}
    # the published number depends on how clips fall into batches, which is why both are on the record
    other = scores(speech, model, 1, replace(RECIPE, eval_batch_per_device=5))
    assert other["masked_val_loss"] == pytest.approx(alone["masked_val_loss"], rel=0.01)
    assert other["val_loss"] != pytest.approx(alone["val_loss"], rel=0.01)


def test_the_published_loss_is_the_mean_over_the_padded_batch(speech: Path) -> None:
    class Fixed(torch.nn.Module):
        """Says the same whatever it is asked."""

        def forward(self, text: Any, symbols: Any, mels: torch.Tensor, frames: Any, kept: Any) -> Outputs:
            frames_, clips, bands = mels.shape
            mel = torch.full((clips, bands, frames_), -5.0)
            return Outputs(mel, mel + 1, torch.zeros(clips, frames_), torch.zeros(clips, frames_, text.shape[1]))

    batch = next(open_data(speech).train(0, 0))
    target = batch.mels.permute(1, 2, 0)
    ended = torch.zeros(batch.count, target.shape[2])
    for place, frames in enumerate(batch.frames.tolist()):
        ended[place, frames - 1 :] = 1
    expected = (
        torch.nn.functional.mse_loss(torch.full_like(target, -5), target)
        + torch.nn.functional.mse_loss(torch.full_like(target, -4), target)
        + torch.nn.functional.binary_cross_entropy_with_logits(torch.zeros_like(ended), ended)
    )
    torch.testing.assert_close(WORKLOAD.loss(Fixed(), batch), expected)


def test_a_bad_file_is_named_and_may_be_skipped(speech: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(speech, folder)
    bad = reader.open_splits(folder).train[3].path
    bad.write_bytes(bad.read_bytes()[:1000])
    with pytest.raises(WorkloadError, match=f"{bad.name}.*cut short"):
        open_data(folder)
    data = open_data(folder, skip_bad=1)
    assert [Path(path).name for path, _ in data.skipped] == [bad.name]
    assert len(clips_in(data.train(0, 0))) == 29


def test_a_set_that_is_not_whole_is_refused_unless_allowed(speech: Path, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(speech, folder)
    lines = (folder / "metadata.csv").read_text("utf-8").splitlines()
    (folder / "metadata.csv").write_text("\n".join(lines[:30]) + "\n", "utf-8")
    with pytest.raises(NotReadyError, match="expected 40 clips, found 30"):
        open_data(folder)
    assert open_data(folder, replace(RECIPE, whole_set=False)).facts["train_samples"] == 24


def test_longest_frames_leaves_long_clips_out_of_training_only(speech: Path) -> None:
    every = open_data(speech)
    middle = sorted(int(n) for batch in every.train(0, 0) for n in batch.frames)[15]
    data = open_data(speech, replace(RECIPE, longest_frames=middle))
    assert max(int(batch.frames.max()) for batch in data.train(0, 0)) == middle
    assert data.facts["val_samples"] == every.facts["val_samples"]
    assert data.facts["train_samples"] + data.facts["left_out_samples"] == every.facts["train_samples"]
    assert data.facts["left_out_samples"] > 0 and every.facts["left_out_samples"] == 0
    with pytest.raises(NotReadyError, match="longest_frames=10"):
        open_data(speech, replace(RECIPE, longest_frames=10))


def test_the_rate_falls_as_published() -> None:
    reference: Any = WORKLOAD.recipes["reference"]
    rates = [WORKLOAD.learning_rate(reference, at_epoch(epoch)) for epoch in (0, 499.9, 500, 999.9, 1000, 1499.9, 1500)]
    assert rates == pytest.approx([1e-3, 1e-3, 3e-4, 3e-4, 1e-4, 1e-4, 3e-5])


def test_what_goes_wrong_while_reading_ahead_is_raised_to_the_reader() -> None:
    def failing() -> Any:
        yield "first"
        raise WorkloadError("torn")

    batches = prefetch(failing())
    assert next(batches) == "first"  # type: ignore[comparison-overlap]
    with pytest.raises(WorkloadError, match="torn"):
        next(batches)


def test_reading_ahead_ends_when_the_reader_leaves() -> None:
    taken: list[int] = []

    def endless() -> Any:
        for number in range(10**9):
            taken.append(number)
            yield number

    batches = prefetch(endless())
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(taken) < 10
    assert "batches" not in {thread.name for thread in threading.enumerate()}
