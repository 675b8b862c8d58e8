"""Copies records for sharing: only numbers and plain words are kept, names become placeholders."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainmark.record.metrics import METRICS
from trainmark.record.plan import Plan
from trainmark.record.recipe import Value
from trainmark.record.record import Record
from trainmark.record.timeline import PHASES

KINDS = {
    "host": "name of a host",
    "user": "name of a user",
    "path": "file or folder",
    "text": "something that is no plain word or number",
}
HOST_VARIABLES = ("SLURMD_NODENAME", "HOSTNAME", "HOST", "COMPUTERNAME", "NODENAME")
USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
PATH_VARIABLES = ("HOME", "USERPROFILE", "TRAINMARK_STORE", "TRAINMARK_CACHE")
LEFT_OUT = "(left out)"

_SECRET_NAME = re.compile(r"token|secret|passw|credential|api_?key|private_?key", re.IGNORECASE)
_HOME = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)([^\s/\\'\":;,]+)")
_USER_FIELD = re.compile(r"(^|_)user(_?name)?$|^login$|^owner$", re.IGNORECASE)
_PLAIN = re.compile(
    r"""-{0,2}[A-Za-z]{1,24}(?:['/-][A-Za-z]{1,24}){0,3}      # ordinary, images/s, warm-up, --repeat
    |[a-z]{1,16}(?:_[a-z]{1,16}){1,4}                         # rank_skew
    |[±≥≤<>=~+-]?\d[\d ]*(?:[.,]\d+){0,2}(?:[eE][+-]?\d{1,3})?(?:%|[A-Za-z]{1,3}|\s?[A-Za-z]{1,6}/s)?   # ±7.3, 2.80GHz
    |\d+(?:\.\d+)?/\d+(?:\.\d+)?|\d{1,2}:\d\d(?::\d\d)?|\d+x\d+   # used/total, times, topologies
    |(?:bf|fp|tf|b?float|u?int|amp-bf|amp-fp)\d{1,2}|e2e_time
    |/(?:sys|proc|dev)(?:/[a-z_]{1,16}){0,5}
    |(?:host|user|path|text)-\d+(?:'s)?
    |[<>=≥≤]{1,2}|[-–·±%@&|/…]""",
    re.VERBOSE,
)  # fmt: skip
"""What may stand in a sentence. A key, a serial number, an address or a path has other signs in it."""
_AROUND = "()[]{}'\"«»,;:.!?"
_VARIABLE = re.compile(
    r"(?:[A-Za-z_]{1,32}|\d+(?:\.\d+)?|(?:eth|ib|lo|eno)\d{0,2})(?:[,:=;](?:[A-Za-z_]{1,32}|\d+(?:\.\d+)?)?)*"
)
_SETTING = re.compile(r"(?:[A-Za-z0-9_+-]|\.(?=\d)| (?=\w)){0,64}")
"""A value of a recipe that is no path and no file: `1 epoch`, `llama3.1`."""
_VERSION = re.compile(r"(?:[A-Za-z]{1,12} )?\d+(?:\.\d+)*(?:(?:a|b|rc|\.post|\.dev)\d+)?(?:\+[a-z]{1,4}[\d.]*)?")
_KEY = re.compile(r"[A-Za-z_]{1,24}\d{0,2}(?:[ _.-][A-Za-z]{0,16}\d{0,2}){0,6}|\d{1,6}")

Rule = Callable[["_Copy", str], str]


def _keep(copy: _Copy, text: str) -> str:
    """What trainmark itself wrote, and what a user typed where that was asked for, without names that are known."""
    return copy.without_names(text)


def _sentence(copy: _Copy, text: str) -> str:
    return copy.sentence(text)


def _version(copy: _Copy, text: str) -> str:
    """Without what a vendor or an administrator has written behind it."""
    found = _VERSION.match(text)
    return found.group() if found else ""


def _first_part(copy: _Copy, text: str) -> str:
    """Ours is what stands before the first colon; behind it speak other programs."""
    ours, colon, _ = text.partition("\n")[0].partition(": ")
    return copy.sentence(ours) + (f": {LEFT_OUT}" if colon or "\n" in text else "")


def _variable(copy: _Copy, text: str) -> str:
    return text if _VARIABLE.fullmatch(text) and not copy.names_in(text) else LEFT_OUT


def _setting(copy: _Copy, text: str) -> str:
    return text if _SETTING.fullmatch(text) and not copy.names_in(text) else copy.placeholder("path", text)


def _skipped_file(copy: _Copy, text: str) -> str:
    """`folder/file: reason`, where spaces may be in the file's name: it ends at the first colon behind a slash."""
    folder, slash, rest = text.rpartition("/")
    file, colon, reason = rest.partition(": ")
    return copy.placeholder("path", folder + slash + file) + colon + copy.sentence(reason)


def _file(copy: _Copy, text: str) -> str:
    plain = re.fullmatch(r"[a-z_-]{1,24}\.[a-z0-9]{2,4}", text) and not copy.names_in(text)
    return text if plain else copy.placeholder("path", text)


def _host(copy: _Copy, text: str) -> str:
    return copy.placeholder("host", text)


RULES: Mapping[str, Rule | None] = {
    **dict.fromkeys(("kind", "run_id", "created", "status", "group", "item", "revision", "code", "sha256"), _keep),
    **dict.fromkeys(("event_files", "metrics", "quality", "series", "workload_facts", "device", "cpu"), _keep),
    **dict.fromkeys(("trainmark", "python", "torch", "numpy", "os", "libc", "plugin_version"), _version),
    **dict.fromkeys(("ended", "restarts.reason"), _first_part),
    "unavailable": _sentence,
    "host": _host,
    "variables": _variable,
    "skipped_files": _skipped_file,
    "artifacts.file": _file,
    **dict.fromkeys(("content", "tags", "note"), None),
}
"""What is done to the texts of a field, or of one of a certain parent, and below it; None drops the field. Every other
text is a sentence, of which only plain words stay."""
LABELS: Mapping[str, Rule] = {"tags": _keep, "note": _keep}
"""What a user typed may hold anybody's name: it is kept only where that was asked for."""


@dataclass(frozen=True, kw_only=True)
class PublishableCopy:
    records: tuple[Record, ...]
    """In the order they were given."""
    replaced: tuple[str, ...]
    """Each placeholder and what it stands for, without the name itself."""
    dropped: int
    """Fields that may hold anything."""


def make_publishable(
    records: Sequence[Record], *, labels: bool = False, environment: Mapping[str, str] | None = None
) -> PublishableCopy:
    """Copies of the records that are safe to share, and what was replaced in them.

    One name gets one placeholder in all records of a call, so that two runs on one host are still seen to be. Names of
    this machine and its user are looked for too; `environment` stands for its variables in tests. With `labels`, tags
    and notes are kept as they were typed but for such names.
    """
    copy = _Copy([record.to_json() for record in records], environment, {**RULES, **LABELS} if labels else RULES)
    safe = tuple(copy.of(record) for record in records)
    left = "\n".join(record.dumps() for record in safe)  # of a word within a path only the path's is left
    given = sorted(copy.given.items(), key=lambda entry: list(KINDS).index(entry[0][0]))
    replaced = tuple(f"{placeholder}: {KINDS[kind]}" for (kind, _), placeholder in given if placeholder in left)
    return PublishableCopy(records=safe, replaced=replaced, dropped=copy.dropped)


class _Copy:
    """Gives out placeholders, and remembers which name has which."""

    def __init__(
        self,
        documents: Sequence[Mapping[str, Any]],
        environment: Mapping[str, str] | None,
        rules: Mapping[str, Rule | None],
    ) -> None:
        self.dropped = 0
        self._rules = rules
        self.given: dict[tuple[str, str], str] = {}
        self._words = frozenset(_list_ordinary_words(documents))
        self._own = {word for document in documents for word in (*_list_own_words(document), document["run_id"])}
        self._own |= {*METRICS}
        names = {(kind, name.strip()) for kind, name in _find_names(documents, environment) if name.strip("/ ")}
        self._kinds = {
            name.lower(): kind for kind, name in sorted(names, reverse=True)
        }  # a host before a user of its name
        known = sorted({name for _, name in names}, key=len, reverse=True)
        ends = r"(?:\.[a-z][\w-]*)*"  # a host's domain
        below = r"(?:/[^\s'\",;:()]*)?"
        patterns = []
        for name in known:
            kind, plain = self._kinds[name.lower()], name.lower() in self._words or len(name) < 3
            after = ends if kind == "host" else below if kind == "path" else ""
            before = r"(?<=\bon )" if plain else r"(?<![^\W_])"
            if not plain or kind == "host":
                patterns.append(f"{before}{re.escape(name)}{after}(?![^\\W_])")
        self._known = re.compile("|".join(patterns), re.IGNORECASE) if patterns else None

    def of(self, record: Record) -> Record:
        plan = self._plan(record.plan)
        document = {name: value for name, value in record.to_json().items() if name != "plan"}
        # first, so that host-1 is the host of rank 0, whoever a sentence names first
        document = {"series": document["series"], **document}
        copied = {**self._apply(document, "", _sentence), "plan": plan.to_json()}
        return Record.from_json(copied, None if record.means_only else lambda file: record.steps)

    def _plan(self, plan: Plan) -> Plan:
        """The plan with other places. Its fingerprint covers no place, and changes only with a path in the recipe."""

        source = plan.workload_source

        def place(text: str) -> str:
            return self.placeholder("path", text) if text else text

        def setting(value: Value) -> Value:
            return _setting(self, value) if isinstance(value, str) else value

        return replace(
            plan,
            recipe={name: setting(value) for name, value in plan.recipe.items()},
            deviations=tuple(
                replace(one, reference=setting(one.reference), actual=setting(one.actual)) for one in plan.deviations
            ),
            data=replace(plan.data, folder=place(plan.data.folder)),
            workload_source=source and replace(source, file=place(source.file)),
            resume_from=place(plan.resume_from or "") or None,
            init_from=place(plan.init_from or "") or None,
            # by its ending a platform file of the user's own is told from the name of one of ours
            platform=f"{place(plan.platform)}.toml" if plan.platform.endswith(".toml") else plan.platform,
        )

    def _apply(self, value: Any, field: str, rule: Rule) -> Any:
        if isinstance(value, str):
            return rule(self, value)
        if isinstance(value, (list, tuple)):
            return value if _holds_numbers(value) else [self._apply(entry, field, rule) for entry in value]
        if not isinstance(value, Mapping):
            return value
        kept: dict[str, Any] = {}
        for name, entry in value.items():
            found = self._rules.get(f"{field}.{name}", self._rules.get(name, rule))
            if found is None or not (name in self._rules or self.is_plain_key(name)):
                self.dropped += 1
            else:
                kept[name] = self._apply(entry, name, found)
        return kept

    def is_plain_key(self, key: object) -> bool:
        return isinstance(key, str) and (
            key in self._own or (_KEY.fullmatch(key) is not None and not self.names_in(key))
        )

    def sentence(self, text: str) -> str:
        """The sentence with every word that is not a plain one replaced."""
        words = re.split(r"(\s+)", self.without_names(text))
        return "".join(word if index % 2 else self._word(word) for index, word in enumerate(words))

    def _word(self, word: str) -> str:
        core = word.strip(_AROUND)
        if not core or core in self._own or _PLAIN.fullmatch(core):
            return word
        begin = word.index(core)
        looks_like_path = core[0] in "/~" or "\\" in core
        placeholder = self.placeholder("path" if looks_like_path else "text", core)
        return word[:begin] + placeholder + word[begin + len(core) :]

    def names_in(self, text: str) -> bool:
        return self._known is not None and self._known.search(text) is not None

    def without_names(self, text: str) -> str:
        def hide(match: re.Match[str]) -> str:
            name = match.group()
            kind = next((kind for known, kind in self._kinds.items() if name.lower().startswith(known)), "text")
            return self.placeholder(self._kinds.get(name.lower(), kind), name)

        return self._known.sub(hide, text) if self._known else text

    def placeholder(self, kind: str, text: str) -> str:
        """One for each name; a host's short and its full name have the same."""
        key = kind, text.lower().partition(".")[0] if kind == "host" else text.rstrip("/")
        return self.given.setdefault(key, f"{kind}-{sum(held == kind for held, _ in self.given) + 1}")


def _find_names(
    documents: Sequence[Mapping[str, Any]], environment: Mapping[str, str] | None
) -> Iterator[tuple[str, str]]:
    """Hosts, users, folders and secrets that records say of themselves anywhere, and those of this machine."""
    around = os.environ if environment is None else environment
    hosts = [around.get(name, "") for name in HOST_VARIABLES] + ([socket.gethostname()] if environment is None else [])
    yield from (("user", around.get(name, "")) for name in USER_VARIABLES)
    yield from (("path", around.get(name, "").rstrip("/")) for name in PATH_VARIABLES)
    yield from (("text", value) for name, value in around.items() if _SECRET_NAME.search(name) and len(value) > 3)
    yield from (("user", user) for value in around.values() for user in _HOME.findall(value))
    for document in documents:
        for field, value in _walk_strings(document):
            yield from (("user", user) for user in _HOME.findall(value))
            if field == "host":
                hosts.append(value)
            elif _USER_FIELD.search(field):
                yield "user", value
            elif field in ("folder", "resume_from", "init_from") or (field == "file" and "/" in value):
                yield "path", value.rstrip("/")
                if field != "folder":  # sentences call such a file by the last part of its path
                    yield "path", value.rstrip("/").rpartition("/")[2]
        for value in document["plan"]["recipe"].values():
            if isinstance(value, str) and not _SETTING.fullmatch(value):
                yield from (("path", value.rstrip("/")), ("path", value.rstrip("/").rpartition("/")[2]))
    yield from (("host", name) for host in hosts for name in (host, host.partition(".")[0]))


def _walk_strings(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _walk_strings(entry, str(name))
    elif isinstance(value, (list, tuple)) and not _holds_numbers(value):
        for entry in value:
            yield from _walk_strings(entry, field)


def _holds_numbers(values: Sequence[Any]) -> bool:
    """A series, which may be long."""
    return all(entry is None or isinstance(entry, (int, float)) for entry in values)


def _list_ordinary_words(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Words that our own sentences and devices are made of: as somebody's name they tell nothing."""
    yield from ("root", "user", "admin", "localhost", "node", "gpu", "machine", "worker", "home", "data")
    texts = [text for metric in METRICS.values() for text in (metric.definition, metric.formula, metric.name)]
    texts += [*PHASES, *METRICS, "machines"]
    for document in documents:
        about = document["environment"]
        texts += [*document, *about]
        texts += [str((about.get(name) or {}).get("name", "")) for name in ("device", "cpu")]
        texts += [str(document["item"]), *_list_own_words(document)]
    yield from re.findall(r"[^\W_]+", " ".join(texts).lower().replace("_", " "))


def _list_own_words(document: Mapping[str, Any]) -> Iterator[str]:
    plan = document["plan"]
    yield from (str(plan[name]) for name in ("workload", "recipe_name", "precision"))
    yield from (*plan["recipe"], document["quality"]["name"], str(plan["data"]["name"]))
