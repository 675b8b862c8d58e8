"""The rounds of MLPerf Training as tables: which keys a log must have, what may stand there, what ends a training."""

from __future__ import annotations

import ast
import csv
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from typing import Any

from trainmark.published.mlperf.log import as_number
from trainmark.spec.errors import UsageError, nearest

EVERY = "*"
"""The benchmark of rules that hold for all."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    name: str
    rounds: tuple[str, ...]
    runs: int
    """A result is scored from so many."""
    dropped: int
    """The fastest and the slowest that many are left out of the mean; as many may fail."""
    workload: str
    """Ours, or empty."""
    item: str
    train_samples: int | None
    eval_samples: int | None
    better: str
    every: str
    """How often the rules ask for an evaluation, as `reckon` reads it; empty where the table does not say."""
    unit: str
    """Of `every`: epochs, samples or tokens."""
    offsets: int
    """How many first epochs are allowed, from 0."""


@dataclass(frozen=True, kw_only=True)
class KeyRule:
    key: str
    times: str
    """`once`, `some`, `twice`, `or KEY` where another key may stand for it; empty: may be left out."""
    conditions: tuple[str, ...]
    """What every value must be."""
    target: tuple[str, ...]
    """What at least one value must be: the benchmark's target."""
    optimizer: str


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    return {
        entry["benchmark"]: Benchmark(
            name=entry["benchmark"],
            rounds=spread(entry["rounds"]),
            runs=int(entry["runs"]),
            dropped=int(entry["dropped"]),
            workload=entry["workload"],
            item=entry["item"],
            train_samples=int(entry["train_samples"]) if entry["train_samples"] else None,
            eval_samples=int(entry["eval_samples"]) if entry["eval_samples"] else None,
            better=entry["better"],
            every=entry["every"],
            unit=entry["unit"],
            offsets=int(entry["offsets"] or 1),
        )
        for entry in table("benchmarks.csv")
    }


def benchmark(name: str) -> Benchmark:
    known = benchmarks()
    if name not in known:
        raise UsageError(f"benchmark {name!r} is none of MLPerf Training's; {nearest(name, known)}")
    return known[name]


@cache
def rounds() -> tuple[str, ...]:
    return tuple(entry["round"] for entry in table("rounds.csv"))


def spread(text: str) -> tuple[str, ...]:
    """`1.0-2.1 4.0` as the rounds it stands for."""
    everything = rounds()
    found: list[str] = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += everything[everything.index(first) : everything.index(last or first) + 1]
    return tuple(found)


def round_of(name: str, *, path: str, time_ms: float | None) -> str | None:
    """The round whose rules a log is held to: the one its path names, else the first that closed after it was run.

    None where no round has the benchmark."""
    known = benchmarks().get(name)
    if known is None:
        return None
    said = re.search(r"(?:results?|training)_?v?([0-9]\.[0-9])(?![0-9])", path)
    if said and said[1] in known.rounds:
        return said[1]
    if time_ms is not None:
        day = _day(time_ms)
        for entry in table("rounds.csv"):
            if entry["round"] in known.rounds and day <= entry["closes"]:
                return entry["round"]
    return known.rounds[-1]


def _day(time_ms: float) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).date().isoformat()
    except (OverflowError, OSError, ValueError):
        return "9999-12-31"


@cache
def key_rules(round_name: str, division: str, benchmark_name: str, optimizer: str) -> tuple[KeyRule, ...]:
    """What a log must hold; a benchmark's own word on a key counts more than the common one."""
    found: dict[str, KeyRule] = {}
    for entry in table("rules.csv"):
        if (
            round_name in spread(entry["rounds"])
            and entry["division"] in ("both", division)
            and entry["benchmark"] in (EVERY, benchmark_name)
            and entry["optimizer"] in ("", optimizer)
        ):
            found[entry["key"]] = KeyRule(
                key=entry["key"],
                times=entry["times"],
                conditions=_parts(entry["rule"]),
                target=_parts(entry["target"]),
                optimizer=entry["optimizer"],
            )
    return tuple(found.values())


def target(round_name: str, benchmark_name: str) -> tuple[str, ...]:
    """What ends a training of the closed division; empty where the tables do not say."""
    for rule in key_rules(round_name, "closed", benchmark_name, ""):
        if rule.target:
            return rule.target
    return ()


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


@cache
def table(name: str) -> tuple[Mapping[str, str], ...]:
    text = files("trainmark.published.mlperf").joinpath(name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


# What a condition says of a value

CLOSE = 1e-9
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": lambda one, other: one >= other or math.isclose(one, other, rel_tol=CLOSE),
    "<=": lambda one, other: one <= other or math.isclose(one, other, rel_tol=CLOSE),
    ">": operator.gt,
    "<": operator.lt,
    "=": lambda one, other: math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-12),
}
_FORM = re.compile(r"(?:(?P<part>[A-Za-z]\w*) )?(?P<sign>>=|<=|>|<|=) (?P<text>.+)")


def holds(condition: str, value: Any, known: Callable[[str], float | None]) -> bool:
    """Whether a value is as a condition of the tables asks; `known` gives the number logged under another key."""
    if condition == "filled":
        return value not in ("", None)
    if condition == "whole":
        number = as_number(value)
        return number is not None and abs(round(number) - number) < 1e-5
    if condition == "two of them":
        return isinstance(value, list) and len(value) == 2
    if condition.startswith("holds "):
        return isinstance(value, dict) and condition.removeprefix("holds ") in value
    if condition.startswith("in "):
        words = condition.removeprefix("in ").split("|")
        number = as_number(value)
        return value in words or (number is not None and any(_is_number(word, number) for word in words))
    if condition.startswith("multiple of "):
        return _whole_ratio(value, condition.removeprefix("multiple of "), lambda ratio: ratio)
    if condition.startswith("power of two times "):
        return _whole_ratio(value, condition.removeprefix("power of two times "), math.log2)
    return _compares(condition, value, known)


def _compares(condition: str, value: Any, known: Callable[[str], float | None]) -> bool:
    form = _FORM.fullmatch(condition)
    if form is None:
        raise ValueError(f"the tables hold a condition nobody can read: {condition!r}")
    if form["part"]:
        value = value.get(form["part"]) if isinstance(value, dict) else None
    if form["text"].startswith("'"):
        return bool(value == form["text"].strip("'"))
    if form["text"] in ("True", "False"):
        return value is (form["text"] == "True")
    number, wanted = as_number(value), reckon(form["text"], known)
    return number is not None and wanted is not None and _COMPARISONS[form["sign"]](number, wanted)


def _is_number(word: str, number: float) -> bool:
    try:
        return math.isclose(float(word), number, rel_tol=CLOSE)
    except ValueError:
        return False


def _whole_ratio(value: Any, unit: str, by: Callable[[float], float]) -> bool:
    number = as_number(value)
    if number is None or number <= 0:
        return False
    ratio = by(number / float(unit))
    return abs(round(ratio) - ratio) < 1e-5


_OPERATIONS: Mapping[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {"ceil": math.ceil, "floor": math.floor}


def reckon(text: str, known: Callable[[str], float | None]) -> float | None:
    """A number of our tables: `0.1`, or `ceil(262144 / global_batch_size)`; None where a key is not logged."""

    def value(node: ast.expr) -> float | None:
        if isinstance(node, ast.Constant):
            return float(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return known(node.id)
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            return None if left is None or right is None else _OPERATIONS[type(node.op)](left, right)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            inside = value(node.args[0])
            return None if inside is None else _FUNCTIONS[node.func.id](inside)
        raise ValueError(f"the tables hold a number nobody can read: {text!r}")

    try:
        return value(ast.parse(text, mode="eval").body)
    except (ZeroDivisionError, OverflowError):
        return None
