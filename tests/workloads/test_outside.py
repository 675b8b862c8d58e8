"""Workloads that are not ours: from a file or a package, through every command, and refused in a sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Cli
from workloads.test_worked_example import PAGE, examples

from trainmark import workloads
from trainmark.cli.main import main
from trainmark.launch.options import RunOptions
from trainmark.launch.planning import make_plan
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.plan import Plan
from trainmark.record.record import Record
from trainmark.workloads import outside

(CONVNET,) = examples()
SUMS = examples(PAGE.parent / "docs" / "your_model.md")[1]


def written(folder: Path, code: str, name: str = "model.py") -> Path:
    file = folder / name
    file.write_text(code, encoding="utf-8")
    return file


def test_a_workload_of_another_kind_is_under_ninety_lines() -> None:
    assert len(SUMS.splitlines()) < 90
    assert "vision" not in SUMS


def test_the_other_example_runs_from_its_file_and_every_command_reads_its_record(cli: Cli, tmp_path: Path) -> None:
    file = written(tmp_path, SUMS, "sums.py")
    run = ("run", file, "--recipe", "smoke", "--json", "--quiet")
    ended = cli(*run)
    assert ended.returncode == 0, ended.stderr
    record = Record.from_json(json.loads(ended.stdout))
    assert (record.plan.workload, record.item, record.status) == ("sums", "characters", "valid")
    assert record.quality.reached
    source = record.plan.workload_source
    assert source and source.file == str(file)
    assert source.sha256 == workloads.find(str(file))[1].sha256  # type: ignore[union-attr]
    assert record.workload_facts and [entry.name for entry in record.workload_facts.qualities] == ["char_loss", "right"]
    again = cli(*run, "--seed", "1")
    assert again.returncode == 0, again.stderr
    other = json.loads(again.stdout)["run_id"]
    shown = cli("sample", other, "12+30=", "--json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert document["networks"][0]["value"] == json.loads(again.stdout)["quality"]["value"]
    text = (tmp_path / "store" / "samples" / other / document["files"][0]["file"]).read_text(encoding="utf-8")
    assert text.startswith("12+30=") and len(text) == len("12+30=042\n")
    assert cli("report", other, "--html", tmp_path / "page.html").returncode == 0
    assert f"<p>{text[:-1]}</p>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    file.unlink()  # nobody needs the file to read what it did
    for words, code, shown in (
        (("show", "last", "--all"), 0, "sums.py"),
        (("runs",), 0, "characters/s"),
        (("audit", record.run_id), 0, "0 failed"),
        (("compare", record.run_id, other), None, "p_core"),  # two short runs may differ by anything
        (("report", "last", "--csv", "-"), None, "sums"),
        (("reproduce", record.run_id, "--trust"), 3, "no longer exists"),
    ):
        said = cli(*words)
        if code is not None:
            assert said.returncode == code, said.stderr + said.stdout
        if words[0] != "report":
            assert shown in said.stdout + said.stderr, (words, said.stdout + said.stderr)


def test_commands_that_read_a_record_from_outside_need_no_torch(cli: Cli, tmp_path: Path) -> None:
    code = (
        "import sys, json; from trainmark.record.record import Record; from trainmark import workloads; "
        "from trainmark.analysis.audit_record import audit_document; import trainmark.workloads.outside; "
        "print(sorted({'torch'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_image_example_is_planned_from_its_file_as_it_stands(tmp_path: Path) -> None:
    plan = make_plan(str(written(tmp_path, CONVNET)), RunOptions(recipe="smoke", topology="1x2", platform="cpu"))
    assert plan.workload == "convnet"
    assert plan.data.synthetic
    assert plan.recipe["batch_per_device"] == 8  # shared out, as by every recipe for a first look
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_what_the_file_holds_is_part_of_the_fingerprint_and_where_it_lies_is_not(tmp_path: Path) -> None:
    words = RunOptions(recipe="smoke", platform="cpu")
    plans = [
        make_plan(str(written(tmp_path, code, name)), words)
        for name, code in (("a.py", SUMS), ("b.py", SUMS), ("c.py", SUMS + "# more\n"))
    ]
    assert plans[0].fingerprint == plans[1].fingerprint != plans[2].fingerprint


def test_a_file_changed_after_planning_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, SUMS)
    plan = make_plan(str(file), RunOptions(recipe="smoke", platform="cpu"))
    assert workloads.of_plan(plan).name == "sums"
    file.write_text(SUMS + "# more\n", encoding="utf-8")
    with pytest.raises(NotReadyError, match=r"model.py was changed after the run was planned"):
        workloads.of_plan(plan)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("x = 1\n", "defines no WORKLOAD; end it with WORKLOAD = YourClass()"),
        ("def f(:\n", "line 1 cannot be loaded: SyntaxError"),
        (
            "import nowhere_to_be_found\n",
            "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("class Mine: pass\nWORKLOAD = Mine\n", "is a class; make it WORKLOAD = Mine()"),
        ("class Mine: name = 'mine'\nWORKLOAD = Mine()\n", "has no build, check_data, data_set, flops_per_item"),
        (SUMS.replace('"sums", "characters"', '"resnet50", "characters"'), "is called 'resnet50', like a built-in one"),
        (SUMS.replace('"sums", "characters"', '"a/b", "characters"'), "is called 'a/b'; give it a name of letters"),
        (SUMS.replace('{"reference": REFERENCE, ', "{"), "has no recipe 'reference'"),
    ],
)
def test_a_file_that_will_not_do_is_one_sentence_and_exit_2(
    code: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(written(tmp_path, code))]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


LOSS = "        return cross_entropy(model(batch.tokens[:, :-1]), batch.tokens[:, 1:])"


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        ("return self.guess(", "raise ValueError('no gate')  # ", "in forward: ValueError: no gate"),
        (
            "nn.Linear(64, 12)",
            "nn.Linear(65, 12)",
            "in forward: RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ),
        (LOSS, LOSS.replace("[:, 1:]", ""), "in loss: RuntimeError: Expected target size"),
        (LOSS, LOSS.replace("1:])", '1:], reduction="none")'), "the workload's loss is of shape (64, 8)"),
        ("        pairs = ", "        raise OSError('no sums')\n        pairs = ", "in lines: OSError: no sums"),
        ("return Sums(", "return Sum(", "in open_data: NameError: name 'Sum' is not defined"),
        ("return Reader()", "return Read()", "in build: NameError: name 'Read' is not defined"),
    ],
    ids=["forward", "shapes", "loss", "no scalar", "data", "opening", "build"],
)
def test_an_error_in_a_users_file_is_the_users(cli: Cli, tmp_path: Path, right: str, wrong: str, sentence: str) -> None:
    file = written(tmp_path, SUMS.replace(right, wrong))
    ended = cli("run", file, "--recipe", "smoke", "--steps", "2", "--platform", "cpu", "--quiet", "--debug")
    assert ended.returncode == 4, ended.stderr
    assert sentence in ended.stderr
    assert "internal error" not in ended.stderr and "unexpected" not in ended.stderr
    assert "Traceback" in ended.stderr
    if "loss is of" not in sentence:
        assert re.search(rf"{file}, line [0-9]+, {sentence[:10]}", ended.stderr)
        assert f'File "{file}", line' in ended.stderr
    if "in build" not in sentence:
        assert re.search(r"what was measured is kept in .*, the traceback in .*/rank0\.log", ended.stderr)


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "./no/such/model.py"]) == 2
    assert re.search(r"workload file .*/no/such/model.py cannot be read", capsys.readouterr().err)


def test_a_package_offers_a_workload_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, SUMS, "adding_up.py")
    info = tmp_path / "adding_up-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adding-up\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[trainmark.workloads]\nsums = adding_up:WORKLOAD\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = make_plan("sums", RunOptions(recipe="smoke", platform="cpu"))
    source = plan.workload_source
    assert source and (source.package, source.entry, source.file) == ("adding-up 1.2", "sums", "")
    assert workloads.word_of(plan) == "sums"
    assert workloads.of_plan(plan).name == "sums"
    with pytest.raises(UsageError, match="did you mean 'sums'"):
        make_plan("sumz", RunOptions())
    with pytest.raises(NotReadyError, match=r"adding-up 1.2 was changed after the run was planned"):
        outside.reload(replace(source, sha256="0" * 64))
