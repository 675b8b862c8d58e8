"""Runs mlcommons' checkers (the extra `mlperf`) in a separate process with a time limit."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import msgspec

from trainmark.features.mlperf.folder import ResultFolder

INSTALL = "mlcommons' own checkers are not installed: pip install 'trainmark[mlperf]'"
MAX_SECONDS = 120
MAX_TEXT = 300


class Question(msgspec.Struct, frozen=True, kw_only=True):
    ruleset: str
    logs: list[str]
    folder: str | None
    """None for a single log, of which only compliance is checked."""
    closed: bool
    description: str | None
    power: str | None


class OfficialVerdict(msgspec.Struct, kw_only=True):
    compliance: dict[str, list[str]] = {}
    """Complaints by log."""
    convergence: tuple[bool, str, float] | None = None
    """Whether it passed, why, and what the score is multiplied by; None of the open division."""
    complaints: dict[str, list[str]] = {}
    """Of seeds, system and power, where they were checked."""
    failures: dict[str, str] = {}
    """Checkers that raised."""


def is_installed() -> bool:
    return importlib.util.find_spec("mlperf_logging") is not None


class Checkers:
    """The checkers' process: starts with the first question, ends with the block."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Checkers:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stop()

    def verdict(self, folder: ResultFolder) -> OfficialVerdict | str:
        """On one result; a sentence where there is none."""
        if not is_installed():
            return INSTALL
        if folder.round is None:
            return f"mlcommons' checkers know no benchmark {folder.benchmark or 'without a name'!r}"
        question = _make_question(folder)
        try:
            process = self._process = self._process or _start()
            return _ask(process, question)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            self._stop()
            return f"mlcommons' checkers gave no answer: {error or type(error).__name__}"

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _make_question(folder: ResultFolder) -> Question:
    place = str(folder.path.absolute())
    described = folder.description_file if folder.whole and folder.description is not None else None
    return Question(
        ruleset=f"{folder.round}.0",
        logs=[str(log.path.absolute()) for log in folder.logs],
        folder=place if folder.whole else None,
        closed=folder.division == "closed",
        description=str(described) if described else None,
        power=f"{place}/power" if folder.power else None,
    )


def _start() -> subprocess.Popen[bytes]:
    # in our package's folder: the user's may contain files named like modules
    home = Path(__file__).absolute().parents[3]
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _ask(process: subprocess.Popen[bytes], question: Question) -> OfficialVerdict:
    questions, answers = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    questions.write(msgspec.json.encode(question) + b"\n")
    questions.flush()
    if not select.select([answers], [], [], MAX_SECONDS)[0]:
        raise TimeoutError(f"timeout after {MAX_SECONDS} s")
    return msgspec.json.decode(answers.readline(), type=OfficialVerdict)


# In the checkers' process


def answer_all(questions: IO[bytes], answers: IO[bytes]) -> None:
    messages = _Messages()
    logging.basicConfig(handlers=[messages], level=logging.WARNING)
    _import_checker("compliance_checker.mlp_compliance").enqueue_config = _enqueue_rules
    for line in questions:
        verdict = _answer(msgspec.json.decode(line, type=Question), messages.lines)
        answers.write(msgspec.json.encode(verdict) + b"\n")
        answers.flush()


class _Messages(logging.Handler):
    """Collects the checkers' log messages, by which most of them answer."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += record.getMessage().splitlines()


def _answer(question: Question, messages: list[str]) -> OfficialVerdict:
    verdict = OfficialVerdict(
        compliance={Path(log).name: _check_compliance(log, question.ruleset) for log in question.logs}
    )

    def complaints(name: str, check: Callable[[], Any]) -> None:
        messages.clear()
        try:
            check()
            home = f"{question.folder}/"
            verdict.complaints[name] = [line.replace(home, "").strip()[:MAX_TEXT] for line in messages]
        except Exception as error:
            verdict.complaints[name] = [f"it ended with {_describe_error(error)}"]

    if question.folder and question.closed:
        seeds = _import_checker("package_checker.seed_checker").SeedChecker(question.ruleset)
        complaints("seeds", lambda: seeds.check_seeds(question.logs))
        try:
            verdict.convergence = _check_convergence(question.folder, question.ruleset)
        except Exception as error:
            verdict.failures["convergence"] = _describe_error(error)
    if question.power:
        power = _import_checker("package_checker.power_checker").PowerChecker(question.ruleset)
        complaints("power", lambda: power.check_power(question.power, question.logs))
    if question.description:
        systems = _import_checker("system_desc_checker.system_desc_checker")
        # the words for a status came with 4.1, and their check asks for them in 4.0 already
        ruleset = "3.1.0" if question.ruleset == "4.0.0" else question.ruleset
        complaints("system", lambda: systems.check_system_desc(question.description, "training", ruleset))
    return verdict


def _enqueue_rules(name: str) -> None:
    """Replaces theirs, which uses a value of the log as a path: code in a rules file is executed."""
    if not re.fullmatch(r"training_[0-9.]+/[a-z0-9_]+\.yaml", name):
        raise ValueError(f"{name!r} is no file of their rules")
    _import_checker("compliance_checker.mlp_compliance").enqueued_configs.append(name)


def _check_compliance(log: str, ruleset: str) -> list[str]:
    compliance = _import_checker("compliance_checker.mlp_compliance")
    compliance.enqueued_configs.clear()
    checker = compliance.make_checker("training", ruleset, True, False)
    ended = []
    try:
        checker.check_file(log, f"training_{ruleset}/common.yaml")
    except Exception as error:
        ended = [_describe_error(error)]
    found = [*checker.overwritable.values(), *checker.not_overwritable, *ended]
    return [_shorten(text) for text in found]


def _shorten(complaint: str) -> str:
    """Without the line of the log and the state of the checker, which follow."""
    lines = complaint.partition("\ncurrent context")[0].splitlines()
    return " ".join(line.strip() for line in lines if not line.startswith(":::MLLOG"))[:MAX_TEXT]


def _check_convergence(folder: str, ruleset: str) -> tuple[bool, str, float]:
    check = _import_checker("rcp_checker.rcp_checker").check_directory
    pruned = {"rcp_pass": "pruned_rcps"}
    for by_train_samples in (False, True):  # as BERT's may count
        passed, why, factor = check(folder, "training", ruleset, False, by_train_samples, **pruned)
        if passed:
            break
    return bool(passed), why, float(factor)


def _import_checker(name: str) -> Any:
    return importlib.import_module(f"mlperf_logging.{name}")


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_TEXT]


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # keeps what they print out of the answers
    answer_all(sys.stdin.buffer, answers)
