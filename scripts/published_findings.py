#!/usr/bin/env python3
"""Audits the shipped published rows and writes what is wrong or doubtful in them beside published.csv."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from trainmark.analysis import published_library
from trainmark.features.published import audit
from trainmark.record.published_row import PREFIX


def main() -> None:
    rows = published_library.load_rows()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("row", "verdict", "check", "sentence"))
    for row in audit.attach_findings(rows, audit.find_doubts(audit.group_by_source(rows))):
        for one in row.findings:
            writer.writerow((row.name.removeprefix(PREFIX), one.verdict, one.check, one.sentence))
    path = Path(published_library.__file__).parent / published_library.FINDINGS
    path.write_text(text.getvalue(), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
