"""Writes docs/metrics.md and docs/commands.md from the code; `--check` only says whether they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainmark.cli.main import build_parser
from trainmark.record.escape import markdown_cell
from trainmark.record.metrics import METRICS, PRICED, Metric
from trainmark.view.glossary import DOUBTS, PHASES_EXPLAINED, WORDS

FOLDER = Path(__file__).parent

OPENING = """\
# What every number means

<!-- Written by `scripts/docs` from the definitions in the code. Change those, then run it again. -->

`trainmark explain WORD` prints any of these definitions. A number that cannot be known is shown as — with the
reason; it is never 0.
"""

PHASES_OPENING = """\
## Phases

Wall time is charged to phases that never overlap. Their sum is the end-to-end time exactly: durations are kept in
whole nanoseconds of a monotonic clock. A run's time is that of its slowest rank.
"""

METRICS_OPENING = """\
## Metrics

Items are what throughput counts: images, mel frames. They are summed over all ranks from what was really trained on:
short last batches, real mel frames without padding.
"""

PRICED_OPENING = """\
### By the reader's own price

No record holds these. `show`, `compare`, `report` and `run` compute them where `--price` or `[price]` of the site file
gives a price; kWh stand wherever energy was measured.
"""

COVERED = """\
## What the throughputs cover

- In a full run, which ends at the target or the recipe's cap of epochs, p_whole, p_train and p_core cover all training
  steps, as the published tables do. In a run cut to so many steps or seconds they cover the steady part. The record
  says which.
- p_whole <= p_train <= p_core holds by construction: each divides the same items by the time of fewer phases.
- The timed loop adds no wait for the device. Accelerators are timed with events on the device, processors with a
  monotonic clock.
- A throughput of enough steps carries a 95 % interval taken from the series of step times. Neighbouring steps
  resemble each other, and the interval is as much wider as that makes it.
- Quality is over the whole validation set, weighted by sample; each counts once, however many devices evaluate.
"""

WORDS_OPENING = """\
## Other words in tables and lists
"""

DOUBTS_OPENING = """\
## Doubts

A doubt is a reason to trust a result less. It is found by looking at the result, said in words on the record, and
shown wherever the result is.
"""


COMMANDS_OPENING = """\
# Commands

<!-- Written by `scripts/docs` from the parsers of the commands. Change those, then run it again. -->

Every command prints results to stdout and messages to stderr, and takes `--help`. `--lang en` or `--lang zh` chooses
the language, `--debug` shows the traceback of an error. With `--json` stdout is exactly one document.

| exit code | meaning |
|---|---|
| 0 | a valid result is on disk, even where its table could not be printed |
| 1 | internal error |
| 2 | invalid argument |
| 3 | a machine is not ready: devices, data, disk, port, versions; or an output could not be written |
| 4 | the workload failed: a rank died, memory ran out, a file is corrupt |
| 5 | the result is not valid: loss not finite, or `--strict` refused it; audit found what is wrong |
| 6, 7 | a regression, or slow hosts; inconclusive |
| 124 | hang: no progress within the limit |
| 130, 143 | interrupted; what was measured is kept |
"""


def metrics_page() -> str:
    phases = [(f"`{phase}`", _prose(text)) for phase, text in PHASES_EXPLAINED.items()]
    heads = ("shown as", "in code", "formula", "unit", "definition")
    words = [(f"`{word}`", _prose(text)) for word, text in WORDS.items()]
    doubts = [(f"`{code}`", _prose(text)) for code, text in DOUBTS.items()]
    parts = [
        OPENING,
        PHASES_OPENING,
        table(("phase", "holds"), phases),
        METRICS_OPENING,
        table(heads, map(_row, METRICS.values())),
        PRICED_OPENING,
        table(heads, map(_row, PRICED.values())),
        COVERED,
        WORDS_OPENING,
        table(("word", "meaning"), words),
        DOUBTS_OPENING,
        table(("code", "says"), doubts),
    ]
    return "\n".join(parts)


def _row(metric: Metric) -> tuple[str, ...]:
    unit = markdown_cell(metric.general_unit)
    return (f"`{metric.alias}`", f"`{metric.name}`", f"`{metric.formula}`", unit, _prose(metric.definition))


def _prose(text: str) -> str:
    """A definition as a cell; what is code in it stays so."""
    return markdown_cell(text).replace("\\`", "`")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def commands_page() -> str:
    top = build_parser(complete=True)
    return "\n".join([COMMANDS_OPENING, *_commands(top)])


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Each command with its arguments and examples, then its own subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                if sub.prog.count(" ") == 1:
                    yield f"## {sub.prog}\n\n{sub.description}\n"
                elif sub.description:
                    yield f"### {sub.prog}\n\n{sub.description}\n"
                if rows := [_argument(each) for each in sub._actions if _is_shown(each)]:
                    yield table(("argument", ""), rows)
                yield from _commands(sub)
                if sub.epilog:
                    yield f"```text\n{sub.epilog}\n```\n"


def _is_shown(action: argparse.Action) -> bool:
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    return not isinstance(action, hidden) and action.dest != "lang" and action.help != argparse.SUPPRESS


def _argument(action: argparse.Action) -> tuple[str, str]:
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    words = ", ".join(action.option_strings)
    shown = f"{words} {value}".strip() if action.nargs != 0 else words
    return f"`{shown}`".replace("|", "\\|"), markdown_cell((action.help or "").replace("%%", "%"))


PAGES = {"metrics.md": metrics_page, "commands.md": commands_page}


def main(words: list[str]) -> int:
    stale = [name for name, write in PAGES.items() if _read(FOLDER / name) != write()]
    if words == ["--check"]:
        for name in stale:
            print(f"docs/{name} is out of date; run: scripts/docs", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
    return 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
