"""`trainmark sample`: whose network, where its samples go, and every refusal one sentence with its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.records import make_plan
from torch import nn

from trainmark import workloads
from trainmark.cli.main import main
from trainmark.data import audio
from trainmark.data.imagenet import make as pictures
from trainmark.data.ljspeech import make as speech
from trainmark.features.scoring import sample_scorer as scoring
from trainmark.features.scoring.sample_scorer import Scorer
from trainmark.record.atomic_files import sha256
from trainmark.record.plan import DataChoice
from trainmark.record.recipe import apply_settings, to_values
from trainmark.record.sample import documents
from trainmark.train import checkpoint

READER = ("encoder_width=16", "prenet_width=8", "rnn_width=16", "attention_width=8", "postnet_width=8")
WAVE = ("layers=4", "cycles=2", "channels=4", "mixtures=2")
IMAGES = ("width=4", "classes=10", "image_px=32", "eval_resize_px=36")
SHORT = ("--set", "most_frames=6")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    speech.make(folder / "speech", clips=18)
    pictures.make(folder / "pictures", classes=3, train_per_class=1, val_per_class=1, long_side=64)
    return folder


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_PLATFORM", "cpu")
    monkeypatch.chdir(tmp_path)


def network(workload: str, settings: tuple[str, ...]) -> nn.Module:
    torch.manual_seed(0)
    known = workloads.load(workload)
    model = known.build(apply_settings(known.recipes["smoke"], settings))
    for name, bias in model.named_parameters():
        if "gate_layer" in name:  # a reader that never finds its end
            nn.init.constant_(bias, -20.0)
    return model


def a_run(name: str, workload: str, settings: tuple[str, ...], folder: Path | str = "", steps: int = 1) -> Path:
    """The folder of a run as a worker leaves it, with weights that were never trained."""
    known = workloads.load(workload)
    recipe = to_values(apply_settings(known.recipes["smoke"], settings))
    plan = make_plan(
        workload=workload, recipe=recipe, data=DataChoice(name=known.data_set, folder=str(folder), synthetic=True)
    )
    run = Path("store") / "runs" / name
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps(plan.to_json()))
    for step in range(steps):
        made_by = {"workload": workload, "recipe": recipe, "heard": dict(getattr(known, "heard", {}))}
        state = {"stepper": {"model": network(workload, settings).state_dict()}, "made_by": made_by}
        checkpoint.save(run / "checkpoints", step, state)
    return run


@pytest.fixture
def taco(data: Path) -> Path:
    return a_run("tacotron2-1", "tacotron2", READER, data / "speech")


def call(*words: str) -> int:
    return main(["sample", *words])


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trainmark: ") and err.count("\n") == 1
    return err


def files(folder: str = ".") -> list[str]:
    found = (path.relative_to(folder) for path in Path(folder).rglob("*") if "runs" not in path.parts)
    return sorted(str(path) for path in found if path.suffix in (".wav", ".json", ".png", ".txt"))


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


def test_a_text_is_read_aloud_and_its_document_says_by_what(taco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("last-tacotron2", "Hello there.", *SHORT, "--seed", "3", "--out", "hello.wav") == 0
    out, err = capsys.readouterr()
    assert out.startswith("hello.wav  the network reads aloud (griffin-lim): hello there.")
    assert "hello.wav: no-end: the sentence had not ended after 6 frames" in err and "hello.wav: untrained: " in err
    assert files() == ["hello.json", "hello.png", "hello.wav"]
    assert len(audio.read(Path("hello.wav"))) == 5 * 256
    document = read("hello.json")
    [made_by] = document["networks"]
    state = taco / "checkpoints" / "step-000000000" / "state.pt"
    assert (made_by["file"], made_by["sha256"], made_by["step"]) == (str(state.absolute()), sha256(state), 0)
    assert (document["kind"], document["input"], document["generator"]) == (
        "trainmark sample",
        "Hello there.",
        "griffin-lim",
    )
    assert document["settings"] == {"most_frames": "6", "seed": "3"} and document["level_dbfs"] == audio.LEVEL_DBFS
    assert [left["file"] for left in document["files"]] == ["hello.wav", "hello.png"]


def test_sound_is_at_the_level_the_document_says(taco: Path) -> None:
    assert call("last", "Hello there. How are you?", "--set", "most_frames=40", "--out", "x") == 0
    samples = audio.read(Path("x.wav"))
    level = 10 * torch.tensor(samples).double().square().mean().log10().item()
    assert level == pytest.approx(read("x.json")["level_dbfs"], abs=0.05)


def test_two_networks_make_speech_together(taco: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run("wavenet-1", "wavenet", WAVE, data / "speech")
    assert call("last-tacotron2", "Hello.", *SHORT, "--vocoder", "last-wavenet", "--out", "x.wav", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == read("x.json")
    assert [network["workload"] for network in document["networks"]] == ["tacotron2", "wavenet"]
    assert document["generator"].startswith("WaveNet, ")
    assert audio.length(Path("x.wav")) == 6 * 256


def test_a_wavenet_makes_a_recording_again(data: Path) -> None:
    a_run("wavenet-1", "wavenet", WAVE, data / "speech")
    recording = next((data / "speech").rglob("*.wav"))
    assert call("last", str(recording), "--set", "seconds=0.02", "--out", "x") == 0
    assert [audio.length(Path(name)) for name in ("x.wav", "x-2.wav")] == [441, 441]
    assert call("last", "--set", "seconds=0.02", "--out", "y") == 0
    assert read("y.json")["input"].startswith("validation clip ")


def test_a_vocoder_of_other_mels_is_refused(taco: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run("wavenet-1", "wavenet", WAVE, data / "speech")
    state = torch.load(run / "checkpoints" / "step-000000000" / "state.pt", weights_only=True)
    state["made_by"]["heard"]["highest_hz"] = 7600.0
    checkpoint.save(run / "checkpoints", 1, state)
    assert call("last-tacotron2", "Hello.", *SHORT, "--vocoder", "last-wavenet", "--out", "x.wav") == 3
    assert "was made for other mels than Tacotron2 speaks: highest_hz 7600 and not 8000" in refused(capsys)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ears that take anything for middling and understand nothing."""
    ears = Scorer(lambda sound: 3.25, "a stand-in", lambda sound: "", "another stand-in")
    monkeypatch.setattr(scoring, "load_scorer", lambda: ears)


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_speech_is_scored_beside_recordings_and_their_copies(
    taco: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run("wavenet-1", "wavenet", WAVE, data / "speech")
    how = ("--score", "--set", "score_clips=1", *SHORT)
    assert call("last-tacotron2", "Hello.", *how, "--out", "x.wav") == 0
    out = capsys.readouterr().out
    scores = read("x.json")["scores"]
    kinds = ["this sample", "speech", "recordings", "copy synthesis (griffin-lim)"]
    assert [row["of"] for row in scores["rows"]] == kinds
    assert [(row["clips"], row["predicted_mos"], row["wer"]) for row in scores["rows"]] == [(1, 3.25, 1.0)] * 4
    assert "predicted MOS 3.25, WER 100.0 %, 1 clip, " in out
    assert "predicted by a network, not a listening test: a stand-in; words by another stand-in" in out
    assert call("last-wavenet", "--score", "--set", "score_clips=1", "--set", "seconds=0.02", "--out", "y") == 0
    assert [row["of"] for row in read("y.json")["scores"]["rows"]] == [*kinds[2:], "copy synthesis (wavenet)"]


def test_without_the_extra_a_score_is_unavailable_and_says_what_installs_it(
    taco: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = "unavailable: it is not installed; pip install 'trainmark[mos]'"
    monkeypatch.setattr(scoring, "load_scorer", lambda: Scorer(None, missing, None, missing))
    assert call("last", "Hello.", "--score", *SHORT, "--out", "x.wav") == 0
    assert missing in capsys.readouterr().out
    scores = read("x.json")["scores"]
    assert (scores["predictor"], scores["rows"]) == (missing, [])


def test_only_speech_is_scored(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run("resnet50-1", "resnet50", IMAGES, data / "pictures")
    assert call("last", "--score") == 2
    assert "--score is for speech, and run last trained resnet50, which names the classes" in refused(capsys)


def test_a_picture_is_named_by_the_classes_of_its_data(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run("resnet50-1", "resnet50", IMAGES, data / "pictures")
    picture = next((data / "pictures" / "val" / "n90000001").iterdir())
    assert call("last", str(picture), "--set", "top=3", "--out", "x.txt") == 0
    lines = Path("x.txt").read_text().splitlines()
    assert capsys.readouterr().out.splitlines()[1:4] == [f"  {line}" for line in lines]
    titles = [pictures.shapes.form(index)[0] for index in range(3)] + [f"class {index}" for index in range(3, 10)]
    assert all(line.partition(" %  ")[2] in titles for line in lines)
    found = read("x.json")["facts"]
    assert sum(known["probability"] for known in found["classes"]) <= 1 and found["truth"] is None
    assert call("last", "--out", "y") == 0
    assert read("y.json")["facts"]["truth"] in titles[:3]


def test_without_a_name_samples_lie_in_the_store_one_after_the_other(taco: Path) -> None:
    assert call("last", "One.", "Two.", *SHORT) == 0
    assert call("last", "Three.", *SHORT) == 0
    own = Path("store/samples/tacotron2-1")
    assert files(str(own)) == [f"00{number}.{kind}" for number in (1, 2, 3) for kind in ("json", "png", "wav")]
    assert [document.input for document in documents(own)] == ["One.", "Two.", "Three."]


def test_several_inputs_are_numbered_in_a_folder(taco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["Hello there.", "How are you? Fine."]
    assert call("last", *said, *SHORT, "--out", "speech", "--json") == 0
    assert [document["input"] for document in json.loads(capsys.readouterr().out)] == said
    assert files("speech") == [f"00{number}.{kind}" for number in (1, 2) for kind in ("json", "png", "wav")]
    assert [document.input for document in documents(Path("speech"))] == said


def test_the_same_words_give_the_same_sample_and_another_seed_another(taco: Path) -> None:
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert call("last", "Hello there. Bye.", *SHORT, "--out", f"{name}.wav", "--seed", seed) == 0
    a, b, c = (Path(f"{name}.wav").read_bytes() for name in "abc")
    assert a == b != c


@pytest.mark.parametrize("taken", ["x.wav", "x.json", "x.png"])
def test_nothing_is_overwritten_unless_forced(taco: Path, taken: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(taken).write_text("mine")
    assert call("last", "Hello.", *SHORT, "--out", "x.wav") == 2
    assert f"{taken} exists and is not overwritten" in refused(capsys)
    assert files() == [taken] and Path(taken).read_text() == "mine"
    assert call("last", "Hello.", *SHORT, "--out", "x.wav", "--force") == 0
    assert Path(taken).read_bytes() != b"mine"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["last", "..."], 2, "there is nothing to speak in '...'"),
        (["last", "Hello.", "--out", "x.mp3"], 2, "--out x.mp3 must end in .wav, as this network reads a text aloud"),
        (["last", "One.", "Two.", "--out", "x.wav"], 2, "--out x.wav must be a folder"),
        (["last", "Hello.", "--out", "nowhere/x.wav"], 3, "cannot write nowhere/x.wav: there is no folder"),
        (["last", "Hello.", "--seed", "-1"], 2, "setting seed must be at least 0, not -1"),
        (["last", "Hello.", "--platform", "nvdia"], 2, "platform 'nvdia' is not known; did you mean 'nvidia'?"),
        (["last", "Hello.", "--vocodr", "x"], 2, "argument '--vocodr' is not known; did you mean '--vocoder'?"),
        (["last", "Hello.", "--vocoder", "last"], 2, "--vocoder last: tacotron2 is no vocoder"),
        (["tako-1", "Hello."], 2, "no run 'tako-1' in the store"),
        (["last-vit"], 2, "holds no runs of vit yet"),
        (["nowhere/run"], 3, "nowhere/run does not exist; give a run"),
        (["text.pt"], 3, "text.pt is not a file that torch.save wrote"),
        (["other.pt"], 2, "other.pt fits no reference network ("),
        ([], 2, "required: RUN"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_an_exit_code(
    taco: Path, words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.pt").write_text("hello")
    torch.save({"weight": torch.zeros(3)}, "other.pt")
    assert call(*words) == code
    assert sentence in refused(capsys)
    assert not {".wav", ".png", ".json"} & {Path(name).suffix for name in files()}


def test_a_run_without_weights_says_how_to_keep_them(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run("tacotron2-2", "tacotron2", (*READER, "checkpoint_every=never"), steps=0)
    assert call("last", "Hello.") == 3
    assert "tacotron2-2 holds no weights; --set checkpoint_every=end keeps them (this run has never)" in refused(capsys)


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run("tacotron2-2", "tacotron2", READER, data / "speech", steps=2)
    (run / "checkpoints" / "step-000000001" / "state.pt").write_bytes(b"torn")
    assert call("last", "Hello.", *SHORT, "--out", "x.wav") == 0
    assert read("x.json")["networks"][0]["step"] == 0
    capsys.readouterr()
    (run / "checkpoints" / "step-000000000" / "state.pt").write_bytes(b"torn")
    assert call("last", "Hello.", "--out", "y.wav") == 3
    assert "step-000000001 is damaged: 4 bytes, not" in refused(capsys)


def test_data_that_is_gone_is_no_matter_where_an_input_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("resnet50-1", "resnet50", IMAGES, "/nowhere")
    assert call("last") == 3
    assert "the data of this run no longer exists, so there is no example; give an INPUT" in refused(capsys)
    Path("x.jpg").write_bytes(b"no picture")
    assert call("last", "x.jpg") == 3
    assert "x.jpg is no image that can be read" in refused(capsys)
    assert call("last", "cat.jpg") == 3
    assert "INPUT cat.jpg is no file; this network names the classes of an image" in refused(capsys)


def test_a_sound_of_another_kind_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run("wavenet-1", "wavenet", WAVE)
    audio.write(Path("fast.wav"), torch.zeros(100), rate=44100)
    assert call("last", "fast.wav") == 3
    assert "cannot use fast.wav: it has 44,100 Hz, not 22,050" in refused(capsys)


def test_an_outside_workload_without_a_sample_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trainmark.workloads import outside

    page = (Path(__file__).parents[3] / "docs" / "your_model.md").read_text(encoding="utf-8")
    code = next(block for block in page.split("```python\n")[1:] if "class SumReader" in block).partition("```")[0]
    Path("sums.py").write_text("".join(line for line in code.splitlines(True) if "shows = " not in line))
    workload, source = outside.from_file("sums.py")
    plan = make_plan(workload="sums", recipe=to_values(workload.recipes["smoke"]), workload_source=source)
    run = Path("store") / "runs" / "sums-1"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps(plan.to_json()))
    assert call("last") == 2
    assert "which would run code here; read it, then add --trust" in refused(capsys)
    assert call("last", "--trust") == 2
    assert "trained sums, which has nothing to show; those that have are " in refused(capsys)


@pytest.mark.slow
def test_a_public_file_of_weights_is_known_by_its_names_and_shapes(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = workloads.load("resnet50")
    torch.save({"state_dict": known.build(known.recipes["reference"]).state_dict()}, "public.pt")
    assert call("public.pt", str(next((data / "pictures").rglob("*.JPEG"))), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["networks"][0]["workload"] == "resnet50" and document["facts"]["classes"][0]["name"][:6] == "class "
    assert files() == ["sample.json", "sample.png", "sample.txt"]
