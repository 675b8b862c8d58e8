from __future__ import annotations

import msgspec
from support.records import in_environment, make_record

from trainmark.record import links
from trainmark.record.format import summarise_links
from trainmark.view import facts
from trainmark.view.terminal import TerminalWriter

FOUND = msgspec.convert(
    [
        {"bytes": 4096, "repeats": 50, "median_s": 0.000213, "best_s": 0.0002, "bus_gigabytes_per_s": 0.0307},
        {"bytes": 1 << 20, "repeats": 50, "median_s": 0.00125, "best_s": 0.001, "bus_gigabytes_per_s": 1.57},
        {"bytes": 64 << 20, "repeats": 7, "median_s": 0.0554, "best_s": 0.053, "bus_gigabytes_per_s": 1.9},
    ],
    list[links.AllReduce],
)


def test_latency_and_bandwidth_are_told_in_a_sentence() -> None:
    said = summarise_links(FOUND, ranks=4, hosts=2)
    assert said == "all-reduce among 4 ranks on 2 hosts: 0.21 ms for 4 KiB, 1.9 GB/s for 64 MiB"
    assert "2 ranks on 1 host:" in summarise_links(FOUND, ranks=2, hosts=1)


def test_the_table_has_a_row_for_each_message_size() -> None:
    writer = TerminalWriter(width=60)
    table = facts.link_table(FOUND, str)
    writer.put(writer.grid(table.heads, table.rows))
    lines = [line.split() for line in writer.getvalue().splitlines()]
    assert lines[0] == ["message", "median", "ms", "bus", "GB/s"]
    assert lines[2:] == [
        ["4", "KiB", "0.213", "0.0307"],
        ["1", "MiB", "1.25", "1.57"],
        ["64", "MiB", "55.4", "1.90"],
    ]


def test_what_a_forecast_goes_by_is_told_with_the_links_and_the_checkpoints() -> None:
    level = {"level": "nodes", "collective": "all-gather", "ranks": 4, "latency_s": 2e-5, "bytes_per_s": 2.5e9}
    exchange = {
        "kind": "all-reduce",
        "parallel": "ddp",
        "messages": 3,
        "bytes": 3 << 20,
        "dtypes": {"float32": 3 << 20},
    }
    record = in_environment(
        make_record(plan={"topology": "4x1"}),
        link_levels=[level],
        exchange={**exchange, "parameters": 786_432, "backward_s": 0.05},
        checkpoint={"bytes": 2**31, "saves": 2, "save_s": 4.0, "restore_s": 1.5},
    )
    network, checkpoints = facts.network(record, str), facts.checkpoints(record, str)
    assert network is not None and checkpoints is not None
    assert [(fact.name, fact.value) for fact in network.facts] == [
        ("between nodes, all-gather", "latency 0.0200 ms, 2.50 GB/s among 4 ranks"),
        ("a step exchanges", "ddp, all-reduce: 3 messages, 3 MiB together"),
        ("exchanged in", "3 MiB float32"),
        ("trained parameters", "786,432"),
        ("backward of a step", "50.0 ms"),
    ]
    assert [fact.value for fact in checkpoints.facts] == ["2.00 GiB", "4.00 s, 0.537 GB/s", "2 times", "1.50 s"]
