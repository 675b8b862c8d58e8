"""The rooms of the house and the arrows between them are as docs/tour.md draws them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "trainmark"

MAY_IMPORT = {
    "spec": set(),
    "data": {"spec"},
    "platforms": {"spec"},
    "workloads": {"data", "spec"},
    "run": {"workloads", "data", "platforms", "spec"},
    "results": {"spec"},
    "cli": {"run", "workloads", "data", "platforms", "results", "spec"},
}
WITHOUT_TORCH = ("spec", "results")


def imports(path: Path) -> set[str]:
    """Every module a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are written out in full here"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_its_arrows_allow(room: str) -> None:
    assert files(room)
    for path in files(room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("trainmark.")} & set(MAY_IMPORT)
        assert rooms - {room} <= MAY_IMPORT[room], (
            f"{path.relative_to(SOURCE)} imports {rooms - {room} - MAY_IMPORT[room]}"
        )


def test_every_folder_is_a_known_room() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_a_laptop_without_torch_can_use_the_room(room: str) -> None:
    for path in files(room):
        assert not any(name.split(".")[0] == "torch" for name in imports(path)), path


def test_no_vendor_is_treated_specially_in_code() -> None:
    vendors = {path.stem for path in (SOURCE / "platforms").glob("*.toml")} - {"cpu"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                words = {
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }
                assert not words & vendors, f"{path.relative_to(SOURCE)}:{node.lineno} compares with a vendor's name"


def test_help_needs_neither_torch_nor_numpy() -> None:
    """What makes `trainmark --help` answer at once."""
    code = (
        "import sys; from trainmark.cli.main import parser; parser().format_help(); "
        "print(sorted({'torch', 'numpy', 'scipy', 'rich', 'PIL'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_module_opens_with_a_sentence() -> None:
    for path in SOURCE.rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert text, f"{path.relative_to(SOURCE)} does not say what it is"
        assert text.split("\n")[0].endswith((".", ":")), f"{path.relative_to(SOURCE)}: {text!r}"
