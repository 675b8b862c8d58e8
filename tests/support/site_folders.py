"""Folders of results to make sites of."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from trainmark.analysis import published_library as library, published_lookup as imported
from trainmark.record.published_row import PREFIX, PublishedRow


def imported_page(folder: Path, rows: list[PublishedRow]) -> None:
    """As `trainmark import` keeps one."""
    document = {
        "kind": imported.KIND,
        "schema": imported.SCHEMA,
        "sha256": "0" * 64,
        "imported": "2026-11-01",
        "title": "made up",
        "rows": [asdict(row) for row in rows],
        "unread": [],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "page.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def many_rows(count: int) -> list[PublishedRow]:
    pattern = next(row for row in library.load_rows() if row.workload == "resnet50" and row.p_core)
    return [
        replace(
            pattern,
            name=f"{PREFIX}made-up-{index}",
            device=f"Card {index % 7}",
            vendor=("lumen", "nimbus")[index % 2],
            precision=("fp32", "bf16", "amp")[index % 3],
            topology="1x8",
            p_core=1000.0 + index,
            p_train=990.0 + index,
            p_whole=900.0 + index,
            quality=None,
            e2e_time_s=None,
        )
        for index in range(count)
    ]
