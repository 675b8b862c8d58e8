"""Finds in the code what it writes for people: constants and f-strings, with a named place for each value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "trainmark"
EITHER = "either"
"""Begins the name of a place that holds one of two endings, such as a plural's s, which Chinese has not."""

SILENT = {"help", "metavar", "pattern", "title_pattern", "description", "epilog", "prog", "dest", "desc"}
"""Keywords whose words stand in --help, or nowhere."""
_SENTENCE = re.compile(r"[a-z]{2,}[,;:]? (?:\{|[a-z]{2,})|\} [a-z]{2,}")


def templates(path: Path) -> Iterator[tuple[int, str]]:
    """Every text of a module with the line it stands on, but docstrings and what only --help shows."""
    for node in _texts(path):
        if (found := template(node)) is not None:
            yield node.lineno, found.strip()


@cache
def _texts(path: Path) -> list[ast.expr]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            left |= {id(part) for part in node.values}
        elif isinstance(node, ast.keyword) and node.arg in SILENT:
            left |= {id(part) for part in ast.walk(node.value)}
        elif isinstance(node, ast.Assign) and any(
            getattr(name, "id", "") in ("HELP", "EXAMPLES") for name in node.targets
        ):
            left.add(id(node.value))
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in left]


def template(node: ast.expr) -> str | None:
    """`run {run_id} is {status}` of an f-string; a constant as it stands."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    said, names = "", []
    for part in node.values:
        if isinstance(part, ast.Constant):
            said += part.value.replace("{", "{{").replace("}", "}}") if "{" in str(part.value) else part.value
        elif isinstance(part, ast.FormattedValue):
            names.append(_named(part.value))
            count = names.count(names[-1])
            said += "{" + names[-1] + (str(count) if count > 1 else "") + "}"
    return said


def _named(value: ast.expr) -> str:
    if isinstance(value, ast.IfExp):
        return EITHER
    if isinstance(value, ast.Attribute):
        return value.attr.strip("_") or "value"
    if isinstance(value, ast.Name):
        return value.id.strip("_") or "value"
    if isinstance(value, ast.Call):
        for argument in value.args:
            if isinstance(argument, (ast.Name, ast.Attribute, ast.Call)):
                return _named(argument)
        return _named(value.func)
    if isinstance(value, (ast.Subscript, ast.Await, ast.Starred)):
        return _named(value.value)
    if isinstance(value, ast.BinOp):
        sides = [_named(side) for side in (value.left, value.right)]
        return next((name for name in sides if name != "value"), "value")
    return "value"


def is_sentence(text: str) -> bool:
    """Whether it holds words that follow each other, and is no pattern or path."""
    return bool(_SENTENCE.search(text)) and not re.search(r"\(\?|\[\^?a-z|\\[sdwb.]|^/|\n {2,}\w+ =", text)


ENGLISH = re.compile(r"(?:\b[A-Za-z][a-z']* +){3,}[a-z]{2,}|(?:\b[a-z]{2,}, ){1}(?:[a-z]+ ){2,}[a-z]+")
"""Four words in a row; names of devices and units have fewer."""
COMMANDS = re.compile(r"→.*|`[^`]*`|'[^']*'|/[\w./-]+|published:\S+")


def english_in(text: str) -> list[str]:
    """Sentences of English; commands to be pasted, paths and quoted words are left out."""
    return [found[0] for line in text.splitlines() if (found := ENGLISH.search(COMMANDS.sub("", line)))]
