"""The rendered command asks for the very plan that was decided here."""

from __future__ import annotations

import argparse
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from support import plain_yaml

from trainmark.cli import options
from trainmark.cli.main import Parser
from trainmark.features.cluster import command as launch
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.record.errors import UsageError
from trainmark.record.plan import Plan

OWN = {
    "slurm": [],
    "kubernetes": ["--image", "example.com/trainmark:1"],
}
TARGETS = pytest.mark.parametrize("target", OWN)


@pytest.fixture(autouse=True)
def _quiet_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRAINMARK_PLATFORM", "cpu")


def parser() -> Parser:
    found = Parser(allow_abbrev=False)
    launch.add_arguments(found)
    return found


def render(capsys: pytest.CaptureFixture[str], target: str, *said: str) -> str:
    assert launch.run(parser().parse_words(["render", target, *said, *OWN[target]])) == 0
    return capsys.readouterr().out


def rendered_words(target: str, text: str) -> list[str]:
    """The words after `trainmark run`, read as whoever gets the text would read them."""
    if target == "kubernetes":
        args = plain_yaml.read(text)["spec"]["trainer"]["args"]
        found = [word.replace("$$", "$") for word in args]
    else:
        # a shell that only shows what it would run
        shown = subprocess.run(
            [
                "bash",
                "-c",
                f'srun() {{ printf "%s\\0" "$@"; }}; trainmark() {{ srun "$@"; }}\n{text.replace("exec ", "")}',
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found = shown.split("\0")[:-1]
    return found[found.index("run") + 1 :]


def again(said: list[str]) -> tuple[argparse.Namespace, list[Plan]]:
    """What a `trainmark run` with these words would decide."""
    found = Parser(allow_abbrev=False)
    options.add_run_options(found, store="")
    args = found.parse_words(said)
    return args, planning.make_plans(options.options_from_args(args))


@TARGETS
def test_the_rendered_command_decides_the_same_plan(capsys: pytest.CaptureFixture[str], target: str) -> None:
    said = ["resnet50", "--recipe", "reference", "--topology", "2x8", "--data", "it's $HOME", "--set", "target=75"]
    here = planning.make_plans(options.options_from_args(parser().parse_words(["render", target, *said, *OWN[target]])))
    text = render(capsys, target, *said)
    assert f"plan {here[0].fingerprint}" in text
    args, there = again(rendered_words(target, text))
    assert there == here
    assert there[0].fingerprint == here[0].fingerprint
    assert args.data == str(Path("it's $HOME").absolute()), "a path means the same from every folder"


@TARGETS
def test_every_word_of_a_run_is_handed_on(capsys: pytest.CaptureFixture[str], target: str, tmp_path: Path) -> None:
    """Those that are added to `run` later, too: each field of the options must be given a value here and arrives."""
    given: dict[str, object] = {
        "workloads": ("resnet50",),
        "recipe": "smoke",
        "topology": "2x2",
        "precision": "amp-bf16",
        "platform": "cpu",
        "data": str(tmp_path),
        "steps": 3,
        "budget_s": 90.0,
        "settings": ("width=8", "target=-1"),
        "seed": 3,
        "skip_bad": 3,
        "max_restarts": 3,
        "profile": 3,
        "tags": ("week=47",),
        "note": "it's new",
        "hang_timeout_s": 3.5,
        "repeat": 3,
        "store": str(tmp_path / "store"),
        "join_timeout_s": 3.5,
        "strict": True,
        "quiet": True,
    }
    elsewhere = {"sweep", "group", "seconds", "epochs", "items", "init_from", "resume", "hosts", "port", "trust"}
    assert {field.name for field in fields(RunOptions)} == given.keys() | elsewhere
    said = [word for group in RunOptions(**given).to_argv() for word in group]  # type: ignore[arg-type]
    args, _ = again(rendered_words(target, render(capsys, target, *said, "--json")))
    arrived = options.options_from_args(args)
    assert {name: getattr(arrived, name) for name in given} == given
    assert args.json


@TARGETS
def test_a_value_that_looks_like_an_option_arrives(capsys: pytest.CaptureFixture[str], target: str) -> None:
    text = render(capsys, target, "vit", "--topology", "2x1", "--recipe", "smoke", "--join-timeout=-1")
    assert again(rendered_words(target, text))[0].join_timeout_s == -1


@TARGETS
def test_a_wrong_word_is_refused_as_in_a_run(capsys: pytest.CaptureFixture[str], target: str) -> None:
    for said, sentence in (
        (["resnet5", "--topology", "2x1"], "did you mean 'resnet50'"),
        (["resnet50", "--topology", "two"], "not NODESxDEVICES"),
        (["resnet50", "--topology", "2x1", "--set", "widht=3"], "width"),
        (["resnet50", "--topology", "2x1", "--repeat", "0"], "--repeat"),
    ):
        with pytest.raises(UsageError, match=sentence):
            render(capsys, target, *said)
    assert capsys.readouterr().out == ""


def test_the_platform_found_here_is_said_and_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert launch.run(parser().parse_words(["render", "slurm", "resnet50", "--topology", "2x1"])) == 0
    out, err = capsys.readouterr()
    assert "--platform cpu" in out
    assert "platform cpu is what this machine has" in err


def test_render_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["slurm", "resnet50", "--topology", "2x1", "--platform", "cpu"]
    assert launch.run(parser().parse_words(words)) == 0
    assert capsys.readouterr().out == render(capsys, *words)


def test_the_sites_data_is_named_in_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trainmark.toml").write_text('[data]\nimagenet = "/site/imagenet"\n')
    text = render(capsys, "slurm", "resnet50", "--recipe", "reference", "--topology", "2x8")
    assert again(rendered_words("slurm", text))[0].data == "/site/imagenet"


def test_a_claim_is_mounted_above_the_data_and_keeps_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    said = ["resnet50", "--topology", "2x8", "--data", "/sets/imagenet", "--data-claim", "datasets"]
    text = render(capsys, "kubernetes", *said)
    assert '"claimName": "datasets"' in text
    assert '"mountPath": "/sets"' in text
    assert again(rendered_words("kubernetes", text))[0].store == "/sets/trainmark"
    with pytest.raises(UsageError, match="--mount"):
        render(capsys, "kubernetes", "resnet50", "--data", "/imagenet", "--data-claim", "datasets")
    text = render(capsys, "kubernetes", *said, "--mount", "/other", "--store", "/other/kept")
    assert '"mountPath": "/other"' in text
    assert again(rendered_words("kubernetes", text))[0].store == "/other/kept"


@pytest.mark.parametrize(
    ("platform", "resource"),
    [("nvidia", "nvidia.com/gpu"), ("ascend", "huawei.com/Ascend910"), ("gaudi", "habana.ai/gaudi")],
)
def test_a_pod_asks_for_devices_by_the_platform_files_name_unless_told_another(
    capsys: pytest.CaptureFixture[str], platform: str, resource: str
) -> None:
    said = ["vit", "--topology", "1x8", "--platform", platform]
    assert f'"{resource}": 8' in render(capsys, "kubernetes", *said)
    assert '"example.com/card": 8' in render(capsys, "kubernetes", *said, "--device-resource", "example.com/card")
    assert "resourcesPerNode" not in render(capsys, "kubernetes", "vit", "--topology", "1x2", "--platform", "cpu")


def test_records_that_would_be_lost_with_the_pods_are_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    launch.run(parser().parse_words(["render", "kubernetes", "vit", "--topology", "2x1", "--image", "i"]))
    assert "lost with them" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(UsageError, match="--data-claim"):
        render(capsys, "kubernetes", "vit", "--topology", "2x1", "--mount", "/data")
