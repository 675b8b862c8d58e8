"""Spells out units written with µ, Ω and Å, whose sound is not that of the letters they look like."""

from __future__ import annotations

import re

_MICRO = "µμ"  # the sign, and the Greek letter that looks the same
_OHM = "Ω\u2126"
_ANGSTROM = "Å\u212b"
_PREFIXES = {**dict.fromkeys(_MICRO, "micro"), "n": "nano", "m": "milli", "k": "kilo", "M": "mega", "G": "giga"}
_WORDS = """
    m meter  s second  g gram  l liter  L liter  mol mole  A ampere  V volt  W watt  J joule  N newton  Pa pascal
    C coulomb  F farad  T tesla  H henry  Hz hertz  eV electronvolt  Sv sievert  Gy gray  Bq becquerel  bar bar  M molar
"""
_NAMES: dict[str, str] = {
    **dict(re.findall(r"(\w+) (\w+)", _WORDS)),
    **dict.fromkeys(_OHM, "ohm"),
    **dict.fromkeys(_ANGSTROM, "angstrom"),
    **dict.fromkeys(_MICRO, "micron"),
}
_PLURALS = {"henry": "henries", "hertz": "hertz", "molar": "molar"}
_POWERS = {"²": "square ", "³": "cubic "}

_AFTER_MICRO = "|".join(sorted(set(_NAMES) - {*_MICRO, *_ANGSTROM}, key=len, reverse=True))
_UNIT = re.compile(
    rf"(?<![^\W\d_])(?:(?P<micro>[{_MICRO}])(?P<of_micro>{_AFTER_MICRO})|(?P<prefix>[nmkMG])(?P<ohm>[{_OHM}])"
    rf"|(?P<alone>[{_MICRO}{_OHM}{_ANGSTROM}]))(?P<power>[²³]?)(?![^\W_])(?P<after>/(?=[^\W\d_])|-?)"
)
_ONE = re.compile(r"(?:^|[^0-9.,])1[ -]?$")


def spell_units(text: str) -> str:
    """The text with such units as words: one of a thing, or a thing of so many, has no plural."""
    return _UNIT.sub(_spelt, text)


def _spelt(found: re.Match[str]) -> str:
    before = found.string[max(found.start() - 3, 0) : found.start()]
    gap = "" if before[-1:] in "0123456789" else before[-1]
    counted = before.removesuffix(gap)[-1:].isdigit()
    if found["alone"] and not counted:
        return found[0]  # a letter of its own
    name = _NAMES[found["of_micro"] or found["ohm"] or found["alone"]]
    if not _ONE.search(before) and "-" not in (gap, found["after"]):
        name = _PLURALS.get(name, f"{name}s")
    words = _POWERS.get(found["power"], "") + _PREFIXES.get(found["micro"] or found["prefix"], "") + name
    return f"{' ' if counted and not gap else ''}{words}{' per ' if found['after'] == '/' else found['after']}"
