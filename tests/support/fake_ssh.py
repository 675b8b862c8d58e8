"""Stands in for ssh: for each host it does what the test wrote down for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FAKE_SSH = """\
#!/bin/sh
# ssh OPTIONS [-G] -- HOST [COMMAND]
asked=
while [ "$1" != -- ]; do [ "$1" = -G ] && asked=yes; shift; done
cd "$FAKE_SSH" || exit 99
if [ -n "$asked" ]; then cat "$2.settings" 2>/dev/null || printf 'user trainer\\nhostname %s.example\\n' "$2"; exit; fi
host=$2 command=$3
. "./$host"
"""
ARRIVE = "echo trainmark arrived\n"


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which each host is a script of its name; a shell runs it with `$command` being what was told it."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH, encoding="utf-8")
    program.chmod(0o755)
    folder = tmp_path / "world"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SSH", str(folder))
    return folder
