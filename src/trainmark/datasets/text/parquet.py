"""Reads the documents of a Parquet file, some rows of a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmark.spec.errors import NotReadyError

LARGEST_ROW_GROUP = 16 << 30
"""Bytes of text that a row group may say it holds; files have at most a few GB in one."""
ROWS = 256
"""Documents in memory at once."""


def documents(path: Path, column: str) -> Iterator[str]:
    """What a column of text holds, row after row."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise NotReadyError(f"{path.name} needs the package pyarrow: pip install 'trainmark[parquet]'") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_column(path, file.schema_arrow, column, pyarrow.types)
            for group in range(file.num_row_groups):
                _check_size(path, file.metadata.row_group(group), group)
                for batch in file.iter_batches(ROWS, row_groups=[group], columns=[column]):
                    for text in batch.column(0).to_pylist():
                        number += 1
                        if text is None:
                            raise NotReadyError(f"{path}, document {number}: its column {column!r} is empty")
                        yield text
    except OSError as error:  # pyarrow's own, too, where pages are damaged
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


def _check_size(path: Path, group: Any, number: int) -> None:
    if group.total_byte_size > LARGEST_ROW_GROUP:
        raise NotReadyError(
            f"{path} says its row group {number} holds {group.total_byte_size:,} bytes; write it in smaller ones"
        )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
