"""The shared secret of the launchers of a run, proved in their handshake."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from trainmark.record.errors import NotReadyError

VARIABLE = "TRAINMARK_SECRET"
MIN_LENGTH = 16


def make() -> str:
    return secrets.token_hex(32)


def read(environ: Mapping[str, str]) -> str:
    """The secret of the environment."""
    found = environ.get(VARIABLE, "")
    if len(found) >= MIN_LENGTH:
        return found
    wrong = f"is shorter than {MIN_LENGTH} characters" if found else "is not set"
    raise NotReadyError(
        f"the launchers of this run need a shared secret, and {VARIABLE} {wrong}; "
        f"give all of them the same random one: export {VARIABLE}=$(openssl rand -hex 32)"
    )
