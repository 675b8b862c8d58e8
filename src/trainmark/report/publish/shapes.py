"""How keys, addresses, serial numbers and paths are told by their shape, wherever they stand in a text."""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise


def _always(text: str) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Text that must not be shared; where the pattern has a group named `hidden`, only that part of it is replaced."""

    kind: str
    """What its placeholder is called by: host, user, path, serial, address or secret."""
    pattern: re.Pattern[str]
    meant: Callable[[str], bool] = _always
    """A second look at what the pattern found."""


SECRET_WORD = (
    r"(?:password|passwd|passphrase|secret|token|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key)"  # noqa: S105 - words, not one of them
)
SECRET_NAME = re.compile(rf"(?:^|[_.-]|(?<=[a-z])(?=[A-Z])){SECRET_WORD}$", re.IGNORECASE)
"""Names of settings whose value nobody may see: WANDB_API_KEY, db-password, --token."""
SERIAL_NAME = re.compile(
    r"(?:^|[_.-])(?:serial(?:[_-]?(?:no|number))?|uuid|guid|(?:pci[_-]?)?bus[_-]?id)$", re.IGNORECASE
)
HOST_NAME = re.compile(r"(?:^|[_.-])(?:host|hostname|host_name|node_name|nodename|fqdn)$", re.IGNORECASE)
USER_NAME = re.compile(r"(?:^|[_.-])(?:user|username|user_name|login|owner|logname)$", re.IGNORECASE)
PATH_NAME = re.compile(r"(?:^|[_.-])(?:folder|path|dir|directory|cwd|home|pwd|resume_from|init_from)$", re.IGNORECASE)

_PART = r"[^\s/'\"`<>|:;,(){}\[\]]"
_BEFORE = r"(?<![^\s'\"`=:(\[{<,;|@])"
"""A path begins a text, or stands behind a space, a quote or a sign: `images/s` and `2.4/16` are none."""

_SPACE = rf" (?=(?!~)(?:{_PART}+ )?{_PART}+/)"
"""Belongs to the path where another folder's end follows within two words."""

BELOW = rf"(?:[/\\](?:\\\s|{_PART}|{_SPACE})*)*"
"""What may follow a known folder."""

SYSTEM_PATHS = {"/dev/shm", "/proc/meminfo", "/proc/stat", "/proc/cpuinfo", "/sys/class/powercap"}  # noqa: S108
"""Where trainmark itself looks on every machine; they tell nothing about one."""

_HEX = "[0-9A-Fa-f]"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return False
    return any(sign.isalnum() for sign in text)


def looks_random(text: str) -> bool:
    """Whether a long run of letters and digits is more likely a key than a word.

    Words keep to one kind of sign for long (`garbage_collection_threshold`); keys change between small letters,
    capitals and digits all the time, and use many different signs.
    """
    kinds = ["0" if sign.isdigit() else "A" if sign.isupper() else "a" if sign.isalpha() else "" for sign in text]
    letters = [kind for kind in kinds if kind]
    if len(set(letters)) < 2:
        return False
    if len(text) >= 32 and re.fullmatch(f"{_HEX}+", text):
        return True
    changes = sum(before != after for before, after in pairwise(letters))
    bits = -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())
    return changes >= len(letters) / 6 and bits >= 3.5


URL = Shape(kind="address", pattern=re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s'\"<>]+[^\s'\"<>.,;:!?)\]}]"))
"""Goes before all others: names, passwords and paths inside it are part of it."""

CERTAIN = (
    Shape(
        kind="secret",
        pattern=re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
    Shape(kind="secret", pattern=re.compile(r"\b(?:AKIA|ASIA|AGPA|AROA)[0-9A-Z]{12,}\b")),
    Shape(kind="secret", pattern=re.compile(r"\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|npm_|pypi-)[A-Za-z0-9_-]{8,}")),
    Shape(kind="secret", pattern=re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}")),
    Shape(kind="secret", pattern=re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{8,}")),
    Shape(kind="secret", pattern=re.compile(r"\bAIza[0-9A-Za-z_-]{20,}")),
    Shape(kind="secret", pattern=re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?")),
    Shape(kind="secret", pattern=re.compile(r"\b(?:Bearer|Basic)\s+(?P<hidden>[^\s'\",;]{4,})", re.IGNORECASE)),
    Shape(
        kind="secret",
        pattern=re.compile(
            rf"(?:\b|_)(?:{SECRET_WORD}|pwd)['\"]?(?:\s*[=:]\s*|\s+(?=['\"]))"
            r"(?:\"(?P<hidden>[^\"\n]+)\"|'(?P<quoted>[^'\n]+)'|(?P<bare>[^\s'\"&;,]+))",
            re.IGNORECASE,
        ),
    ),
    Shape(kind="secret", pattern=re.compile(rf"--?{SECRET_WORD}\s+(?P<hidden>[^\s'\"-][^\s'\"]*)", re.IGNORECASE)),
    Shape(kind="address", pattern=re.compile(r"(?<![\w.+-])[\w.+-]+@[A-Za-z0-9](?:[\w-]*\w)?(?:\.[\w-]*\w)*")),
    Shape(
        kind="serial",
        pattern=re.compile(rf"\b(?:[A-Z]{{2,5}}-)?{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}\b"),
    ),
)
"""Shapes nothing else has; they are replaced even in the fields that are kept for comparing."""


def _tells(path: str) -> bool:
    return path.rstrip("./") not in SYSTEM_PATHS


QUOTED_PATH = Shape(
    kind="path",
    pattern=re.compile(r"(?P<mark>['\"`])(?P<hidden>(?:~\w*|[A-Za-z]:)?[/\\][^'\"`\n]+)(?P=mark)"),
    meant=_tells,
)
PATHS = (
    Shape(
        kind="path",
        pattern=re.compile(rf"{_BEFORE}(?:~[\w.-]*)?(?:/(?:\\\s|{_PART}|{_SPACE})+)+/?"),
        meant=_tells,
    ),
    Shape(kind="path", pattern=re.compile(r"(?<![A-Za-z0-9])[A-Za-z]:\\[^\s'\"<>|:;,]+")),
    Shape(kind="path", pattern=re.compile(r"(?<![^\s'\"=(])\\\\[\w.$-]+\\[^\s'\"<>|:;,]+")),
)

DEVICES = (
    Shape(kind="serial", pattern=re.compile(rf"(?<![\w.])(?:{_HEX}{{4,8}}:)?{_HEX}{{2}}:{_HEX}{{2}}\.[0-7](?![\w.])")),
    Shape(
        kind="serial",
        pattern=re.compile(
            r"\b(?:serial(?:\s*(?:no\.?|number|#))?|S/?N)\s*[:=#]?\s*(?P<hidden>(?=[\w-]*\d)[A-Z0-9][\w-]{3,})",
            re.IGNORECASE,
        ),
    ),
    Shape(kind="serial", pattern=re.compile(rf"\b0x{_HEX}{{16}}\b")),
)

ADDRESSES = (
    Shape(kind="address", pattern=re.compile(rf"(?<![\w:-])(?:{_HEX}{{2}}[:-]){{5}}{_HEX}{{2}}(?![\w:-])")),
    Shape(kind="address", pattern=re.compile(rf"\benx{_HEX}{{12}}\b")),
    Shape(kind="address", pattern=re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)"), meant=_is_address),
    Shape(
        kind="address",
        pattern=re.compile(rf"(?<![\w:])(?:{_HEX}{{0,4}}:){{2,7}}{_HEX}{{0,4}}(?:%\w+)?(?![\w:])"),
        meant=_is_address,
    ),
)

RANDOM = Shape(kind="secret", pattern=re.compile(r"(?<![\w+/=-])[\w+/=-]{20,}", re.ASCII), meant=looks_random)
