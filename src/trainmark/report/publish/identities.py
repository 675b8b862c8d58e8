"""Who and where: the names of hosts, users, folders and secrets that one machine's records may mention."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from trainmark.report.publish.shapes import BELOW, HOST_NAME, PATH_NAME, SECRET_NAME, SERIAL_NAME, USER_NAME, Shape
from trainmark.spec.metrics import METRICS
from trainmark.spec.record import Record
from trainmark.spec.timeline import PHASES

HOST_VARIABLES = ("SLURMD_NODENAME", "HOSTNAME", "HOST", "COMPUTERNAME", "NODENAME")
USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
PATH_VARIABLES = ("HOME", "USERPROFILE", "TRAINMARK_STORE", "TRAINMARK_CACHE")

_COMMON = """
admin batch bench benchmark build centos checkpoint client cloud cluster compute container controller cpu data debian
default demo dev device docker fedora file files frame frames gpu group guest head home host image images item items job
lab laptop launcher leader linux local localhost log login loss machine main master media memory model nobody node none
null party pod power process prod public rank ranks recipe root run runner runs sample samples sensor server service
share shared slave slurm speech staging step steps store student system tank target test tester time train trainer
training trainmark ubuntu unavailable unknown user users vagrant valid var vm work worker workers workload workspace
"""
"""Names so common that they tell nothing, and that ordinary sentences are made of."""
_FIELDS = """
actual artifacts asked autocast better bytes capability caption code computed convolution count coverage created curve
damaged deviations device devices doubts driver ended environment epoch every fill fingerprint flops folder generated
goal group history host interval item items kernel kind libc limits link load lost machines matmul metrics name names
numpy os phases plan precision python quality ran reached reason recipe reference restarts schema seconds seed series
short skipped status system target telemetry text threads throttled topology torch trainmark type unfit unit value
values variables weights
"""
"""One-word names of the record's own fields."""

_WORD = re.compile(r"[^\W_]+")
_HOME = re.compile(r"(?:^|[\s'\"=:])(?:/home/|/Users/|/export/home/|[A-Za-z]:\\Users\\)([^\s/\\'\":;,]+)")


@dataclass(frozen=True, kw_only=True)
class Identity:
    kind: str
    text: str
    same_as: str
    """Names with the same one get the same placeholder: a host's short and its full name."""


def collect(documents: Sequence[Any], environment: Mapping[str, str] | None) -> list[Identity]:
    """Every name the records hold in fields meant for one, and those of the machine this runs on."""
    around = os.environ if environment is None else environment
    hosts, users, paths, serials, secrets = [], [], [], [], []
    # sentences call such a file by the last part of its path
    files = [document["plan"].get(name) or "" for document in documents for name in ("init_from", "resume_from")]
    for document in documents:
        for name, value in _named(document):
            if HOST_NAME.search(name):
                hosts.append(value)
            elif USER_NAME.search(name):
                users.append(value)
            elif PATH_NAME.search(name):
                paths.append(value)
            elif SERIAL_NAME.search(name):
                serials.append(value)
            elif SECRET_NAME.search(name):
                secrets.append(value)
            users += _HOME.findall(value)
    hosts += [around[name] for name in HOST_VARIABLES if around.get(name)]
    if environment is None:
        hosts.append(socket.gethostname())
    users += [around[name] for name in USER_VARIABLES if around.get(name)]
    paths += [around[name] for name in PATH_VARIABLES if around.get(name)]
    users += [user for path in paths for user in _HOME.findall(path)]
    secrets += [value for name, value in around.items() if SECRET_NAME.search(name) and len(value) >= 6]
    return [
        *_hosts(_unlike(hosts)),
        *(Identity(kind="user", text=user, same_as=user.lower()) for user in _unlike(users)),
        *(Identity(kind="path", text=path, same_as=path) for path in _unlike(path.rstrip("/") for path in paths)),
        *(Identity(kind="path", text=_last_part(path), same_as=path.rstrip("/")) for path in _unlike(files)),
        *(Identity(kind="serial", text=serial, same_as=serial.lower()) for serial in _unlike(serials)),
        *(Identity(kind="secret", text=secret, same_as=secret) for secret in _unlike(secrets)),
    ]


def _last_part(path: str) -> str:
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name


def _named(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a document with the name of the field it stands in."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _named(entry, str(key))
    elif isinstance(value, (list, tuple)):
        if value and not isinstance(value[0], (int, float)):  # series are numbers throughout, and long
            for entry in value:
                yield from _named(entry, name)
    elif isinstance(value, str) and value.strip():
        yield name, value
    elif isinstance(value, int) and SERIAL_NAME.search(name):
        yield name, str(value)


def _unlike(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name.strip()))


def _hosts(names: Sequence[str]) -> Iterator[Identity]:
    """Hosts by their full and short names: node1.lab.example is node1, unless there is a node1 of another domain."""
    full_names: dict[str, set[str]] = {}
    for name in names:
        if label(name) != name.lower():
            full_names.setdefault(label(name), set()).add(name.lower())
    for name in names:
        alone = len(full_names.get(label(name), ())) < 2
        same_as = label(name) if alone else name.lower()
        yield Identity(kind="host", text=name, same_as=same_as)
        if alone and label(name) != name.lower():
            yield Identity(kind="host", text=label(name), same_as=same_as)


def label(host: str) -> str:
    is_number = re.fullmatch(r"[\d.]+", host) or ":" in host
    return host.lower() if is_number else host.lower().split(".")[0]


@cache
def _our_words() -> frozenset[str]:
    """The words our own definitions are made of."""
    texts = [text for metric in METRICS.values() for text in (metric.definition, metric.formula, metric.name)]
    return frozenset(_WORD.findall(" ".join([*texts, *METRICS, *PHASES, _COMMON, _FIELDS]).lower().replace("_", " ")))


def ordinary(text: str, kept: frozenset[str]) -> bool:
    """Whether replacing this name in every sentence would shred ordinary words, or the names that must stay."""
    plain = text.strip("/\\").lower()
    return len(plain) < 3 or (plain.isdigit() and len(plain) < 6) or plain in _our_words() or plain in kept


def kept_words(records: Sequence[Record]) -> frozenset[str]:
    """Words of what is kept for comparing: devices, workloads, recipes, data sets."""
    texts: list[str] = []
    for record in records:
        plan = record.plan
        texts += [plan.workload, plan.recipe_name, plan.precision, plan.data.name, record.item, record.quality.name]
        texts += [*map(str, plan.recipe), *(value for value in plan.recipe.values() if isinstance(value, str))]
        for part in ("device", "cpu"):
            found = record.environment.get(part)
            texts.append(str(found.get("name", "")) if isinstance(found, Mapping) else "")
    return frozenset(
        word for text in dict.fromkeys(texts) for word in (text.lower(), *_WORD.findall(text.lower().replace("_", " ")))
    )


_BEHIND = {
    "path": BELOW + r"(?![\w-])",
    "host": r"(?:\.[A-Za-z0-9][A-Za-z0-9-]*)*(?![A-Za-z0-9])",
}
"""What else belongs to a known name, and that it ends there."""


def known_shapes(identities: Sequence[Identity], kept: frozenset[str]) -> dict[str, list[Shape]]:
    """The known names as patterns, by kind. A host with an ordinary name is looked for only where our own sentences
    name a host; anything else with one only in the fields that are meant for it."""
    shapes: dict[str, list[Shape]] = {}
    for kind in ("secret", "path", "serial", "host", "user"):
        names = sorted({entry.text for entry in identities if entry.kind == kind}, key=lambda name: (-len(name), name))
        telling = [name for name in names if not ordinary(name, kept)]
        patterns = []
        if telling:
            patterns.append(f"(?:{'|'.join(map(_begun, telling))})" + _BEHIND.get(kind, "(?![A-Za-z0-9])"))
        if kind == "host" and len(telling) < len(names):
            patterns.append(_where_named([name for name in names if name not in telling]))
        flags = re.IGNORECASE if kind in ("host", "user", "serial") else 0
        shapes[kind] = [Shape(kind=kind, pattern=re.compile(pattern, flags)) for pattern in patterns]
    return shapes


def _begun(name: str) -> str:
    return (r"(?<![A-Za-z0-9])" if name[0].isalnum() else r"(?<![\w.~-])") + re.escape(name)


def _where_named(hosts: Sequence[str]) -> str:
    """`rank 1 on node`, `device 0 of node`, `... on node` at an end, `node was lost`."""
    names = "|".join(map(re.escape, hosts))
    return (
        rf"\b(?:rank \d+ on|device \d+ of) (?P<hidden>{names})(?![A-Za-z0-9])|\bon (?P<quoted>{names})$"
        rf"|^(?P<bare>{names})(?= is not ready| was lost)"
    )
