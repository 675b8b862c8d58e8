"""Reads a TOML table as a msgspec struct, with errors that name the key."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from trainmark.record.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = TypeVar("Table", bound=msgspec.Struct)

_WORDS: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list",
    list: "a list",
    dict: "a table",
    Mapping: "a table",
    re.Pattern: "a regular expression",
}


def load_toml(path: Path) -> dict[str, Any]:
    """The document in a file; OSError where it cannot be read, ValueError where it is no TOML."""
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return document


def read(kind: type[Table], table: object, where: str, **given: object) -> Table:
    """A struct from its table; `where` starts every error, `given` are fields that are no keys of the table.

    A ValueError of `__post_init__` becomes a UsageError, too.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{where} must be a table, not {table!r}")
    fields = {field.encode_name: field for field in _fields(kind) if field.name not in given}
    tag = kind.__struct_config__.tag_field
    values = dict(given)
    for key, value in table.items():
        if key in fields:
            values[fields[key].name] = _value(fields[key].type, value, where, key)
        elif key != tag:
            raise UsageError(f"{where}: key {key!r} is not known; {nearest(key, [*fields, *filter(None, [tag])])}")
    for key, field in fields.items():
        if field.required and key not in table:
            raise UsageError(f"{where}: key {key!r} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _value(kind: Any, value: object, where: str, key: str) -> object:
    bare, meta = _parts(kind)
    described = (meta and meta.description) or ""
    outer, members = get_origin(bare), get_args(bare)
    if structs := _structs(bare):
        return _read_tagged(structs, value, f"{where}: {key}")
    if outer is tuple and _structs(members[0]):
        if not isinstance(value, list):
            raise UsageError(f"{where}: {key} must be a list, not {value!r}")
        return tuple(_value(members[0], one, where, f"{key}, entry {number}") for number, one in enumerate(value, 1))
    if outer is Mapping and isinstance(value, Mapping) and not described:
        return {name: _value(members[1], one, where, f"{key} of {name}") for name, one in value.items()}
    if any(re.Pattern in (member, get_origin(member)) for member in (bare, *members)):
        return (
            tuple(_pattern(one, where, key) for one in value)
            if isinstance(value, list)
            else _pattern(value, where, key)
        )
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if outer is Literal:
            raise UsageError(f"{where}: {key} {value!r} is not known; {nearest(str(value), members)}") from None
        if meta and meta.pattern and isinstance(value, str):
            raise UsageError(f"{where}: {key} {value!r} is not {described}") from None
        word = "text" if meta and meta.pattern else described or _WORDS.get(outer or bare, str(bare))
        raise UsageError(f"{where}: {key} must be {word}, not {value!r}") from None


def _parts(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    """A type without None and without its constraints; and these."""
    meta = None
    while True:
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)
        elif type(None) in get_args(kind):
            kind = Union[tuple(member for member in get_args(kind) if member is not type(None))]  # noqa: UP007
        else:
            return kind, meta


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    """The structs a value may be; empty where it is something else."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [member for member in members if isinstance(member, type) and issubclass(member, msgspec.Struct)]


def _read_tagged(kinds: list[type[msgspec.Struct]], value: object, where: str) -> msgspec.Struct:
    """One of several structs, distinguished by their tag."""
    if len(kinds) == 1 or not isinstance(value, Mapping):
        return read(kinds[0], value, where)
    tag = str(kinds[0].__struct_config__.tag_field)
    named = {str(kind.__struct_config__.tag): kind for kind in kinds}
    if tag not in value:
        keys = {tag, *(field for kind in kinds for field in kind.__struct_encode_fields__)}
        for key in value:
            if key not in keys:
                raise UsageError(f"{where}: key {key!r} is not known; {nearest(key, keys)}")
        raise UsageError(f"{where}: key {tag!r} is missing")
    chosen = value[tag]
    if chosen not in named:
        raise UsageError(f"{where}: {tag} {chosen!r} is not known; {nearest(str(chosen), named)}")
    own = named[chosen].__struct_encode_fields__
    for key in value:
        if key not in own and any(key in kind.__struct_encode_fields__ for kind in kinds):
            raise UsageError(f"{where}: {key} does not go with {tag} {chosen!r}")
    return read(named[chosen], value, where)


def _pattern(value: object, where: str, key: str) -> re.Pattern[str]:
    if not isinstance(value, str):
        raise UsageError(f"{where}: {key} must be a regular expression, not {value!r}")
    try:
        return re.compile(value, re.MULTILINE)
    except re.error as error:
        raise UsageError(f"{where}: {key} {value!r} is not a regular expression: {error}") from None
