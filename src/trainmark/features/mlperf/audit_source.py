"""MLPerf Training logs and folders as sources of `trainmark audit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainmark.cli.terminal import print_status
from trainmark.features.mlperf import folder, official
from trainmark.features.mlperf.audit_result import audit_results as audit_folders
from trainmark.features.mlperf.log import is_log
from trainmark.record.audit import Audit
from trainmark.record.store import Store

ORDER = 1


def recognises(word: str | Path) -> bool:
    """Whether a file is a result log, or a folder has some."""
    path = Path(word)
    return folder.has_logs(path) if path.is_dir() else path.is_file() and is_log(path)


def audits(word: str, store: Store) -> Iterator[Audit]:
    if not official.is_installed():
        print_status(official.INSTALL)
    for _, found in audit_folders(folder.find_result_folders(Path(word))):
        yield from found
