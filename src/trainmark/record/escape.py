"""Escapes untrusted text for terminals, file names, Markdown cells, CSV cells and narrow encodings."""

from __future__ import annotations

import re
import unicodedata

JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Hindi and emoji cannot be written without them."""

PLAIN_SIGNS = {
    "±": "+/-",
    "—": "-",
    "–": "-",
    "−": "-",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
    "×": "x",
    "·": "-",
    "…": "...",
    "█": "#",
    "▏": "|",
}
"""ASCII for our own signs where the encoding lacks them; also see `describe.SPARKS`."""


def terminal(text: str) -> str:
    """The text with every control or invisible character spelled out as `\\x1b`."""
    return "".join(_spell_out(sign) if _is_control(sign) else sign for sign in text)


def _is_control(sign: str) -> bool:
    # Cc: escape, bell, newline; Cf: text direction and other invisible marks; Cs: halves of pairs no stream can encode
    return unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") and sign not in JOINERS


def _spell_out(sign: str) -> str:
    code = ord(sign)
    if sign in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[sign]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def file_name(text: str) -> str:
    """The text as the name of one file, which cannot leave its folder, be hidden or be too long."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".-")[:150] or "_"


def can_encode(encoding: str, text: str) -> bool:
    """Whether the encoding has every character of the text."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def fit_encoding(text: str, encoding: str) -> str:
    """The text in characters the encoding has: our signs in ASCII, anything else as `\\u4e2d`."""
    if can_encode(encoding, text):
        return text
    plain = "".join(PLAIN_SIGNS.get(sign, sign) if not can_encode(encoding, sign) else sign for sign in text)
    try:
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return plain.encode("ascii", "backslashreplace").decode("ascii")


def markdown_cell(text: str) -> str:
    """The text as one cell of a Markdown table: no new column, no new row, no HTML, no emphasis, no link."""
    text = terminal(re.sub(r"\s*[\r\n\u2028\u2029]+\s*", " ", text.strip()))
    text = re.sub(r"[\\`*\[\]~|]", r"\\\g<0>", text)
    # inside a word, as in val_loss, Markdown leaves _ alone
    text = re.sub(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])", r"\\_", text)
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("://", "&#58;//"), ("www.", "www&#46;")):
        text = text.replace(sign, entity)
    return text


def csv_cell(text: str) -> str:
    """The text as one CSV cell no spreadsheet runs as a formula; a plain number stays one. Quoting is csv's work."""
    text = terminal(text)
    starts_formula = text.lstrip()[:1] in tuple("=+-@＝＋－＠")
    if starts_formula and not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", text):
        return "'" + text
    return text
