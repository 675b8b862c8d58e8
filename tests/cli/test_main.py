"""Bad words get one clear sentence and exit code 2; every command explains itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainmark.cli.main import list_commands, main


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rum"], "COMMAND 'rum' is not known; did you mean 'run'?"),
        (["run", "--depth"], "argument '--depth' is not known; see 'trainmark run --help'"),
        (["run", "--compile"], "argument '--compile' is not known; write --set compiled=yes"),
        (["run", "--batch-size", "4"], "argument '--batch-size' is not known; write --set batch_per_device=N"),
        (["run", "--gpus=8"], "argument '--gpus=8' is not known; write --topology 1xN"),
        (["show", "--lr", "1"], "argument '--lr' is not known; see 'trainmark show --help'"),
        (["run", "--budget", "soon"], "--budget 'soon' is not a duration; try '90s', '3m' or '1h'"),
        (["run", "--budget", "3"], "--budget 3: of what? try '3m' for minutes, '90s' or '1h'"),
        (["run", "--budget", "20s"], "--budget must be at least 30 s, not 20s"),
        (["run", "--port", "99999"], "--port must be between 1 and 65535, not 99999"),
        (["launch", "render", "pbs"], "slurm 'pbs' is not known"),
        (["run", "vit", "--set", "batchsize=4"], "'batchsize' is not known; there are batch_per_device, batch_norm"),
        (["explain", "latency"], "word 'latency' is not known; 'trainmark explain' lists them"),
        (["explain", "wages"], "word 'wages' is not known; 'trainmark explain' lists them"),
        (["explain", "--lang", "fr"], "--lang 'fr' is not known; known: en, zh"),
        (["run", "resnet5"], "workload 'resnet5' is not known; did you mean 'resnet50'?"),
        (["run", "resnet50", "--recipe", "smoky"], "recipe 'smoky' is not known; did you mean 'smoke'?"),
        (["run", "--topologi", "1x1"], "argument '--topologi' is not known; did you mean '--topology'?"),
        (["run", "--topology", "8"], "topology '8' is not NODESxDEVICES; try '1x8'"),
        (["run", "--precision", "fp23"], "precision 'fp23' is not known; did you mean 'fp32'?"),
        (
            ["run", "--platform", "cpu", "--precision", "tf32"],
            "precision tf32 does not run on platform cpu; it has fp32,",
        ),
        (["run", "--platform", "nvdia"], "platform 'nvdia' is not known; did you mean 'nvidia'?"),
        (["run", "--set", "learning_rat=1"], "setting 'learning_rat' is not known; did you mean 'learning_rate'?"),
        (["run", "--steps", "0"], "--steps must be more than 0, not 0"),
        (["run", "--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["run", "--steps", "5", "--epochs", "1"], "argument --epochs: not allowed with argument --steps"),
        (["run", "--repeat", "0"], "--repeat must be at least 1, not 0"),
        (["run", "--skip-bad", "-1"], "--skip-bad must be at least 0, not -1"),
        (["run", "--resume", "never-ran"], "holds no runs yet; 'trainmark run' makes one"),
        (["run", "--resume", ""], "--resume: empty value; leave it out, or give one"),
        (["plan", "resnet50", "--data", ""], "--data: empty value"),
        (["plan", "resnet50", "--seconds", "inf"], "--seconds must be a number of at most 9.0072e+15, not inf"),
        (["plan", "resnet50", "--seconds", "nan"], "--seconds must be a number of at most 9.0072e+15, not nan"),
        (["plan", "resnet50", "--hang-timeout", "nan"], "--hang-timeout must be a number of at most"),
        (["plan", "resnet50", "--steps", "9" * 30], "--steps must be a number of at most"),
        (["plan", "resnet50", "--set", f"seed={'9' * 30}"], "setting seed must be at most"),
        (["plan", "resnet50", "--platform", "a" * 300], "is too long for the name of a file"),
        (["plan", "resnet50", "--data", "a" * 300], "is too long for the name of a file"),
        (["show", "a" * 300], "no run 'aaa"),
        (["explain", "p_cor"], "did you mean 'p_core'?"),
        (["data", "make", "imagnet", "--out", "x"], "set 'imagnet' is not known; did you mean 'imagenet'?"),
        (
            ["data", "make", "imagenet", "--out", "x", "--classes", "0"],
            "--classes 0 is out of range; give 1 to",
        ),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("trainmark: ")
    assert sentence in said.err
    assert said.err.count("\n") == 1


@pytest.mark.features
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["audit", "published:bert"], "is called 'bert'; 'trainmark published' lists them"),
        (["report", "--format", "pdf"], "--format 'pdf' is not known; known: html, markdown,"),
        (["plan", "resnet50", "--card", "H100"], "--card needs --flops"),
        (["audit", "a" * 300], "is too long for the name of a file"),
    ],
)
def test_a_wrong_word_for_a_feature_is_one_sentence_and_exit_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "trainmark run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "resnet50", "--init-from", "/proc/self/mem"], "--init-from /proc/self/mem cannot be read"),
        (["run", "--resume", "empty"], "does not say what was to run: plan.json: No such file or directory"),
        (["run", "--resume", "torn"], "does not say what was to run: plan.json is damaged"),
        (["show", "empty"], "is not a run folder: run.json: No such file or directory"),
    ],
)
def test_files_that_cannot_be_read_are_one_sentence_and_exit_3(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "torn"):
        (tmp_path / "store" / "runs" / name).mkdir(parents=True)
    (tmp_path / "store" / "runs" / "torn" / "plan.json").write_text('{"schema": 1, "work', encoding="utf-8")
    assert main(words) == 3
    said = capsys.readouterr().err
    assert said.startswith("trainmark: ") and sentence in said
    assert said.count("\n") == 1


def test_a_working_folder_that_is_gone_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["list"]) == 3
    assert capsys.readouterr().err == "trainmark: the current directory no longer exists; cd elsewhere\n"


@pytest.mark.parametrize("command", list_commands())
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"examples:\n  trainmark {command}" in capsys.readouterr().out


def test_the_published_recipes_are_planned_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"reference": (32, 0.1, "/"), "fill": (256, 0.8, "bs=256,lr=0.8")}
    for recipe, (batch, rate, _) in expected.items():
        assert main(["plan", "resnet50", "--recipe", recipe, "--topology", "1x8", "--platform", "cpu", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        values = plan["recipe"]
        assert (values["batch_per_device"], values["learning_rate"]) == (batch, rate)
        assert (values["weight_decay"], values["momentum"], values["epochs"], values["seed"]) == (1e-4, 0.9, 100, 0)
        assert (values["decay_every_epochs"], values["decay_factor"], values["target"]) == (30, 0.1, 75.5)
        assert (values["image_px"], values["width"], values["classes"], values["evaluate_first"]) == (
            224,
            64,
            1000,
            True,
        )
        assert [change["name"] for change in plan["deviations"]] == (
            [] if recipe == "reference" else ["batch_per_device", "learning_rate"]
        )


def test_a_plan_is_printed_with_what_differs_from_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "resnet50", "--platform", "cpu", "--set", "batch_per_device=8", "--seed", "7"]) == 0
    said = capsys.readouterr().out
    assert "batch_per_device         8   (reference: 32)" in said
    assert "seed                     7   (reference: 0)" in said
    assert "(synthetic)" in said


def test_planning_twice_gives_the_same_fingerprint(capsys: pytest.CaptureFixture[str]) -> None:
    prints = set()
    for _ in range(2):
        main(["plan", "resnet50", "--platform", "cpu", "--json"])
        prints.add(json.loads(capsys.readouterr().out)["fingerprint"])
    assert len(prints) == 1


def test_the_list_is_short_and_has_the_details_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 24
    for word in ("resnet50", "tacotron2", "mel frames", "smoke", "cpu", "nvidia"):
        assert word in said
    assert main(["list", "resnet50"]) == 0
    assert "differs from reference: bs=256,lr=0.8" in capsys.readouterr().out
    assert main(["list", "nvidia"]) == 0
    assert "amp-bf16" in capsys.readouterr().out
    assert main(["list", "resnet5"]) == 2
    assert "did you mean 'resnet50'?" in capsys.readouterr().err
    assert main(["list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"workloads", "platforms"}


def test_the_help_has_every_command_in_a_group_on_one_line_of_80(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and len(line) <= 80]
    assert {*list_commands()} <= {*listed}
    assert [line for line in lines if line in ("Measure:", "Read:", "Judge:", "Cluster:", "Publish:", "Keep:")] == [
        *("Measure:", "Read:", "Judge:", "Cluster:", "Publish:", "Keep:")
    ]


OUTSIDE = """
NAME = "greet"
HELP = "Says hello."
EXAMPLES = "  trainmark greet"
def add_arguments(parser): parser.add_argument("--to", default="you")
def run(args): print(f"hello, {args.to}"); return 0
"""


def test_another_package_offers_a_command_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greeting").mkdir()
    (tmp_path / "greeting" / "__init__.py").touch()
    (tmp_path / "greeting" / "command.py").write_text(OUTSIDE)
    info = tmp_path / "greeting-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1\n")
    entries = info / "entry_points.txt"
    entries.write_text("[trainmark.features]\ngreeting = greeting\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["greet", "--to", "all"]) == 0
    assert capsys.readouterr().out == "hello, all\n"
    assert main(["greed"]) == 2
    entries.write_text("[trainmark.features]\ngreeting = gone\n")
    assert main(["greet"]) == 3
    assert "feature gone cannot be loaded: No module named 'gone'" in capsys.readouterr().err
