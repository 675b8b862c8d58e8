"""Spells out numbers, sums of money and units in English."""

from __future__ import annotations

import re

from num2words import num2words

_MAX_NAMED_DIGITS = 36
"""A longer number is read digit by digit."""
_CURRENCIES = {
    "$": (("dollar", "dollars"), ("cent", "cents")),
    "£": (("pound", "pounds"), ("penny", "pence")),
    "€": (("euro", "euros"), ("cent", "cents")),
}
CURRENCY_SIGNS = "".join(_CURRENCIES)

# each pattern may begin only where a run of digits begins, else a very long run would cost its length squared
_LISTED = re.compile(r"(?<![0-9])[0-9]+(?:,[0-9]+)+")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}")
_MONEY = re.compile(rf"([{CURRENCY_SIGNS}])([0-9]*)((?:\.[0-9]+)*)")
_DECIMAL = re.compile(r"(?<![0-9])([0-9]+)\.([0-9]+)")
_ORDINAL = re.compile(r"(?<![0-9])([0-9]+)(?:st|nd|rd|th)(?![a-z])")
_NUMBER = re.compile(r"[0-9]+")


def spell_numbers(text: str) -> str:
    """The text with digits and currency signs spelled out.

    Each rule leaves digits to the rules after it, which is why $1,234 is "twelve thirty-four dollars".
    """
    text = _LISTED.sub(_remove_commas, text)
    text = _MONEY.sub(_spell_money, text)
    text = _DECIMAL.sub(_spell_decimal, text)
    text = _ORDINAL.sub(lambda found: _spell_ordinal(found[1]), text)
    return _NUMBER.sub(lambda found: _spell_number(found[0]), text)


def _remove_commas(found: re.Match[str]) -> str:
    # "1,234" and "12,34,567" are one number, "1,2,3" and "1999,2000" are several
    return found[0].replace(",", "") if _GROUPED.fullmatch(found[0]) else found[0]


def _spell_money(found: re.Match[str]) -> str:
    sign, whole, rest = found.groups()
    if not whole and not rest:
        return ""
    unit, part = _CURRENCIES[sign]
    before = found.string[max(found.start() - 1, 0) : found.start()]
    apart = " " if before.isalnum() else ""
    if rest and not re.fullmatch(r"\.[0-9]{2}", rest):
        return f"{apart}{whole or '0'}{rest} {unit[1]}"
    units, parts = whole.lstrip("0"), rest[1:].lstrip("0")
    said = [f"{units} {unit[units != '1']}"] if units else []
    said += [f"{parts} {part[parts != '1']}"] if parts else []
    return apart + (", ".join(said) or f"0 {unit[1]}")


def _spell_decimal(found: re.Match[str]) -> str:
    whole, fraction = found.groups()
    rest = fraction.lstrip("0")
    zeros = ["zero"] * (len(fraction) - len(rest))
    return " ".join([whole, "point", *zeros, *([rest] if rest else [])])


def _spell_number(digits: str) -> str:
    """A cardinal; 1001 to 2999 are read as years are, whatever they count."""
    if len(digits.lstrip("0")) != 4 or not 1000 < int(digits) < 3000:
        return _spell_cardinal(digits)
    if int(digits) < 1010:
        return f"ten oh {_spell_cardinal(digits[-1])}"
    return _spell(digits, "year").replace(" and ", " ").replace("oh-", "oh ")


def _spell_ordinal(digits: str) -> str:
    return _spell(digits, "ordinal")


def _spell_cardinal(digits: str) -> str:
    return _spell(digits, "cardinal").replace(" and ", " ")


def _spell(digits: str, how: str) -> str:
    digits = digits.lstrip("0") or "0"
    if len(digits) <= _MAX_NAMED_DIGITS:
        return str(num2words(int(digits), to=how))
    *first, last = (str(num2words(int(digit))) for digit in digits)
    return " ".join([*first, str(num2words(int(digits[-1]), to=how)) if how == "ordinal" else last])


# Units


# written with µ, Ω and Å, which are not spoken as letters
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
    """The text with these units spelled out, in the singular after one."""
    return _UNIT.sub(_spell_unit, text)


def _spell_unit(found: re.Match[str]) -> str:
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
