"""What `trainmark run resnet50 --recipe smoke` can import, by the text of the source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import trainmark

SOURCE = Path(trainmark.__file__).parent
ROOTS = ("__main__", "cli.main", "cli.run", "train.worker", "workloads.resnet50.workload")
NOT_OF_A_RUN = (
    *("published.audit", "published.audit_rows", "published.library", "published.mlperf.write"),
    *("analysis.audit_record", "analysis.audit_events", "analysis.forecast.outcome", "report.output"),
)
"""A run judges no published row, reads no events twice, and holds no forecast against itself."""


def module_file(name: str) -> Path | None:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def imports(name: str) -> frozenset[str]:
    """Modules of ours that a module names, also inside functions; not those that only a type checker reads."""
    file = module_file(name)
    assert file
    found: set[str] = set()
    left: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        left += node.orelse if isinstance(node, ast.If) and is_typing else ast.iter_child_nodes(node)
    return frozenset(one for one in found if one.partition(".")[0] == "trainmark" and module_file(one))


def closure(roots: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    left = [f"trainmark.{root}" for root in roots]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        left += [*imports(name), *([name.rpartition(".")[0]] if "." in name else [])]
    return found


def test_a_run_imports_no_audit_of_published_rows_and_no_second_gathering() -> None:
    found = closure(ROOTS)
    print(f"{len(found)} files")
    assert not found & {f"trainmark.{name}" for name in NOT_OF_A_RUN}
