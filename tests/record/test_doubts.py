"""A doubt says what is wrong in words that do not puzzle."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.records import make_record

from trainmark.record import doubts


@pytest.mark.parametrize(("share", "shown"), [(0.0100001, "1.1"), (0.0104, "1.1"), (0.0118, "1.2"), (0.0912, "9.1")])
def test_a_speed_that_is_nearly_known_is_not_said_to_be_known_to_what_was_wanted(
    share: float, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record()
    monkeypatch.setattr(doubts.statistics, "mean_interval", lambda *series: SimpleNamespace(share=share))
    monkeypatch.setattr(doubts.statistics, "estimate_steps_needed", lambda *series: 40)
    found = doubts.collect_doubts(record, reference_global_batch=256)
    assert [doubt.values for doubt in found if doubt.code == "few-steps"] == [{"percent": shown, "more": 40}]
