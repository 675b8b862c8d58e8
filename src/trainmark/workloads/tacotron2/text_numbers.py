"""Spells out the numbers and sums of money in a lower-case text, as an English reader of its transcripts would."""

from __future__ import annotations

import re

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_BELOW_TWENTY = _SMALL.split(" ")
_ROUND = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = dict(zip(range(2, 10), _ROUND.split(" "), strict=True))
_LARGE = "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
_SCALES = dict(enumerate(_LARGE.split(" "), start=1))
_NAMED_DIGITS = 3 * (len(_SCALES) + 1)
_IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
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
    """The text without digits and currency signs: both are written as the words one would say.

    Each rule leaves digits to the rules after it, which is why $1,234 is "twelve thirty-four dollars".
    """
    text = _LISTED.sub(_without_commas, text)
    text = _MONEY.sub(_money, text)
    text = _DECIMAL.sub(_decimal, text)
    text = _ORDINAL.sub(lambda found: _ordinal(found[1]), text)
    return _NUMBER.sub(lambda found: _number(found[0]), text)


def _without_commas(found: re.Match[str]) -> str:
    # "1,234" and "12,34,567" are one number, "1,2,3" and "1999,2000" are several
    return found[0].replace(",", "") if _GROUPED.fullmatch(found[0]) else found[0]


def _money(found: re.Match[str]) -> str:
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


def _decimal(found: re.Match[str]) -> str:
    whole, fraction = found.groups()
    rest = fraction.lstrip("0")
    zeros = ["zero"] * (len(fraction) - len(rest))
    return " ".join([whole, "point", *zeros, *([rest] if rest else [])])


def _number(digits: str) -> str:
    """A cardinal; 1001 to 2999 are read as years are, whatever they count."""
    digits = digits.lstrip("0")
    if len(digits) != 4 or not "1000" < digits < "3000":
        return _cardinal(digits)
    if digits[1:3] == "00":
        return _cardinal(digits) if digits[0] == "2" else f"ten oh {_cardinal(digits[3])}"
    high, low = int(digits[:2]), int(digits[2:])
    if low == 0:
        return f"{_below_thousand(high)} hundred"
    return f"{_below_thousand(high)} {'oh ' if low < 10 else ''}{_below_thousand(low)}"


def _ordinal(digits: str) -> str:
    said = _cardinal(digits, joint=" and ")
    start = max(said.rfind(" "), said.rfind("-")) + 1
    last = said[start:]
    if last in _IRREGULAR_ORDINALS:
        return said[:start] + _IRREGULAR_ORDINALS[last]
    return said[:start] + (last[:-1] + "ieth" if last.endswith("y") else last + "th")


def _cardinal(digits: str, *, joint: str = " ") -> str:
    """Groups of three with their scales; `joint` stands before what is below a hundred."""
    digits = digits.lstrip("0") or "0"
    if len(digits) > _NAMED_DIGITS:
        return " ".join(_BELOW_TWENTY[int(digit)] for digit in digits)
    if len(digits) <= 3:
        return _below_thousand(int(digits), joint)
    said = []
    for scale in range((len(digits) - 1) // 3, 0, -1):
        if group := int(digits[-3 * scale - 3 : -3 * scale]):
            said.append(f"{_below_thousand(group, joint)} {_SCALES[scale]}")
    high, units = ", ".join(said), int(digits[-3:])
    if units == 0:
        return high
    return high + (joint if units < 100 else ", ") + _below_thousand(units, joint)


def _below_thousand(number: int, joint: str = " ") -> str:
    if number >= 100:
        rest = joint + _below_thousand(number % 100) if number % 100 else ""
        return f"{_BELOW_TWENTY[number // 100]} hundred{rest}"
    if number < 20:
        return _BELOW_TWENTY[number]
    return _TENS[number // 10] + (f"-{_BELOW_TWENTY[number % 10]}" if number % 10 else "")
