"""The Dockerfile, as far as it can be held to its word without docker."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "SHELL", "ENV", "USER", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def test_it_builds_on_any_base_copies_what_is_there_and_does_not_end_as_root() -> None:
    found = instructions()
    assert {word for word, _ in found} == KNOWN
    assert found[0][0] == "ARG" and found[0][1].startswith("BASE=")
    assert [rest for word, rest in found if word == "FROM"][-1] == "${BASE}"
    copied = [source for word, rest in found if word == "COPY" and "--from" not in rest for source in rest.split()[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in sent if line.startswith("!")} == set(copied)
    (user,) = [rest for word, rest in found if word == "USER"]
    assert int(user) > 0
    assert [rest for word, rest in found if word == "ENTRYPOINT"] == ['["trainmark"]']


@pytest.mark.slow
@pytest.mark.parametrize("there", ["torch==2.9.0a0+vendor.1\ntriton==3.1\nrich==13.0", "rich==13.0"])
def test_a_torch_that_the_base_brings_is_pinned_and_else_the_tested_versions_are(there: str, tmp_path: Path) -> None:
    install = next(rest for word, rest in instructions() if word == "RUN" and "pip install" in rest)
    pip = tmp_path / "python3"  # answers `pip list`, and says what `pip install` would be held to
    pip.write_text(f'#!/bin/sh\ncase "$*" in *list*) echo "{there}" ;; *) cat {tmp_path}/kept.txt ;; esac\n')
    pip.chmod(0o755)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n", encoding="utf-8")
    said = subprocess.run(
        ["bash", "-o", "pipefail", "-c", install.replace("/tmp/", f"{tmp_path}/")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == (there.splitlines()[:2] if "torch" in there else ["torch==2.13.0"])
