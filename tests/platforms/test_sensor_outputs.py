"""What vendors' programs print, in several versions, is read as the platform files say.

The outputs are written down by hand after the programs' layouts, with numbers of our own: no such card is here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trainmark.platforms import files
from trainmark.platforms.sensors import FIELDS, Program, Reading, parse_readings

OUTPUTS = Path(__file__).parent / "sensor_outputs"
MIB = 2**20


def seen(
    device: int,
    used: float | None,
    total: float | None,
    power: float | None,
    heat: float | None,
    use: float | None,
    clock: float | None = None,
    **more: Any,
) -> Reading:
    return Reading(
        device=device,
        memory_used_bytes=None if used is None else used * MIB,
        memory_total_bytes=None if total is None else total * MIB,
        power_w=power,
        temperature_c=heat,
        utilisation_percent=use,
        clock_mhz=clock,
        **more,
    )


SAID: dict[str, list[Reading]] = {
    "nvidia/query-535.txt": [
        seen(0, 30211, 40960, 287.61, 61, 99, 1410, throttled=(), ecc_errors=0),
        seen(1, 30187, 40960, 291.02, 63, 100, 1380, throttled=("software power cap",), ecc_errors=0),
    ],
    "nvidia/query-565.txt": [
        seen(
            0,
            71311,
            81559,
            655.12,
            71,
            100,
            1755,
            throttled=("software power cap", "software thermal slowdown"),
            ecc_errors=0,
        ),
        seen(1, 71305, 81559, None, 69, 100, 1785, throttled=()),
    ],
    "amd/amd-smi-6.2.json": [
        seen(0, 150021, 196592, 512, 74, 97, 1687, energy_j=81234.5, throttled=(), ecc_errors=0),
        seen(1, 150100, 196592, 530, 81, 98, 1590, energy_j=90011, throttled=("throttled",), ecc_errors=2),
    ],
    "amd/amd-smi-7.0.json": [
        seen(0, 150021, 196592, 512, 74, 97, 1687, energy_j=81234.5, throttled=(), ecc_errors=0),
        seen(1, 150100, 196592, 530, 81, 98, 1590, energy_j=90011, throttled=("throttled",), ecc_errors=2),
    ],
    "amd/rocm-smi-5.7.json": [seen(0, 51539607552 / MIB, 68702699520 / MIB, 311, 58, 99, 1700)],
    "amd/rocm-smi-6.1.json": [
        seen(0, 105312595968 / MIB, 206141652992 / MIB, 402, 61, 100, 132),
        seen(1, 105300000000 / MIB, 206141652992 / MIB, None, 60, 99, 2100),
    ],
    "iluvatar/ixsmi-3.1.txt": [seen(0, 27811, 32768, 221, 66, 98), seen(1, 27702, 32768, 218, 64, 97)],
    "iluvatar/ixsmi-4.2.txt": [seen(0, 61023, 65536, 171, 59, 100)],
    "metax/mx-smi-2.1.txt": [seen(0, 50211, 65536, 262, 58, 97), seen(1, 50180, 65536, 259, 57, 96)],
    "metax/mx-smi-2.2.txt": [seen(0, 61012, 65536, 301, 63, 100)],
    "hygon/hy-smi-dtk24.json": [seen(0, 28005, 32752, 219, 57, 93, 1319)],
    "hygon/hy-smi-dtk26.json": [
        seen(0, 60210, 65520, 301.5, 60, 100, 1500),
        seen(1, 60198, 65520, 299, 59, 100, 1500),
    ],
    "kunlunxin/xpu-smi-m.txt": [seen(0, 24877, 32768, 152, 55, 98), seen(1, 24801, 32768, 149, 57, 97)],
    "kunlunxin/xpu-smi-m-short.txt": [seen(0, None, None, 152, 55, None)],
    "ascend/npu-smi-23.txt": [seen(0, 29870, 32768, 251.3, 66, 92), seen(1, 29811, 32768, 249.9, 65, 91)],
    "ascend/npu-smi-24.txt": [seen(0, 57120, 65536, 341.7, 58, 88), seen(1, 57101, 65536, 338, 57, 87)],
    "ascend/npu-smi-26-two-dies.txt": [seen(0, 51419, 65536, 402.6, 54, 97), seen(1, 50874, 65536, None, 53, 96)],
    "cambricon/cnmon-4.20.txt": [
        seen(0, 21033, 24576, 182, 61, 94, ecc_errors=0),
        seen(1, 21001, 24576, 180, 60, 95, ecc_errors=1),
    ],
    "cambricon/cnmon-5.10.txt": [seen(0, 70116, 81920, 401, 52, 100)],
    "mthreads/gmi-q-1.12.txt": [
        seen(0, 40210, 49152, 388.45, 68, 98, 1500),
        seen(1, 40197, 49152, 385.1, 67, 97, 1480),
    ],
    "mthreads/gmi-q-1.14.txt": [seen(0, 21, 49152, None, 41, 0)],
    "intel/xpu-smi-dump-1.2.txt": [
        seen(0, 40011.12, None, 412.55, 63, 98.11, 1550, energy_j=120334.11),
        seen(1, 39987.5, None, 409.01, 61.5, 97.9, 1550, energy_j=119870.4),
    ],
    "intel/xpu-smi-dump-root-needed.txt": [seen(0, 512, None, 88.2, None, None, 1600, energy_j=3310)],
    "gaudi/hl-smi-1.17.txt": [
        seen(0, 88211, 98304, 491, 58, 97, ecc_errors=0),
        seen(1, 88190, 98304, 488, 57, 96, ecc_errors=0),
    ],
    "gaudi/hl-smi-1.21.txt": [seen(0, 120033, 131072, 771, 66, 100)],
}

MISSING = {
    "nvidia/query-565.txt": {"power_w": "[N/A]", "ecc_errors": "[N/A]"},
    "amd/rocm-smi-6.1.json": {"power_w": "Secondary die"},
    "kunlunxin/xpu-smi-m-short.txt": {
        "memory_used_bytes": "has no used",
        "memory_total_bytes": "has no total",
        "utilisation_percent": "has no use",
    },
    "ascend/npu-smi-26-two-dies.txt": {"power_w": "says -"},
    "cambricon/cnmon-5.10.txt": {"ecc_errors": "N/A"},
    "mthreads/gmi-q-1.14.txt": {"power_w": "N/A", "clock_mhz": "no clock"},
    "intel/xpu-smi-dump-root-needed.txt": {"temperature_c": "N/A", "utilisation_percent": "N/A"},
    "gaudi/hl-smi-1.21.txt": {"ecc_errors": "N/A"},
}
"""By output, fields that some device in it lacks, and a word of the reason."""


def programs(vendor: str) -> tuple[Program, ...]:
    table = files.load(vendor).sensors
    return table.programs if table else ()


def program_for(output: str) -> Program:
    """The program of the vendor's platform file whose name the output carries."""
    vendor, name = output.split("/")
    return next((program for program in programs(vendor) if name.startswith(program.argv[0])), programs(vendor)[0])


def text_of(output: str) -> str:
    return (OUTPUTS / output).read_text(encoding="utf-8")


@pytest.mark.parametrize("output", SAID)
def test_what_a_program_printed_is_read_as_it_was_meant(output: str) -> None:
    readings, reasons = parse_readings(program_for(output), text_of(output))
    assert readings == SAID[output]
    assert isinstance(reasons, dict)
    lacking = {name for name in program_for(output).gives if any(getattr(found, name) is None for found in readings)}
    assert set(reasons) == lacking == set(MISSING.get(output, {}))
    for name, word in MISSING.get(output, {}).items():
        assert word in reasons[name]


def test_every_vendor_with_a_program_has_two_recorded_outputs_and_every_output_is_expected() -> None:
    recorded = sorted(str(path.relative_to(OUTPUTS)) for path in OUTPUTS.glob("*/*"))
    assert recorded == sorted(SAID)
    for vendor in files.names():
        table = files.load(vendor).sensors
        if getattr(table, "programs", ()):
            assert sum(output.startswith(f"{vendor}/") for output in SAID) >= 2, vendor


@pytest.mark.parametrize("output", SAID)
def test_an_output_cut_off_anywhere_gives_no_wrong_number(output: str) -> None:
    """Numbers that are there are those of the whole output, or shorter ones only in the very last cell."""
    program, text = program_for(output), text_of(output)
    for length in range(0, len(text), max(1, len(text) // 97)):
        readings, why = parse_readings(program, text[:length])
        whole = {wanted.device: wanted for wanted in SAID[output]}
        wrong = [
            (found.device, name)
            for found in readings
            for name in FIELDS
            if getattr(found, name) is not None and getattr(found, name) != getattr(whole.get(found.device), name, None)
        ]
        assert len(wrong) <= 1, (length, wrong)
        assert readings or why


@pytest.mark.parametrize("output", SAID)
@pytest.mark.parametrize(
    "junk", ["", "\n\n", "Segmentation fault\n", "\0\ufffd\x1b[31m;;,,|:\n" * 50, "{", "[]", "[" * 9999]
)
def test_junk_is_a_reason_and_not_a_reading(output: str, junk: str) -> None:
    readings, why = parse_readings(program_for(output), junk)
    assert all(getattr(found, name) is None for found in readings for name in FIELDS)
    assert why


@pytest.mark.parametrize(
    "output",
    ["nvidia/query-535.txt", "ascend/npu-smi-24.txt", "ascend/npu-smi-26-two-dies.txt", "mthreads/gmi-q-1.12.txt"],
)
def test_decimal_commas_are_not_taken_for_numbers(output: str) -> None:
    """Programs are run without a locale; one that ignores that is not believed."""
    text = re.sub(r"(?<=\d)\.(?=\d{1,2}(?![\d.]))", ",", text_of(output))
    assert text != text_of(output)
    readings, why = parse_readings(program_for(output), text)
    assert all(found.power_w is None for found in readings)
    right = {(wanted.device, name): getattr(wanted, name) for wanted in SAID[output] for name in FIELDS}
    for found in readings:
        assert all(getattr(found, name) in (None, right[found.device, name]) for name in FIELDS)
    assert "cells" in why if isinstance(why, str) else "decimal comma" in why["power_w"]
