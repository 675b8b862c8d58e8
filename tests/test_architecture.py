"""A small kernel, features beside it: the arrows between rooms are as docs/tour.md draws them."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from trainmark import features
from trainmark.cli.main import list_commands
from trainmark.platforms import files as platform_files

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trainmark"

MAY_IMPORT: dict[str, set[str]] = {"record": set()}
MAY_IMPORT["platforms"] = {"record"}
MAY_IMPORT["data"] = {"record"}
MAY_IMPORT["workloads"] = {"data", *MAY_IMPORT["data"]}
MAY_IMPORT["analysis"] = {"workloads", "platforms", "record"}
MAY_IMPORT["view"] = {"analysis", *MAY_IMPORT["analysis"]}
MAY_IMPORT["train"] = {"workloads", "data", "platforms", "record"}
MAY_IMPORT["launch"] = {"train", *MAY_IMPORT["train"]}
KERNEL = (*MAY_IMPORT, "cli", "api")
MAY_IMPORT["api"] = set(MAY_IMPORT)
MAY_IMPORT["cli"] = set(MAY_IMPORT)  # the API included
"""By room, the rooms below it; a feature may import all of them."""
WITHOUT_TORCH = ("record", "analysis", "view")
FACTS = ("all_facts", "facts", "facts_of", "names", "qualities", "quality_word", "title", "title_of")
"""What rooms without torch may ask of the workloads."""
PLATFORM_FILES = {"trainmark.platforms.files", "trainmark.platforms.files.Peak"}
MAX_RUN_FILES = 130


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> set[str]:
    """Every module a file imports, at its top, inside a function or for its types."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are written out in full here"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(room: str) -> list[Path]:
    """Of a room, which is a folder, or one module."""
    return sorted((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"]


def imported_features(path: Path) -> set[str]:
    return {name.split(".")[2] for name in imports(path) if name.startswith("trainmark.features.")} & {
        *features.names()
    }


@pytest.mark.parametrize("room", KERNEL)
def test_a_kernel_room_imports_only_rooms_below_it_and_no_feature(room: str) -> None:
    assert files(room)
    for path in files(room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("trainmark.")} & set(MAY_IMPORT)
        assert rooms - {room} <= MAY_IMPORT[room], (
            f"{path.relative_to(SOURCE)} imports {rooms - {room} - MAY_IMPORT[room]}"
        )
        assert not imported_features(path), f"{path.relative_to(SOURCE)} imports a feature"


@pytest.mark.parametrize("name", features.names())
def test_a_feature_imports_another_only_where_it_declares_so(name: str) -> None:
    declared = set(features.needs(name))
    assert declared <= set(features.names())
    used = {other for path in files(f"features/{name}") for other in imported_features(path)} - {name}
    assert used == declared, f"features/{name}/__init__.py declares NEEDS = {sorted(declared)}, and imports {used}"


def test_the_needs_of_features_have_no_cycle() -> None:
    seen: dict[str, bool] = {}

    def visit(name: str) -> None:
        assert seen.get(name) is not False, f"{name} needs itself"
        if name not in seen:
            seen[name] = False
            for other in features.needs(name):
                visit(other)
            seen[name] = True

    for name in features.names():
        visit(name)


def test_no_modules_import_each_other_in_a_circle_even_for_types() -> None:
    known = modules()
    graph = {name: (imports(path) & known.keys()) - {name, "trainmark"} for name, path in known.items()}
    for name in graph:  # a package is imported by naming what lies in it
        graph[name] = {other for other in graph[name] if not name.startswith(f"{other}.")}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ["trainmark", *path.relative_to(SOURCE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def run_closure(start: Iterable[str]) -> set[str]:
    """Every module that these reach by imports of any kind, but for those made for types alone."""
    known, found, todo = modules(), set[str](), list(start)
    while todo:
        name = todo.pop()
        if name in found or name not in known:
            continue
        found.add(name)
        todo += runtime_imports(known[name])
        todo.append(name.rpartition(".")[0])
    return found


def runtime_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))

    class WithoutTypes(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            return None if "TYPE_CHECKING" in ast.dump(node.test) else self.generic_visit(node)

    found: set[str] = set()
    for node in ast.walk(WithoutTypes().visit(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


RUN = (
    *("trainmark.__main__", "trainmark.cli.main", "trainmark.cli.run", "trainmark.train.worker"),
    *("trainmark.launch.sampler", "trainmark.workloads.resnet50.workload"),
    *("trainmark.data.imagenet.facts", "trainmark.data.imagenet.make"),
)
"""Where the processes of `trainmark run resnet50 --recipe smoke` begin, and what they find by its name."""


def test_a_run_passes_few_files() -> None:
    found = run_closure(RUN)
    print(f"trainmark run resnet50 --recipe smoke passes {len(found)} files")
    assert len(found) <= MAX_RUN_FILES, sorted(found)
    assert not any(name.startswith("trainmark.features.") for name in found)


def without(folder: Path, removed: Iterable[str]) -> Path:
    """A copy of the source without these features."""
    copy = folder / "src" / "trainmark"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in removed:
        shutil.rmtree(copy / "features" / name)
    return copy


def dependents(name: str) -> set[str]:
    """A feature, and those that cannot be without it."""
    found = {name}
    while more := {other for other in features.names() if found & set(features.needs(other))} - found:
        found |= more
    return found


IMPORT_ALL = """
import importlib, pathlib, sys
source = pathlib.Path(sys.argv[1])
for path in sorted((source / "trainmark").rglob("*.py")):
    if path.stem != "__main__":
        name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)
from trainmark.cli.main import main
sys.exit(main(["--version"]))
"""


def run_in(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with the copied source, in its folder."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    code = [sys.executable, *words]
    env = {**usual, "PYTHONPATH": str(copy.parent)}
    return subprocess.run(code, cwd=copy.parents[1], env=env, capture_output=True, text=True, check=False)


def check_imports_and_types(copy: Path, cache: Path) -> None:
    ran = run_in(copy, "-c", IMPORT_ALL, str(copy.parent))
    assert ran.returncode == 0, ran.stderr
    shutil.copy(ROOT / "pyproject.toml", copy.parents[1])
    ran = run_in(copy, "-m", "mypy", "--cache-dir", str(cache), "src")
    assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", features.names())
def test_without_a_feature_all_the_rest_imports_and_type_checks(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_imports_and_types(without(tmp_path, dependents(name)), tmp_path_factory.getbasetemp() / "mypy")


@pytest.mark.slow
def test_without_any_feature_the_kernel_passes_its_fast_tests(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = without(tmp_path, features.names())
    check_imports_and_types(copy, tmp_path_factory.getbasetemp() / "mypy")
    for path in ROOT.iterdir():
        if path.suffix in (".md", ".txt") or path.name in ("docs", "bench", "scripts"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    tests = [path for room in KERNEL for path in sorted((tmp_path / "tests" / room).glob("test_*.py"))]
    own = [str(path) for path in tests if "trainmark.features" not in path.read_text(encoding="utf-8")]
    assert len(own) > 0.9 * len(tests)
    ran = run_in(copy, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not features", *own)
    assert ran.returncode == 0, ran.stdout[-5000:]


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_rooms_that_judge_and_show_ask_workloads_only_for_their_facts(room: str) -> None:
    for path in files(room):
        modules = {name for name in imports(path) if name.startswith(("trainmark.workloads.", "trainmark.platforms."))}
        allowed = {f"trainmark.workloads.{word}" for word in FACTS} | PLATFORM_FILES
        assert modules <= allowed, path


def test_the_facts_of_all_workloads_and_cards_need_no_torch() -> None:
    code = (
        "import sys; from trainmark import workloads; from trainmark.analysis import peaks; "
        "assert workloads.all_facts() and peaks.find_card('A100'); "
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_folder_and_module_is_a_known_room() -> None:
    found = {path.stem for path in SOURCE.iterdir() if path.name not in ("__pycache__", "py.typed")}
    assert found - {"__init__", "__main__", "locale", "features"} == set(KERNEL)


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_a_laptop_without_torch_can_use_the_room(room: str) -> None:
    for path in files(room):
        assert not any(name.split(".")[0] == "torch" for name in imports(path)), path


ASKING = {"get", "pop", "setdefault", "startswith", "endswith", "removeprefix", "find", "index", "count", "fullmatch"}
"""Calls by which code may find out whose device it has."""


@cache
def vendor_words() -> set[str]:
    """Every word by which code could tell vendors apart: of their files, devices, plugins and collectives."""
    found = set()
    for file in map(platform_files.load, platform_files.names()):
        found |= {file.name, file.title, file.device_type, file.collectives, file.plugin, file.recognise.build}
    return {word.lower() for word in found if word} - {"cpu", "gloo", "standin", platform_files.NO_COLLECTIVES}


def decisions(tree: ast.AST) -> Iterator[ast.AST]:
    """The parts of code that decide by a word: comparisons, keys, matches, and calls that look something up."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Compare, ast.MatchValue)):
            yield node
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
        elif isinstance(node, ast.Set):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKING:
            yield from node.args


def special_vendors(code: ast.Module) -> list[int]:
    """Lines that decide something by a vendor's word."""
    lines = set()
    for node in decisions(code):
        words = {
            part.value.lower() for part in ast.walk(node) if isinstance(part, ast.Constant) and type(part.value) is str
        }
        if words & vendor_words():
            lines.add(getattr(node, "lineno", 0))
    return sorted(lines)


def test_no_vendor_is_treated_specially_in_code() -> None:
    for path in SOURCE.rglob("*.py"):
        lines = special_vendors(parsed(path))
        assert not lines, f"{path.relative_to(SOURCE)}:{lines[0]} decides by a vendor's name"


@pytest.mark.parametrize(
    "code",
    [
        "if platform.name == 'nvidia': pass",
        "if device.type in ('cuda', 'npu'): pass",
        "wait = {'ascend': 3}[platform.name]",
        "wait = table['Moore Threads']",
        "wait = table.get('amd', 1)",
        "match platform.name:\n    case 'gaudi' | 'intel': pass",
        "if backend.startswith('hccl'): pass",
        "if title in {'Cambricon'}: pass",
        "if 'torch_npu' in sys.modules: pass",
    ],
)
def test_code_that_treats_a_vendor_specially_would_be_found(code: str) -> None:
    assert special_vendors(ast.parse(code))


def test_the_names_of_all_vendors_are_looked_for() -> None:
    assert {"nvidia", "amd", "iluvatar", "metax", "hygon", "kunlunxin", "ascend", "cambricon"} <= vendor_words()
    assert {"mthreads", "intel", "gaudi", "apple", "cuda", "hccl", "torch_mlu"} <= vendor_words()


def test_no_command_reaches_into_another_and_none_hands_its_arguments_to_a_library() -> None:
    modules = {source.module for source in list_commands().values()}
    for module in modules:
        path = SOURCE.parent / f"{module.replace('.', '/')}.py"
        assert not imports(path) & modules, path
    for room in set(MAY_IMPORT) - {"cli"}:
        for path in files(room):
            is_a_program = '__name__ == "__main__"' in path.read_text(encoding="utf-8")
            assert is_a_program or "argparse" not in imports(path), path


def test_importing_trainmark_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, trainmark; print(sorted({'torch', 'numpy', 'scipy', 'rich', 'argparse'} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_help_needs_neither_torch_nor_numpy() -> None:
    """What makes `trainmark --help` answer at once."""
    code = (
        "import sys; from trainmark.cli.main import build_parser; build_parser().format_help(); "
        "print(sorted({'torch', 'numpy', 'scipy', 'rich', 'PIL'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_every_module_opens_with_a_sentence() -> None:
    for path in SOURCE.rglob("*.py"):
        text = ast.get_docstring(parsed(path))
        assert text, f"{path.relative_to(SOURCE)} does not say what it is"
        assert text.split("\n")[0].endswith((".", ":")), f"{path.relative_to(SOURCE)}: {text!r}"


def house_names(room: str) -> list[str]:
    return sorted(path.parent.name for path in (SOURCE / room).glob("*/facts.*"))


OWN = {word: room for room in ("workloads", "data") for word in house_names(room)}
EXAMPLES = re.compile(r"^  +trainmark .*(\n      .*)*$", re.MULTILINE)
"""Lines of help texts that show how a command is typed."""
SHARED_BY_IMAGES = {"vision.py"}
"""What image classifiers inherit, of which the set they all read is a part."""


ORDINARY = {"text"}
"""Names that are words of the language too: only an import of their folder tells that they are meant."""


@pytest.mark.parametrize("word", OWN)
def test_no_room_names_a_workload_or_a_data_set_that_is_not_its_own(word: str) -> None:
    named = re.compile(rf"\b{OWN[word]}\.{word}\b" if word in ORDINARY else rf"\b{word}\b")
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE)
        own = inside.parts[0] in ("workloads", "data") and len(inside.parts) > 2
        shared = OWN[word] == "data" and inside.parts[0] == "workloads" and path.name in SHARED_BY_IMAGES
        if own or shared:
            continue
        text = path.read_text(encoding="utf-8")
        is_command = inside.parts[0] == "cli" or path.name.endswith("command.py")
        found = named.search(EXAMPLES.sub("", text) if is_command else text)
        assert not found, f"{inside} names {word}: ask for what it wants to know as a fact"


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    several = {name: places for name, places in homes.items() if len(places) > 1}
    assert not several, "name the lesser one by what it is"


TOUR = SOURCE.parents[1] / "docs" / "tour.md"
MAX_CORE_LINES = 2_500


def test_the_core_the_tour_names_is_read_in_an_hour() -> None:
    core = re.findall(r"^\d+\. `([a-z_0-9/]+\.py)`", TOUR.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(core) >= 12
    lines = sum(len((SOURCE / name).read_text(encoding="utf-8").splitlines()) for name in core)
    assert lines <= MAX_CORE_LINES, f"the core has {lines} lines"


def test_every_file_the_tour_names_is_there() -> None:
    named = re.findall(r"`([a-z_0-9]+/[a-z_0-9/]+\.py)`", TOUR.read_text(encoding="utf-8"))
    assert named
    roots = (SOURCE, SOURCE.parents[1])
    assert [name for name in named if not any((root / name).is_file() for root in roots)] == []
