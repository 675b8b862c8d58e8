"""Verifies a set of text: file sizes and the range of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainmark.data import verification
from trainmark.data.text.token_files import (
    INDEX,
    SPLITS,
    TOKENIZER,
    WORDS,
    find_damage,
    map_tokens,
    read_index,
    token_range,
)
from trainmark.data.text.vocabulary import open_vocabulary
from trainmark.data.verification import Decode, Report, note_on, problem
from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError


@dataclass(frozen=True, kw_only=True)
class TextSize:
    train_tokens: int
    val_tokens: int

    def __str__(self) -> str:
        return f"{self.train_tokens:,} tokens to train on, {self.val_tokens:,} for validation"


def verify(folder: Path, *, decode: Decode = "header") -> Report[TextSize]:
    """`none` and `header` check file sizes; `full` reads every token."""
    index = read_index(folder)
    found = dict.fromkeys(SPLITS, 0)
    problems: list[CheckResult] = []
    for name in SPLITS:
        for file in index.splits[name].files:
            if reason := find_damage(folder, file):
                problems.append(problem(file.name, reason))
                continue
            found[name] += file.tokens
            if decode == "full":
                low, high = token_range(map_tokens(folder, file))
                if low < 0 or high > index.splits[name].largest:
                    problems.append(
                        problem(file.name, f"holds tokens {low} to {high} and not 0 to {index.splits[name].largest}")
                    )
    largest = max(index.splits[name].largest for name in SPLITS)
    try:
        vocabulary = open_vocabulary(folder)
        if vocabulary is not None and largest >= vocabulary.size:
            problems.append(problem(INDEX, f"names token {largest}, and the vocabulary has {vocabulary.size}"))
    except NotReadyError as error:
        problems.append(problem(TOKENIZER if (folder / TOKENIZER).is_file() else WORDS, str(error)))
    named = {INDEX, TOKENIZER, WORDS, *(file.name for name in SPLITS for file in index.splits[name].files)}
    strangers = sorted(path.name for path in folder.iterdir() if path.suffix == ".bin" and path.name not in named)
    expected = {name: index.splits[name].tokens for name in SPLITS}
    return Report(
        expected=TextSize(train_tokens=expected["train"], val_tokens=expected["val"]),
        found=TextSize(train_tokens=found["train"], val_tokens=found["val"]),
        problems=tuple(problems),
        notes=tuple(note_on(name, f"is not named in {INDEX} and is not read") for name in strangers),
    )


def inspect(folder: Path) -> tuple[str, str]:
    """Compares sizes without reading tokens."""
    return verification.inspect(verify, folder)
