"""Runs mlcommons' checkers (the extra `mlperf`) on one result, in a separate process with a time limit."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import io
import logging
import multiprocessing
import os
import re
from collections.abc import Callable
from functools import cache
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import msgspec

from trainmark.features.mlperf.log import ResultFolder

INSTALL = "mlcommons' own checkers are not installed: pip install 'trainmark[mlperf]'"
MAX_SECONDS = 120
MAX_TEXT = 300


class OfficialVerdict(msgspec.Struct, kw_only=True):
    compliance: dict[str, list[str]] = {}
    """Complaints by log."""
    convergence: tuple[bool, str, float] | str | None = None
    """Whether it passed, why, and what the score is multiplied by; how the checker failed; None if not closed."""
    complaints: dict[str, list[str]] = {}
    """Of seeds and system, where they were checked."""


def is_installed() -> bool:
    return importlib.util.find_spec("mlperf_logging") is not None


def ask_mlcommons(folder: ResultFolder) -> OfficialVerdict | str:
    """Their verdict on one result; a sentence where there is none."""
    if not is_installed():
        return INSTALL
    if folder.round is None:
        return f"mlcommons' checkers know no benchmark {folder.benchmark or 'without a name'!r}"
    described = folder.description_file if folder.whole and folder.description is not None else None
    question = {
        "ruleset": f"{folder.round}.0",
        "logs": [str(log.path.absolute()) for log in folder.logs],
        "folder": str(folder.path.absolute()) if folder.whole else None,
        "closed": folder.division == "closed",
        "description": str(described) if described else None,
    }
    try:
        return _open_process().apply_async(_answer, kwds=question).get(timeout=MAX_SECONDS)
    except multiprocessing.TimeoutError:
        _open_process().terminate()
        _open_process.cache_clear()
        return f"mlcommons' checkers gave no answer: timeout after {MAX_SECONDS} s"


@cache
def _open_process() -> Pool:
    """One for all questions, as importing their checkers takes a second; it ends with ours."""
    process = multiprocessing.get_context("spawn").Pool(1, initializer=_prepare)
    atexit.register(process.terminate)
    return process


# In the checkers' process


def _prepare() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what they print is nobody's
        os.dup2(nowhere, stream)
    logging.basicConfig(stream=MESSAGES, level=logging.WARNING, format="%(message)s")


MESSAGES = io.StringIO()
"""What the checkers log, by which most of them answer."""


def _answer(
    *, ruleset: str, logs: list[str], folder: str | None, closed: bool, description: str | None
) -> OfficialVerdict:
    """The folder is None for a single log, of which only compliance is checked."""
    compliance = {Path(log).name: _check_compliance(log, ruleset) for log in logs}
    verdict = OfficialVerdict(compliance=compliance)

    def complaints(name: str, check: Callable[[], Any]) -> None:
        MESSAGES.seek(0)
        MESSAGES.truncate()
        try:
            check()
            verdict.complaints[name] = [
                line.replace(f"{folder}/", "").strip()[:MAX_TEXT] for line in MESSAGES.getvalue().splitlines()
            ]
        except Exception as error:
            verdict.complaints[name] = [f"it ended with {_describe_error(error)}"]

    if folder and closed:
        seeds = _import_checker("package_checker.seed_checker").SeedChecker(ruleset)
        complaints("seeds", lambda: seeds.check_seeds(logs))
        verdict.convergence = _check_convergence(folder, ruleset)
    if description:
        systems = _import_checker("system_desc_checker.system_desc_checker")
        # the words for a status came with 4.1, and their check asks for them in 4.0 already
        ruleset = "3.1.0" if ruleset == "4.0.0" else ruleset
        complaints("system", lambda: systems.check_system_desc(description, "training", ruleset))
    return verdict


def _check_compliance(log: str, ruleset: str) -> list[str]:
    compliance = _import_checker("compliance_checker.mlp_compliance")
    compliance.enqueue_config = _enqueue_rules
    compliance.enqueued_configs.clear()
    checker = compliance.make_checker("training", ruleset, True, False)
    ended = []
    try:
        checker.check_file(log, f"training_{ruleset}/common.yaml")
    except Exception as error:
        ended = [_describe_error(error)]
    return [_shorten(text) for text in (*checker.overwritable.values(), *checker.not_overwritable, *ended)]


def _enqueue_rules(name: str) -> None:
    """Replaces theirs, which uses a value of the log as a path: code in a rules file is executed."""
    if not re.fullmatch(r"training_[0-9.]+/[a-z0-9_]+\.yaml", name):
        raise ValueError(f"{name!r} is no file of their rules")
    _import_checker("compliance_checker.mlp_compliance").enqueued_configs.append(name)


def _shorten(complaint: str) -> str:
    """Without the line of the log and the state of the checker, which follow."""
    lines = complaint.partition("\ncurrent context")[0].splitlines()
    return " ".join(line.strip() for line in lines if not line.startswith(":::MLLOG"))[:MAX_TEXT]


def _check_convergence(folder: str, ruleset: str) -> tuple[bool, str, float] | str:
    check, pruned = _import_checker("rcp_checker.rcp_checker").check_directory, {"rcp_pass": "pruned_rcps"}
    try:
        for by_train_samples in (False, True):  # as BERT's may count
            passed, why, factor = check(folder, "training", ruleset, False, by_train_samples, **pruned)
            if passed:
                break
    except Exception as error:
        return _describe_error(error)
    return bool(passed), why, float(factor)


def _import_checker(name: str) -> Any:
    return importlib.import_module(f"mlperf_logging.{name}")


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_TEXT]
