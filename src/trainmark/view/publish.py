"""Copies records for sharing: only listed fields are kept, names become placeholders."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainmark.record.metrics import METRICS
from trainmark.record.plan import Plan
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
_SETTING = re.compile(
    r"(?:[A-Za-z_]{1,32}|\d+(?:\.\d+)?|(?:eth|ib|lo|eno)\d{0,2})(?:[,:=;](?:[A-Za-z_]{1,32}|\d+(?:\.\d+)?)?)*"
)
_VERSION = re.compile(r"(?:[A-Za-z]{1,12} )?\d+(?:\.\d+)*(?:(?:a|b|rc|\.post|\.dev)\d+)?(?:\+[a-z]{1,4}[\d.]*)?")
_KEY = re.compile(r"[A-Za-z_]{1,24}\d{0,2}(?:[ _.-][A-Za-z]{0,16}\d{0,2}){0,6}|\d{1,6}")

Rule = Callable[["_Copy", Any], Any]


def _keep(copy: _Copy, value: Any) -> Any:
    """What trainmark itself wrote; only names that are known to be somebody's are taken out of it."""
    return copy.without_names(value) if isinstance(value, str) else value


def _version(copy: _Copy, value: Any) -> Any:
    """Without what a vendor or an administrator has written behind it."""
    found = _VERSION.match(value) if isinstance(value, str) else None
    return found.group() if found else ""


def _text(copy: _Copy, value: Any) -> Any:
    return copy.sentence(value) if isinstance(value, str) else None


def _first_part(copy: _Copy, value: Any) -> Any:
    """Ours is what stands before the first colon; behind it speak other programs."""
    if not isinstance(value, str):
        return None
    ours, colon, _ = value.partition("\n")[0].partition(": ")
    return copy.sentence(ours) + (f": {LEFT_OUT}" if colon or "\n" in value else "")


def _setting(copy: _Copy, value: Any) -> Any:
    plain = isinstance(value, str) and _SETTING.fullmatch(value) and not copy.names_in(value)
    return value if plain else LEFT_OUT


def _replace_skipped(copy: _Copy, value: Any) -> Any:
    """`folder/file: reason`, where spaces may be in the file's name: it ends at the first colon behind a slash."""
    folder, slash, rest = str(value).rpartition("/")
    file, colon, reason = rest.partition(": ")
    return copy.placeholder("path", folder + slash + file) + colon + copy.sentence(reason)


def _file(copy: _Copy, value: Any) -> Any:
    plain = re.fullmatch(r"[a-z_-]{1,24}\.[a-z0-9]{2,4}", str(value)) and not copy.names_in(str(value))
    return value if plain else copy.placeholder("path", str(value))


def _host(copy: _Copy, value: Any) -> Any:
    return copy.placeholder("host", str(value))


def _data(copy: _Copy, value: Any) -> Any:
    """Numbers under plain names, and sentences about them."""
    if isinstance(value, Mapping):
        return {key: _data(copy, inner) for key, inner in value.items() if copy.is_plain_key(key)}
    if isinstance(value, (list, tuple)):
        if all(entry is None or isinstance(entry, (int, float)) for entry in value):
            return value  # a series
        return [_data(copy, entry) for entry in value]
    return _text(copy, value) if isinstance(value, str) else value


def _keep_typed(copy: _Copy, value: Any) -> Any:
    """What a user typed, without the names that are known."""
    return copy.without_names(str(value))


ANY = "*"
_DEVICE = dict.fromkeys(
    ("type", "name", "count", "count_visible", "memory_bytes", "power_w", "driver", "stand_in"), _keep
)
_CPU = dict.fromkeys(("name", "logical_cores", "usable_cores", "capability", "memory_bytes"), _keep)
KEPT: Mapping[str, Any] = {
    "series": {
        "ranks": {"host": _host, ANY: _data},
        **dict.fromkeys(("warmup_steps", "steady_from", "loss", "file", "points"), _keep),
    },
    **dict.fromkeys(("schema", "kind", "run_id", "created", "status", "group", "item"), _keep),
    "trainmark": _version,
    "revision": _keep,
    "event_files": {ANY: _keep},
    "ended": _first_part,
    "metrics": {ANY: {"value": _keep, "unit": _keep, "interval": _keep, "unavailable": _text}},
    "coverage": _text,
    "quality": {**dict.fromkeys(("name", "unit", "goal", "better", "value", "reached"), _keep), "history": _data},
    "doubts": {"code": _keep, "text": _text, "values": _data},
    "phases": _data,
    "restarts": {"step": _keep, "lost_s": _keep, "reason": _first_part, "damaged": _text},
    "environment": {
        **dict.fromkeys(("trainmark", "python", "torch", "numpy", "os", "libc"), _version),
        **dict.fromkeys(("distribution", "machine", "container"), _text),
        "device": _DEVICE,
        "platform": {"name": _text, "sha256": _keep, "plugin": _text, "plugin_version": _version},
        "cpu": _CPU,
        "variables": {ANY: _setting},
        **dict.fromkeys(("threads", "optimised_python", "emulated_precision", "foreign_load", "idle_power_w"), _keep),
        **dict.fromkeys(("suspended_s", "ranks_apart_at", "clock_gap_s"), _keep),
        **dict.fromkeys(("precision", "flops", "exchange", "link", "link_levels", "fill"), _data),
        **dict.fromkeys(("clock", "step_check", "checkpoint", "profile"), _data),
    },
    "skipped_files": _replace_skipped,
    "artifacts": {"file": _file, "caption": _text},
    "data_facts": _data,
    "telemetry": {"machines": {"host": _host, ANY: _data}},
    "workload_facts": {
        **dict.fromkeys(("name", "title", "item", "data_set", "task", "sample", "recipes"), _keep),
        **dict.fromkeys(("items_per_sample", "most_items_per_sample", "samples_per_epoch"), _keep),
        **dict.fromkeys(("least_loss", "flops_per_item"), _keep),
        "qualities": {
            **dict.fromkeys(("name", "unit", "better", "word", "plain", "least", "most"), _keep),
            **dict.fromkeys(("counted", "never_above", "bar", "bar_word"), _keep),
        },
        "reference": {ANY: _data},
    },
}
"""Every field of a copy beside its plan, and what is done to it, in a list to each entry. All else is dropped."""
LABELS: Mapping[str, Any] = {"tags": {ANY: _keep_typed}, "note": _keep_typed}
"""What a user typed may hold anybody's name: it is kept only where that was asked for."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One replaced name, without the name itself."""

    kind: str
    placeholder: str

    def __str__(self) -> str:
        return f"{self.placeholder}: {KINDS[self.kind]}"


@dataclass(frozen=True, kw_only=True)
class PublishableCopy:
    records: tuple[Record, ...]
    """In the order they were given."""
    replaced: tuple[Replacement, ...]
    dropped: int
    """Fields that are not on the list."""


def make_publishable(
    records: Sequence[Record], *, labels: bool = False, environment: Mapping[str, str] | None = None
) -> PublishableCopy:
    """Copies of the records that are safe to share, and what was replaced in them.

    One name gets one placeholder in all records of a call, so that two runs on one host are still seen to be. Names of
    this machine and its user are looked for too; `environment` stands for its variables in tests. With `labels`, tags
    and notes are kept as they were typed but for such names.
    """
    copy = _Copy([record.to_json() for record in records], environment, {**KEPT, **LABELS} if labels else KEPT)
    safe = tuple(copy.of(record) for record in records)
    left = "\n".join(record.dumps() for record in safe)  # of a word within a path only the path's is left
    given = sorted(copy.given.items(), key=lambda entry: list(KINDS).index(entry[0][0]))
    replaced = (Replacement(kind=kind, placeholder=placeholder) for (kind, _), placeholder in given)
    return PublishableCopy(
        records=safe, replaced=tuple(one for one in replaced if one.placeholder in left), dropped=copy.dropped
    )


class _Copy:
    """Gives out placeholders, and remembers which name has which."""

    def __init__(
        self, documents: Sequence[Mapping[str, Any]], environment: Mapping[str, str] | None, rules: Mapping[str, Any]
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
        document = record.to_json()
        # first, so that host-1 is the host of rank 0, whoever a sentence names first
        kept: dict[str, Any] = {"series": self._apply(KEPT["series"], document["series"])}
        plan = self._plan(record.plan)
        for name, value in document.items():
            if name in self._rules and name not in kept:
                kept[name] = self._apply(self._rules[name], value)
            self.dropped += name not in self._rules and name != "plan"
        return Record.from_json(
            {**kept, "plan": plan.to_json()}, None if record.means_only else lambda file: record.steps
        )

    def _plan(self, plan: Plan) -> Plan:
        """The plan with other places. Its recipe is what is compared and its fingerprint covers no place: both stay,
        except where a recipe names a file of weights."""

        source = plan.workload_source

        def place(text: str) -> str:
            return self.placeholder("path", text) if text else text

        files = {name: place(str(plan.recipe[name])) for name in plan.recipe if f"{name}_sha256" in plan.recipe}
        return replace(
            plan,
            recipe={**plan.recipe, **files},
            deviations=tuple(replace(one, actual=files.get(one.name, one.actual)) for one in plan.deviations),
            data=replace(plan.data, folder=place(plan.data.folder)),
            workload_source=source and replace(source, file=place(source.file)),
            resume_from=place(plan.resume_from or "") or None,
            init_from=place(plan.init_from or "") or None,
            # by its ending a platform file of the user's own is told from the name of one of ours
            platform=f"{place(plan.platform)}.toml" if plan.platform.endswith(".toml") else plan.platform,
        )

    def _apply(self, rule: Any, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and rule is not _data and rule is not _keep:
            return [self._apply(rule, entry) for entry in value]
        if not isinstance(rule, Mapping):
            return rule(self, value)
        if not isinstance(value, Mapping):
            return None
        kept: dict[str, Any] = {}
        for name, entry in value.items():
            found = rule.get(name) or (rule.get(ANY) if self.is_plain_key(name) else None)
            if found is None:
                self.dropped += 1
            else:
                kept[name] = self._apply(found, entry)
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
            elif field in ("folder", "resume_from", "init_from", "mels_from") or (field == "file" and "/" in value):
                yield "path", value.rstrip("/")
                if field != "folder":  # sentences call such a file by the last part of its path
                    yield "path", value.rstrip("/").rpartition("/")[2]
    yield from (("host", name) for host in hosts for name in (host, host.partition(".")[0]))


def _walk_strings(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _walk_strings(entry, str(name))
    elif isinstance(value, (list, tuple)) and not all(isinstance(entry, (int, float)) for entry in value):
        for entry in value:
            yield from _walk_strings(entry, field)


def _list_ordinary_words(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Words that our own sentences and devices are made of: as somebody's name they tell nothing."""
    yield from ("root", "user", "admin", "localhost", "node", "gpu", "machine", "worker", "home", "data")
    texts = [text for metric in METRICS.values() for text in (metric.definition, metric.formula, metric.name)]
    texts += [*PHASES, *METRICS, *KEPT, *KEPT["telemetry"], *KEPT["environment"]]
    for document in documents:
        about = document["environment"]
        texts += [str((about.get(name) or {}).get("name", "")) for name in ("device", "cpu")]
        texts += [str(document["item"]), *_list_own_words(document)]
    yield from re.findall(r"[^\W_]+", " ".join(texts).lower().replace("_", " "))


def _list_own_words(document: Mapping[str, Any]) -> Iterator[str]:
    plan = document["plan"]
    yield from (str(plan[name]) for name in ("workload", "recipe_name", "precision"))
    yield from (*plan["recipe"], document["quality"]["name"], str(plan["data"]["name"]))
