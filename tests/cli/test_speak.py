from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from trainmark.cli.main import main
from trainmark.datasets import audio
from trainmark.spec.whole_files import sha256
from trainmark.train import checkpoint
from trainmark.workloads.tacotron2.model import Sizes, Tacotron2

TINY = Sizes(encoder=16, prenet=8, attention_rnn=16, decoder_rnn=16, attention=8, postnet=8, postnet_layers=2)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test speaks into a folder of its own, which holds tiny.pt."""
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": weights()}, "tiny.pt")


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    found = Tacotron2(TINY).state_dict()
    found["decoder.gate_layer.linear_layer.bias"].fill_(-20.0)
    return found


def call(*words: str, voice: str = "tiny.pt", most_frames: int = 6) -> int:
    return main(["speak", *words, "--checkpoint", voice, "--platform", "cpu", "--max-frames", str(most_frames)])


def a_run(name: str, *, workload: str = "tacotron2", steps: int = 1) -> Path:
    folder = Path("store") / "runs" / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"workload": workload}))
    for step in range(steps):
        checkpoint.save(folder / "checkpoints", step, {"stepper": {"model": weights()}})
    return folder


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("trainmark: ") and err.count("\n") == 1
    return err


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.suffix in (".wav", ".json", ".png"))


def test_a_text_is_spoken_into_a_file_with_its_document_beside(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("Hello there.") == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"speech\.wav  0\.06 s  real-time factor \d+\.\d\d\n", out)
    assert "speech.wav: no-end: the sentence had not ended after 6 frames" in err
    assert "speech.wav: untrained: " in err
    assert files() == ["speech.json", "speech.wav"]
    assert len(audio.read(Path("speech.wav"))) == 5 * 256
    document = json.loads(Path("speech.json").read_text())
    assert document["checkpoint"] == {
        "path": str(Path("tiny.pt").absolute()),
        "sha256": sha256(Path("tiny.pt")),
    }


def test_out_and_plot_name_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a b").mkdir()
    assert call("Hello.", "--out", "a b/hé.wav", "--plot", "p.png") == 0
    assert files() == ["a b/hé.json", "a b/hé.wav", "p.png"]
    assert capsys.readouterr().out.startswith("a b/hé.wav  ")


def test_json_is_the_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("Hello.", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path("speech.json").read_text())


def test_each_line_becomes_a_numbered_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lines.txt").write_text("\ufeff# greetings\nHello there.\n\n  # more\n  How are you? Fine.\r\nBye.\n")
    assert call("--lines", "lines.txt", "--plot", "speech", "--batch", "2", "--json") == 0
    documents = json.loads(capsys.readouterr().out)
    assert [document["text"] for document in documents] == ["Hello there.", "How are you? Fine.", "Bye."]
    assert files() == [f"speech/00{number}.{kind}" for number in (1, 2, 3) for kind in ("json", "png", "wav")]
    assert json.loads(Path("speech/002.json").read_text()) == documents[1]


def test_one_line_is_still_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lines.txt").write_text("Hello.")
    assert call("--lines", "lines.txt", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_a_line_that_cannot_be_read_is_named_before_anything_is_spoken(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lines.txt").write_text("# first\nHello.\n\nsay {QQ} now\n")
    assert call("--lines", "lines.txt") == 2
    assert "lines.txt, line 4: 'QQ' in braces is not an ARPAbet phoneme" in refused(capsys)
    assert files() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "there is nothing to say; give a text in quotes, or --lines FILE"),
        (["Hello.", "--lines", "lines.txt"], "give either a text or --lines FILE, not both"),
        (["..."], "there is nothing to speak in '...'"),
        (["Hello.", "--out", "x.mp3"], "--out x.mp3 must end in .wav"),
        (["Hello.", "--plot", "pictures"], "--plot pictures must end in .png"),
        (["--lines", "lines.txt", "--out", "x.wav"], "--out x.wav must be a folder with --lines"),
        (["--lines", "empty.txt"], "empty.txt has no line to say"),
        (["Hello.", "--gate-threshold", "1"], "--gate-threshold must be between 0 and 1, not 1"),
        (["Hello.", "--gate-threshold", "nan"], "--gate-threshold must be between 0 and 1, not nan"),
        (["Hello.", "--batch", "0"], "--batch must be at least 1, not 0"),
        (["Hello.", "--seed", "-1"], "--seed must be from 0 to 2**63 - 1, not -1"),
        (["Hello.", "--platform", "nvdia"], "platform 'nvdia' is not known; did you mean 'nvidia'?"),
        (["Hello.", "--plott", "x.png"], "argument '--plott' is not known; did you mean '--plot'?"),
    ],
)
def test_wrong_words_are_one_sentence_and_exit_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lines.txt").write_text("Hello.\n")
    Path("empty.txt").write_text("# nothing\n\n")
    assert main(["speak", "--checkpoint", "tiny.pt", *words]) == 2
    assert sentence in refused(capsys)
    assert files() == []


def test_a_checkpoint_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speak", "Hello."]) == 2
    assert "required: --checkpoint" in refused(capsys)


@pytest.mark.parametrize("taken", ["x.wav", "x.json", "p.png"])
def test_nothing_is_overwritten_unless_forced(taken: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(taken).write_text("mine")
    assert call("Hello.", "--out", "x.wav", "--plot", "p.png") == 2
    assert f"{taken} is there already and nothing is overwritten" in refused(capsys)
    assert files() == [taken] and Path(taken).read_text() == "mine"
    assert call("Hello.", "--out", "x.wav", "--plot", "p.png", "--force") == 0
    assert files() == ["p.png", "x.json", "x.wav"] and Path(taken).read_bytes() != b"mine"


def test_one_taken_name_among_the_lines_stops_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lines.txt").write_text("One.\nTwo.\n")
    Path("speech").mkdir()
    Path("speech/002.wav").write_text("mine")
    assert call("--lines", "lines.txt") == 2
    assert "speech/002.wav is there already" in refused(capsys)
    assert files() == ["speech/002.wav"]


@pytest.mark.parametrize("word", ["last", "taco", "0007", "store/runs/taco-0007"])
def test_a_run_is_found_by_its_name_or_its_folder(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run("taco-0007", steps=2)
    assert call("Hello.", "--json", voice=word) == 0
    path = folder / "checkpoints" / "step-000000001" / "state.pt"
    assert json.loads(capsys.readouterr().out)["checkpoint"]["path"] == str(path.absolute())


def test_a_run_that_does_not_speak_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("pictures-1", workload="resnet50")
    assert call("Hello.", voice="last") == 2
    assert "run pictures-1 trained resnet50, which does not speak; give a run of tacotron2" in refused(capsys)


def test_a_run_without_a_checkpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("taco-1", steps=0)
    assert call("Hello.", voice="taco-1") == 3
    assert "taco-1 holds no checkpoint; give a run that left one" in refused(capsys)


def test_an_unknown_run_and_a_missing_file_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("taco-1")
    assert call("Hello.", voice="tako-1") == 2
    assert "no run 'tako-1' in the store" in refused(capsys)
    for path in ("other.pt", "no/such/folder"):
        assert call("Hello.", voice=path) == 3
        assert f"checkpoint {path} is not there" in refused(capsys)


def test_a_file_that_holds_no_weights_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.pt").write_text("hello")
    assert call("Hello.", voice="text.pt") == 3
    assert "text.pt is not a file that torch.save wrote" in refused(capsys)


@pytest.mark.parametrize(("content", "sentence"), [(None, "No such file"), (b"\xff\xfe\x00h", "is not UTF-8 text")])
def test_lines_that_cannot_be_opened_are_exit_3(
    content: bytes | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path("lines.txt").write_bytes(content)
    assert call("--lines", "lines.txt") == 3
    assert sentence in refused(capsys)


def test_an_output_folder_that_is_not_there_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("Hello.", "--out", "tiny.pt/x.wav") == 3
    assert "cannot write tiny.pt/x.wav: there is no folder" in refused(capsys)


def test_weights_that_are_not_finite_are_exit_3_and_leave_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    broken = weights()
    broken["decoder.linear_projection.linear_layer.bias"].fill_(torch.nan)
    torch.save(broken, "broken.pt")
    assert call("Hello.", "--plot", "x.png", voice="broken.pt") == 3
    assert "NaN or infinite" in refused(capsys)
    assert files() == []


def test_the_same_command_gives_the_same_file() -> None:
    assert call("Hello there. Bye.", "--out", "a.wav") == call("Hello there. Bye.", "--out", "b.wav") == 0
    assert call("Hello there. Bye.", "--out", "c.wav", "--seed", "1") == 0
    a, b, c = (Path(name).read_bytes() for name in ("a.wav", "b.wav", "c.wav"))
    assert a == b
    assert a != c
