"""The git revision of the source tree that runs, where there is one: a version number alone does not name a change."""

from __future__ import annotations

import subprocess
from pathlib import Path

LIMIT_S = 5.0
SOURCE = Path(__file__).resolve().parents[3]
"""Where a checkout has its pyproject.toml, if this is one."""


def revision(source: Path = SOURCE) -> str | None:
    """`3f2a91c0d4e5`, with `-dirty` where files were changed since; None for an installed package, or without git."""
    if not (source / "pyproject.toml").is_file() or not (source / ".git").exists():
        return None
    words = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return said.stdout.strip() or None if said.returncode == 0 else None
