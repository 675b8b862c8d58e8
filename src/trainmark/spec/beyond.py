"""What a document of a newer version holds beyond what this one knows: kept apart, shown, and written back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def beyond(document: Any, known: Any) -> dict[str, Any]:
    """The part of a document that `known`, which was made of it, does not hold; entries of a list go by their place."""
    if isinstance(document, Mapping) and isinstance(known, Mapping):
        pairs = [(str(name), value, name in known, known.get(name)) for name, value in document.items()]
    elif isinstance(document, list) and isinstance(known, (list, tuple)) and len(document) == len(known):
        if not document or not isinstance(document[0], Mapping):  # a series of numbers has no names to know
            return {}
        pairs = [(str(place), entry, True, known[place]) for place, entry in enumerate(document)]
    else:
        return {}
    found = {}
    for name, value, is_known, counterpart in pairs:
        if not is_known:
            found[name] = value
        elif more := beyond(value, counterpart):
            found[name] = more
    return found


def restored(known: Any, more: Mapping[str, Any]) -> Any:
    """A document with the part put back that `beyond` took out of it."""
    if not more:
        return known
    if isinstance(known, (list, tuple)):
        return [restored(entry, more.get(str(place), {})) for place, entry in enumerate(known)]
    whole = dict(known)
    for name, value in more.items():
        whole[name] = restored(known[name], value) if name in known else value
    return whole
