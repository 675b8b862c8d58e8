"""Makes copies of records that are safe to share: names, places and secrets become placeholders, results stay."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainmark.report.publish import identities, shapes
from trainmark.report.publish.shapes import Shape
from trainmark.spec.plan import Plan
from trainmark.spec.record import Record

KINDS = {
    "host": "name of a host",
    "user": "name of a user",
    "path": "file or folder",
    "serial": "serial number of a device",
    "address": "address",
    "secret": "secret",
}

Place = tuple[str, ...]
"""The names of the fields that lead to a value."""

KEPT = {
    ("schema",), ("kind",), ("created",), ("trainmark",), ("status",), ("item",),
    ("quality", "name"), ("quality", "unit"), ("quality", "better"), ("metrics", "*", "unit"), ("doubts", "code"),
    ("environment", "device", "name"), ("environment", "device", "type"), ("environment", "device", "driver"),
    ("environment", "cpu", "name"), ("environment", "cpu", "capability"),
}  # fmt: skip
"""Fields that two results are compared by. Only what is unmistakably a key, an address or a serial goes from them."""
VERSIONS = {("environment", name) for name in ("trainmark", "python", "torch", "numpy", "os", "libc")}
NAMES = {("run_id",), ("group",)}
"""Made by trainmark with random digits at their end, which are no key."""


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One thing that was replaced; what it was is not told."""

    kind: str
    placeholder: str
    where: Mapping[str, int]
    """Parts of the record, and how often it stood there."""

    def __str__(self) -> str:
        times = sum(self.where.values())
        return f"{self.placeholder}: {KINDS[self.kind]}, {times} time{'s' * (times > 1)} in {', '.join(self.where)}"


@dataclass(frozen=True, kw_only=True)
class Published:
    records: tuple[Record, ...]
    """In the order they were given."""
    replaced: tuple[Replacement, ...]


def publishable(records: Sequence[Record], *, environment: Mapping[str, str] | None = None) -> Published:
    """Copies of the records that are safe to share, and what was replaced in them.

    One name gets one placeholder in all records of a call, so that two runs on one host are still seen to be. Names of
    this machine and its user are looked for too; `environment` stands for its variables in tests.
    """
    documents = [record.to_json() for record in records]
    known = identities.collect(documents, environment)
    cover = _Cover(known, identities.kept_words(records), frozenset(record.run_id for record in records))
    safe = tuple(_safe(record, document, cover) for record, document in zip(records, documents, strict=True))
    return Published(records=safe, replaced=cover.replaced())


def _safe(record: Record, document: Mapping[str, Any], cover: _Cover) -> Record:
    plan = _safe_plan(record.plan, cover)
    first = {"series": document["series"]}  # so that host-1 is the host of rank 0, whoever a sentence names first
    rest = {name: value for name, value in document.items() if name not in ("plan", "series")}
    return Record.from_json({**cover.walk(first), **cover.walk(rest), "plan": plan.to_json()})


def _safe_plan(plan: Plan, cover: _Cover) -> Plan:
    """The plan with other places. Its recipe is what is compared, and its fingerprint covers no place: both stay."""

    def place(text: str) -> str:
        return cover.whole("path", text, ("plan",)) if text else text

    return replace(
        plan,
        data=replace(plan.data, folder=place(plan.data.folder)),
        resume_from=place(plan.resume_from or "") or None,
        init_from=place(plan.init_from or "") or None,
        # by its ending a platform file of the user's own is told from the name of one of ours
        platform=f"{place(plan.platform)}.toml" if plan.platform.endswith(".toml") else plan.platform,
    )


class _Cover:
    """Gives out placeholders, and remembers which name has which."""

    def __init__(self, known: Sequence[identities.Identity], kept: frozenset[str], run_ids: frozenset[str]) -> None:
        self._same = {(entry.kind, _key(entry.kind, entry.text)): entry.same_as for entry in known}
        self._given: dict[tuple[str, str], str] = {}
        self._seen: dict[str, dict[str, int]] = {}
        self._our_fields: set[str] = set()
        found = identities.known_shapes(known, kept)
        random = replace(shapes.RANDOM, meant=lambda text: text not in run_ids and shapes.looks_random(text))
        names = (*found["serial"], *found["host"], *found["user"])
        secrets = (shapes.URL, *found["secret"])
        # whole paths first: they may hold what looks like something else
        places = (shapes.QUOTED_PATH, *found["path"], *shapes.CERTAIN, *shapes.PATHS)
        self._certain = (*secrets, *found["serial"], *shapes.CERTAIN)
        self._names = (*secrets, *shapes.CERTAIN, *names)
        self._versions = (*secrets, *places, *names)
        self._all = (*secrets, *places, *shapes.DEVICES, *names, *shapes.ADDRESSES, random)

    def walk(self, value: Any, place: Place = ()) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, place)
        if isinstance(value, (list, tuple)):
            if value and all(isinstance(entry, (int, float, type(None))) for entry in value):
                return value  # a series
            return list(self._items(value, place))
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, int) and not isinstance(value, bool) and place and shapes.SERIAL_NAME.search(place[-1]):
            return self.whole("serial", str(value), place)
        return value

    def whole(self, kind: str, text: str, place: Place) -> str:
        """The placeholder of a text that is such a name from end to end."""
        key = (kind, self._one_of(kind, _key(kind, text)))
        if key not in self._given:
            count = sum(held == kind for held, _ in self._given)
            self._given[key] = f"{kind}-{count + 1}"
        placeholder = self._given[key]
        where = self._seen.setdefault(placeholder, {})
        part = place[0] if place else "record"
        where[part] = where.get(part, 0) + 1
        return placeholder

    def _one_of(self, kind: str, name: str) -> str:
        """The name by which a thing with several is known here."""
        short = identities.label(name) if kind == "host" else name
        return self._same.get((kind, name)) or self._same.get((kind, short)) or name

    def replaced(self) -> tuple[Replacement, ...]:
        order = list(KINDS)
        given = sorted(self._given.items(), key=lambda entry: order.index(entry[0][0]))
        return tuple(
            Replacement(kind=kind, placeholder=placeholder, where=self._seen[placeholder])
            for (kind, _), placeholder in given
        )

    def _mapping(self, value: Mapping[str, Any], place: Place) -> dict[str, Any]:
        walked: dict[str, Any] = {}
        for name, entry in value.items():
            shown = self._field(str(name), place)
            inside = (*place, name if shown == name else "*")
            while shown in walked:  # a host by its short and its full name
                shown += "'"
            walked[shown] = self.walk(entry, inside)
        return walked

    def _field(self, name: str, place: Place) -> str:
        """The name of a field. One that reads like our own is somebody's name only as a whole."""
        if name not in self._our_fields and re.fullmatch(r"[a-z]+(_[a-z]+)*", name):
            if any((0, len(name)) in _spans(rule, name) for rule in self._all):
                return self._cut(name, self._all, place)
            self._our_fields.add(name)
        return name if name in self._our_fields else self._cut(name, self._all, place)

    def _items(self, values: Sequence[Any], place: Place) -> Iterator[Any]:
        """Entries of a list; behind a word such as --token the next one is its value."""
        before: Any = None
        for value in values:
            hidden = isinstance(before, str) and before.startswith("-") and shapes.SECRET_NAME.search(before)
            if hidden and isinstance(value, str) and value:
                yield self.whole("secret", value, place)
            else:
                yield self.walk(value, place)
            before = value

    def _text(self, text: str, place: Place) -> str:
        if not text.strip() or not place:
            return text
        if place == ("skipped_files",):
            return self._skipped(text, place)
        if _among(place, KEPT):
            return self._cut(text, self._certain, place)
        for kind, names in (
            ("secret", shapes.SECRET_NAME),
            ("serial", shapes.SERIAL_NAME),
            ("host", shapes.HOST_NAME),
            ("user", shapes.USER_NAME),
            ("path", shapes.PATH_NAME),
        ):
            if names.search(place[-1]):
                return self.whole(kind, text.rstrip("/") or text if kind == "path" else text, place)
        if place in NAMES:
            return self._cut(text, self._names, place)
        return self._cut(text, self._versions if place in VERSIONS else self._all, place)

    def _skipped(self, text: str, place: Place) -> str:
        """`folder/file: reason`, where spaces may be in the file's name: it ends at the first colon behind a slash."""
        folder, slash, rest = text.rpartition("/")
        file, colon, reason = rest.partition(": ")
        if not slash:
            file, colon, reason = text.partition(": ")
        return self.whole("path", folder + slash + file, place) + colon + self._cut(reason, self._all, place)

    def _cut(self, text: str, rules: Sequence[Shape], place: Place) -> str:
        """The text with all that the rules find replaced. What one has replaced no other one sees."""
        for index, rule in enumerate(rules):
            found = _spans(rule, text)
            if found:
                parts, end = [], 0
                for begin, stop in found:
                    parts.append(self._cut(text[end:begin], rules[index + 1 :], place))
                    parts.append(self.whole(rule.kind, text[begin:stop], place))
                    end = stop
                return "".join([*parts, self._cut(text[end:], rules[index + 1 :], place)])
        return text


def _spans(rule: Shape, text: str) -> list[tuple[int, int]]:
    found = []
    for match in rule.pattern.finditer(text):
        named = [name for name in ("hidden", "quoted", "bare") if match.groupdict().get(name)]
        begin, stop = match.span(named[0]) if named else match.span()
        if rule.meant(text[begin:stop]):
            found.append((begin, stop))
    return found


def _among(place: Place, known: set[Place]) -> bool:
    return place in known or (len(place) == 3 and (place[0], "*", place[2]) in known)


def _key(kind: str, text: str) -> str:
    return text.lower() if kind in ("host", "user", "serial", "address") else re.sub(r"/+$", "", text)
