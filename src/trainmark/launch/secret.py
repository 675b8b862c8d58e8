"""The secret that the launchers of a run on several nodes prove to each other in their handshake."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from trainmark.record.errors import NotReadyError

VARIABLE = "TRAINMARK_SECRET"
MIN_LENGTH = 16


def make() -> str:
    return secrets.token_hex(32)


def read(environ: Mapping[str, str]) -> str:
    """The secret that whoever started this process gave to every launcher of the run."""
    found = environ.get(VARIABLE, "")
    if len(found) >= MIN_LENGTH:
        return found
    wrong = f"is shorter than {MIN_LENGTH} characters" if found else "is not set"
    raise NotReadyError(
        f"the launchers of this run meet at a port that others may reach, and {VARIABLE}, by which they know each "
        f"other, {wrong}; give all of them the same random one: export {VARIABLE}=$(openssl rand -hex 32)"
    )
