"""Verifies a set of text: file sizes and the range of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainmark.data.text import token_files
from trainmark.data.text.token_files import INDEX, SPLITS, TOKENIZER, WORDS, find_damage, map_tokens, token_range
from trainmark.data.verification import Decode, Findings, Report
from trainmark.record.errors import NotReadyError


@dataclass(frozen=True, kw_only=True)
class TextSize:
    train_tokens: int
    val_tokens: int

    def __str__(self) -> str:
        return f"{self.train_tokens:,} tokens to train on, {self.val_tokens:,} for validation"


def verify(folder: Path, *, decode: Decode = "header") -> Report[TextSize]:
    """`none` and `header` check file sizes; `full` reads every token."""
    index = token_files.read_index(folder)
    seen, named = Findings(), {INDEX, TOKENIZER, WORDS}
    for name in SPLITS:
        split = index.splits[name]
        for file in split.files:
            named.add(file.name)
            if reason := find_damage(folder, file):
                seen.add(file.name, reason)
                continue
            seen.counts[name] += file.tokens
            if decode == "full":
                low, high = token_range(map_tokens(folder, file))
                if low < 0 or high > split.largest:
                    seen.add(file.name, f"holds tokens {low} to {high} and not 0 to {split.largest}")
    largest = max(index.splits[name].largest for name in SPLITS)
    try:
        vocabulary = token_files.open_vocabulary(folder)
        if vocabulary is not None and largest >= vocabulary.size:
            seen.add(INDEX, f"names token {largest}, and the vocabulary has {vocabulary.size}")
    except NotReadyError as error:
        seen.add(TOKENIZER if (folder / TOKENIZER).is_file() else WORDS, str(error))
    for path in sorted(folder.glob("*.bin")):
        seen.add(path.name, note="" if path.name in named else f"is not named in {INDEX} and is not read")
    return seen.report(
        TextSize(train_tokens=seen.counts["train"], val_tokens=seen.counts["val"]),
        TextSize(train_tokens=index.splits["train"].tokens, val_tokens=index.splits["val"].tokens),
    )
