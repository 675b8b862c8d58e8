"""The secret that the launchers of a run on several machines prove to each other before they talk."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from trainmark.spec.errors import NotReadyError

VARIABLE = "TRAINMARK_SECRET"
FEWEST_LETTERS = 16


def make() -> str:
    return secrets.token_hex(32)


def given(environ: Mapping[str, str]) -> str:
    """What whoever started this process gave it, and every other launcher of the run."""
    found = environ.get(VARIABLE, "")
    if len(found) >= FEWEST_LETTERS:
        return found
    wrong = f"has fewer than {FEWEST_LETTERS} letters" if found else "is not set"
    raise NotReadyError(
        f"the processes of this run meet at a port that others may reach, and {VARIABLE}, by which they know each "
        f"other, {wrong}; give all of them the same random one: export {VARIABLE}=$(openssl rand -hex 32)"
    )
