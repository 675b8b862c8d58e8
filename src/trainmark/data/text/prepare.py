"""Prepares a set of text from token files or text files, which are not trusted, and verifies it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from trainmark.data.preparation import ReportProgress, lock_folder
from trainmark.data.text import token_files
from trainmark.data.text.token_files import (
    INDEX,
    SPLITS,
    TOKENIZER,
    WORDS,
    Index,
    SplitName,
    TokenFile,
    Tokenizer,
    TokenSplit,
    find_damage,
    map_tokens,
)
from trainmark.data.verification import Decode, Report
from trainmark.record.archives import Destination
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import NotReadyError, UsageError


@dataclass(frozen=True, kw_only=True)
class TextSize:
    train_tokens: int
    val_tokens: int

    def __str__(self) -> str:
        return f"{self.train_tokens:,} tokens to train on, {self.val_tokens:,} for validation"


def verify(folder: Path, *, decode: Decode = "header") -> Report:
    """`none` and `header` check file sizes; `full` reads every token."""
    index = token_files.read_index(folder)
    seen, named = Report(), {INDEX, TOKENIZER, WORDS}
    for name in SPLITS:
        split = index.splits[name]
        for file in split.files:
            named.add(file.name)
            if reason := find_damage(folder, file):
                seen.add(file.name, reason)
                continue
            seen.counts[name] += file.tokens
            if decode == "full":
                tokens = map_tokens(folder, file)
                low, high = int(tokens.min()), int(tokens.max())
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
    seen.found = TextSize(train_tokens=seen.counts["train"], val_tokens=seen.counts["val"])
    seen.expected = TextSize(train_tokens=index.splits["train"].tokens, val_tokens=index.splits["val"].tokens)
    return seen


LLMC_MAGIC, LLMC_VERSION, LLMC_HEADER_BYTES = 20240520, 1, 1024
MEGATRON_MAGIC, MEGATRON_HEADER_BYTES = b"MMIDIDX\x00\x00", 34
MEGATRON_TYPES: dict[int, Literal["uint16", "int32"]] = {4: "int32", 8: "uint16"}
"""Megatron's codes of token types."""
COLUMN = "text"
"""Default column of documents."""
_DECODE_TOKENS = 1 << 16
"""Tokens decoded at a time, to count bytes."""


def prepare(
    out: Path,
    *,
    train: Path,
    val: Path,
    tokenizer: Path | None = None,
    column: str | None = None,
    any_archive: bool = True,
    progress: ReportProgress = lambda *_: None,
) -> str:
    """Writes the tokens of both splits to `out`, then the index, so that a set without one is unfinished.

    `column` is the column of Parquet files, or the field of JSON lines, that holds the text.
    Token files are linked if possible, else copied. No published set of text has a checksum. Returns a summary.
    """
    del any_archive
    reader = Tokenizer(tokenizer) if tokenizer else None
    found = {name: _list_files(name, place) for name, place in zip(SPLITS, (train, val), strict=True)}
    kinds = {kind for kind, _ in found.values()}
    if len(kinds) > 1:
        raise UsageError(f"--train and --val hold files of two formats, {' and '.join(sorted(kinds))}; give one kind")
    [kind] = kinds
    if kind == "text" and reader is None:
        raise UsageError("files of text need --tokenizer FILE, the tokenizer.json of the model that will read them")
    with Destination(out) as destination, lock_folder(out):
        splits = {}
        for name, (_, paths) in found.items():
            if kind == "text" and reader is not None:
                splits[name] = _tokenize_files(name, paths, column or COLUMN, out, reader, progress)
            else:
                look = _open_llmc if kind == "llm.c" else _open_megatron
                sources = {path: look(path) for path in paths}
                splits[name] = _import_token_files(name, sources, out, destination, progress)
        if reader is not None and tokenizer is not None:
            if (largest := max(split.largest for split in splits.values())) >= reader.size:
                raise NotReadyError(
                    f"the files hold token {largest} and {tokenizer} has {reader.size}; give the tokenizer they were "
                    "made with, or none"
                )
            if not splits["val"].text_bytes:
                splits["val"] = _count_bytes(splits["val"], out, reader)
            write_atomic(out / TOKENIZER, tokenizer.read_bytes())
        index = Index(splits=splits, source="tokenizer" if kind == "text" else kind)
        write_atomic(out / INDEX, index.to_json(), synced=True)
    counts = (f"{index.splits[name].tokens:,} tokens of {name}" for name in SPLITS)
    return f"{', '.join(counts)}, from {index.source} files"


# Input files


def _list_files(name: str, place: Path) -> tuple[str, list[Path]]:
    """Format of the files at a path, and the files sorted by name."""
    if not place.exists():
        raise NotReadyError(f"--{name} {place} is not there")
    paths = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
    text = [path for path in paths if path.suffix in (".txt", ".jsonl", ".parquet")]
    tokens = [path for path in paths if path.suffix == ".bin"]
    if text and tokens:
        raise UsageError(f"--{name} {place} holds files of tokens and of text; give the folder of one kind")
    if text:
        return "text", text
    if not tokens:
        raise NotReadyError(
            f"--{name} {place} holds no .bin, .txt, .jsonl or .parquet file; give one, or a folder of them"
        )
    return ("megatron" if all(path.with_suffix(".idx").is_file() for path in tokens) else "llm.c"), tokens


def _open_llmc(path: Path) -> TokenFile:
    """A shard: a header of 256 numbers, then the tokens."""
    try:
        with path.open("rb") as file:
            head, size = file.read(LLMC_HEADER_BYTES), path.stat().st_size
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror}") from error
    magic, version, tokens = struct.unpack("<3i", head[:12]) if len(head) == LLMC_HEADER_BYTES else (0, 0, 0)
    if (magic, version) != (LLMC_MAGIC, LLMC_VERSION):
        raise NotReadyError(
            f"{path} is no shard of llm.c: it does not begin with {LLMC_MAGIC} and {LLMC_VERSION}; a file of Megatron "
            "needs its .idx beside it"
        )
    if tokens < 1 or size != LLMC_HEADER_BYTES + 2 * tokens:
        raise NotReadyError(
            f"{path} says it holds {tokens:,} tokens and has {size:,} bytes, not "
            f"{LLMC_HEADER_BYTES + 2 * max(0, tokens):,}; fetch it again"
        )
    return TokenFile(name=path.name, dtype="uint16", tokens=tokens, offset=LLMC_HEADER_BYTES)


def _open_megatron(path: Path) -> TokenFile:
    """A pair of files: the tokens, and the offsets of sequences and documents, which must be contiguous."""
    idx = path.with_suffix(".idx")
    try:
        with idx.open("rb") as file:
            head = file.read(MEGATRON_HEADER_BYTES)
        size, held = idx.stat().st_size, path.stat().st_size
    except OSError as error:
        raise NotReadyError(f"{idx} or its .bin cannot be read: {error.strerror}") from error
    if len(head) < MEGATRON_HEADER_BYTES or not head.startswith(MEGATRON_MAGIC):
        raise NotReadyError(f"{idx} is no index of Megatron: it does not begin with MMIDIDX; fetch it again")
    version, code, sequences, documents = struct.unpack("<QBQQ", head[9:])
    if version != 1 or code not in MEGATRON_TYPES:
        raise NotReadyError(
            f"{idx} has version {version} and type {code}; tokens have version 1 and type 4 (int32) or 8 (uint16)"
        )
    wanted = MEGATRON_HEADER_BYTES + 12 * sequences + 8 * documents
    if sequences < 1 or documents < 1 or size != wanted:
        raise NotReadyError(
            f"{idx} says it has {sequences:,} sequences in {documents:,} documents, which takes {wanted:,} bytes, and "
            f"has {size:,}; fetch it again"
        )
    numbers = np.memmap(idx, np.uint8, "r", offset=MEGATRON_HEADER_BYTES)
    lengths = numbers[: 4 * sequences].view("<i4").astype(np.int64)
    places = numbers[4 * sequences : 12 * sequences].view("<i8")
    width = np.dtype(MEGATRON_TYPES[code]).itemsize
    if lengths.min() < 0 or not np.array_equal(places, (np.cumsum(lengths) - lengths) * width):
        raise NotReadyError(f"{idx} names sequences that do not follow one another; write the pair again")
    tokens = int(lengths.sum())
    if tokens < 1 or held != tokens * width:
        raise NotReadyError(f"{path} has {held:,} bytes and its index needs {tokens * width:,}; fetch both again")
    return TokenFile(name=path.name, dtype=MEGATRON_TYPES[code], tokens=tokens)


# Writing the set


def _import_token_files(
    name: SplitName, sources: Mapping[Path, TokenFile], out: Path, destination: Destination, progress: ReportProgress
) -> TokenSplit:
    """Links or copies the files unchanged, under new names."""
    files, largest, done = [], 0, 0
    total = sum(source.bytes for source in sources.values())
    for number, (path, source) in enumerate(sources.items()):
        file = msgspec.structs.replace(source, name=_file_name(name, number))
        _link_or_copy(path, out / file.name, destination)
        tokens = map_tokens(out, file)
        if (low := int(tokens.min())) < 0:
            raise NotReadyError(f"{path} holds the token {low}; tokens are 0 or more, so it is damaged")
        files.append(file)
        largest, done = max(largest, int(tokens.max())), done + file.bytes
        progress(name, done, total)
    return TokenSplit(files=tuple(files), largest=largest)


def _link_or_copy(source: Path, target: Path, destination: Destination) -> None:
    if target.exists() and source.samefile(target):
        return
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, or no hard links
        with source.open("rb") as stream:
            destination.write(PurePosixPath(target.name), stream, source.stat().st_size)


def _tokenize_files(
    name: SplitName, paths: Sequence[Path], column: str, out: Path, reader: Tokenizer, progress: ReportProgress
) -> TokenSplit:
    dtype: Literal["uint16", "int32"] = "uint16" if reader.size <= 1 << 16 else "int32"
    end = reader.end_of_text()
    largest = tokens = text_bytes = done = 0
    total = sum(path.stat().st_size for path in paths)
    file = out / _file_name(name, 0)
    with file.open("wb") as stream:
        for path in paths:
            for document in _read_documents(path, column):
                ids = [*(() if end is None else (end,)), *reader.encode(document)]
                found = np.array(ids, np.dtype(dtype).newbyteorder("<"))
                stream.write(found.tobytes())
                text_bytes, tokens = text_bytes + len(document.encode()), tokens + len(found)
                largest = max(largest, int(found.max(initial=0)))
            done += path.stat().st_size
            progress(name, done, total)
    if not tokens:
        file.unlink()
        raise NotReadyError(f"the files of --{name} hold no text")
    token_file = TokenFile(name=file.name, tokens=tokens, dtype=dtype)
    return TokenSplit(files=(token_file,), largest=largest, text_bytes=text_bytes)


def _read_documents(path: Path, column: str) -> Iterator[str]:
    """A .txt file is one document; a line of a .jsonl file is one, in a field; so is a row of a .parquet file."""
    if path.suffix == ".parquet":
        yield from read_parquet(path, column)
        return
    try:
        if path.suffix == ".txt":
            yield path.read_text(encoding="utf-8")
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate((line for line in lines if line.strip()), 1):
                yield _text_field(path, number, line, column)
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NotReadyError(f"{path} is not UTF-8 at byte {error.start}; convert it") from error


def _text_field(path: Path, number: int, line: str, column: str) -> str:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    text = document.get(column) if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise NotReadyError(
            f"{path}, document {number}: not an object with text in its field {column!r}; give one a line"
        )
    return text


def _count_bytes(split: TokenSplit, out: Path, reader: Tokenizer) -> TokenSplit:
    """The split with the size of its decoded text, for bits per byte."""
    parts: Iterator[npt.NDArray[Any]] = (map_tokens(out, file) for file in split.files)
    text_bytes = sum(
        len(reader.decode(part[start : start + _DECODE_TOKENS].tolist()).encode())
        for part in parts
        for start in range(0, len(part), _DECODE_TOKENS)
    )
    return TokenSplit(files=split.files, largest=split.largest, text_bytes=text_bytes)


def _file_name(split: str, number: int) -> str:
    return f"{split}-{number:05d}.bin"


BATCH_ROWS = 256
"""Documents read at a time."""


def read_parquet(path: Path, column: str) -> Iterator[str]:
    """Values of a text column, row by row."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise NotReadyError(f"{path.name} needs the package pyarrow: pip install 'trainmark[parquet]'") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_column(path, file.schema_arrow, column, pyarrow.types)
            for batch in file.iter_batches(BATCH_ROWS, columns=[column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    if text is None:
                        raise NotReadyError(f"{path}, document {number}: its column {column!r} is empty")
                    yield text
    except OSError as error:  # also pyarrow's own, for damaged pages
        reason = error.strerror or _first_line(error)
        raise NotReadyError(f"{path} cannot be read: {reason}") from error
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise NotReadyError(f"{path} is no Parquet file, or it is damaged: {_first_line(error)}") from error


def _check_column(path: Path, schema: Any, column: str, types: Any) -> None:
    if column not in schema.names:
        known = ", ".join(schema.names[:20])
        raise NotReadyError(f"{path} has no column {column!r}; name one of its own with --column: {known}")
    kind = schema.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise NotReadyError(f"{path} has {kind} in its column {column!r}; name one of text with --column")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
