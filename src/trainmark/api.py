"""What scripts and notebooks call: train, plan, load, compare and report, with records in and records out."""

from __future__ import annotations

import html
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.launch.options import Place, PlanKeywords, RunKeywords, RunOptions, format_settings, from_keywords
from trainmark.record.errors import NotReadyError, SignalError, UsageError
from trainmark.record.index import RunFilter
from trainmark.record.plan import Plan
from trainmark.record.published_row import PREFIX, PublishedRow
from trainmark.record.record import Record
from trainmark.record.store import Store, Subject, default_folder, make_subject, read_record
from trainmark.view import NEWEST

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trainmark.analysis.comparison import Comparison
    from trainmark.analysis.published_lookup import Choose
    from trainmark.launch.launcher import Watcher
    from trainmark.launch.session import OpenWatcher
    from trainmark.record.run_folder import RankLog
    from trainmark.record.sample import SampleDocument
    from trainmark.record.site import Price
    from trainmark.view.table import Value

TERMINAL_WIDTH = 120
"""Where the output is no terminal."""

Runs = Record | Subject | Place | Sequence[Record]
"""A run, or repeats of one plan: a record, several, or the words by which the commands take them."""


class PrintableRecord(Record):
    """A record that prints as the table of the commands, and in a notebook as its card."""

    @classmethod
    def of(cls, record: Record) -> PrintableRecord:
        return cls(**{each.name: getattr(record, each.name) for each in fields(record)})

    def __str__(self) -> str:
        return str(Records([self]))

    def _repr_html_(self) -> str:
        from trainmark import features

        report = features.load("report.header")
        return str(report.draw_card(self)) if report else f"<pre>{html.escape(str(self))}</pre>"


class Records(list[Record]):
    """Records, the newest first."""

    def to_rows(self) -> list[dict[str, Value]]:
        """One flat row per record, all with the same keys, for a data frame."""
        from trainmark.view.table import make_rows

        return make_rows(self)

    def __str__(self) -> str:
        from trainmark.view import table

        return table.render(self, width=_width()).rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The progress of a run."""

    workload: str
    phase: str
    step: int
    """Steps done, by rank 0."""
    loss: float | None
    """Of the last step; None before the first, or where it was not finite."""
    quality: Mapping[str, float]
    """What the last evaluation found; empty before the first."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """B compared with A."""

    word: str
    """`faster` or `slower`, `better` or `worse`, `same`, `inconclusive`."""
    metric: str
    ratio: float
    """Value of B / value of A."""
    interval: tuple[float, float] | None
    """Of the ratio, at 95 % confidence; None where nothing tells how much a side varies."""
    threshold: float
    """A smaller difference is the same."""
    why: str
    """What the verdict rests on; where it is inconclusive, also what would decide."""
    differences: tuple[str, ...]
    """In what the two are not alike."""
    doubts: tuple[str, ...]
    comparison: Comparison = field(repr=False)
    """All of it, for programs."""

    def __str__(self) -> str:
        from trainmark.view import compare_screen

        return compare_screen.render(self.comparison, width=_width()).rstrip("\n")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a trained network made of an input."""

    files: tuple[Path, ...]
    """Sound, images or text, the output first."""
    document: SampleDocument
    """Which networks made it and how, with doubts."""


def run(
    workload: str | None = None,
    *,
    watch: Callable[[Moment], None] | None = None,
    **options: Unpack[RunKeywords],
) -> Record:
    """Trains one workload once, and gives its record, which is then in the store.

    Everything means what the option of the same name means to `trainmark run`; `set` holds fields of the recipe.
    `watch` is called during the run; `quiet=False` prints progress on stderr instead. A run that fails raises its
    error, with what was measured as its `record`; an interrupted one is stored too, then KeyboardInterrupt.
    """
    if (workload is None) is (options.get("resume") is None):
        raise UsageError("run takes the name of one workload, or resume= an earlier run; run_all() trains several")
    workloads = () if workload is None else (workload,)
    return run_all(from_keywords(workloads, {"quiet": True, **options}, RunKeywords), watch=watch)[0]


def run_all(
    options: RunOptions | None = None,
    *,
    budget_s: float | None = None,
    watch: Callable[[Moment], None] | None = None,
) -> Records:
    """Trains several workloads, or one several times, as the options say; stops at the first run that fails.

    Without options that is what bare `trainmark run` does: every workload, within three minutes or `budget_s` seconds.
    """
    from trainmark.launch import session

    options = options or RunOptions(quiet=True)
    options = options if budget_s is None else replace(options, budget_s=budget_s)
    watcher = watch or _StatusPrinter()
    say = (lambda sentence: None) if options.quiet else _print_status
    # a watcher is called even if nothing is printed; runs on other hosts cannot be watched
    watched = replace(options, quiet=options.quiet and (watch is None or options.hosts is not None))
    result = session.run(watched, say=say, watching=_watch_plan(watcher))
    found, error = Records(map(PrintableRecord.of, result.records)), result.error
    if error is None:
        return found
    if isinstance(error, SignalError):
        kept = f"; trainmark.load({found[-1].run_id!r}) is what was measured" if found else ""
        if error.exit_code == 130:
            raise KeyboardInterrupt(f"the run was interrupted{kept}")
        raise SystemExit(error.exit_code)
    error.record = found[-1] if found else None
    if not str(error):  # another host gave only its exit code
        error.args = (found[-1].ended if found else f"the run ended with exit code {error.exit_code}",)
    raise error


def plan(workload: str, **options: Unpack[PlanKeywords]) -> Plan:
    """What `run` would do with the same options, decided to the last setting, with nothing started."""
    from trainmark.launch import planning

    return planning.make_plans(from_keywords((workload,), options, PlanKeywords))[0]


def load(run: Place = "last", *, store: Place | None = None) -> Record:
    """One record: by a run's id, its beginning or end, by a record file, or the newest."""
    return PrintableRecord.of(find(fspath(run), _store(store))[0])


def find(word: str | None, store: Store) -> tuple[Record, Path]:
    """A record and where it lies; of a run that was cut off before it could leave one, what its events tell."""
    try:
        path = store.find(word)
    except UsageError as missing:
        try:
            folder = store.run_folder(word)
        except UsageError:
            raise missing from None
        from trainmark.record import gather

        return gather.gather_record(folder), folder
    return read_record(path), path


def sample(
    run: Place = "last",
    given: str | None = None,
    *,
    out: Place | None = None,
    vocoder: str | None = None,
    seed: int = 0,
    score: bool = False,
    set: Mapping[str, object] | None = None,  # noqa: A002 - the word of the command line
    platform: str = "auto",
    store: Place | None = None,
    force: bool = False,
    trust: bool = False,
) -> Shown:
    """Has the network of a run show what it learnt, as `trainmark sample` does: of a text or a file that is given, or
    of an example of the run's data. `trust` runs the workload's file that the run's plan names."""
    from trainmark import features

    network = features.load("sample.network")
    if network is None:
        raise NotReadyError("samples need the feature sample, which is not installed")
    made = network.make_samples(
        fspath(run),
        [] if given is None else [given],
        _store(store),
        settings=[*format_settings(set or {}), f"seed={seed}", *([f"vocoder={vocoder}"] if vocoder else [])],
        out=Path(out) if out is not None else None,
        score=score,
        platform=platform,
        force=force,
        trust=trust,
    )
    document, files = next(made)
    return Shown(document=document, files=files)


def records(store: Place | None = None, *, workload: str | None = None, limit: int | None = None) -> Records:
    """The records of a store, the newest first; a damaged file is warned of and left out."""
    kept = _store(store)
    contents = kept.contents(RunFilter(workload=workload), limit=limit)
    for damaged in contents.damaged:
        warnings.warn(str(damaged), stacklevel=2)
    return Records(PrintableRecord.of(read_record(kept.path(row.run_id))) for row in contents.rows)


def compare(
    a: Runs,
    b: Runs,
    *,
    metric: str = "p_core",
    threshold: float = 0.03,
    anyway: bool = False,
    store: Place | None = None,
    price: tuple[Price, Price] | None = None,
) -> Verdict:
    """Whether B is faster than A, by how much and how surely; `anyway` goes on where the two are not alike.

    `price` is what a device of A and one of B cost an hour, for metrics such as cost_per_million; by default both are
    what the site's file says."""
    from trainmark.analysis import comparison
    from trainmark.analysis.beside import find_nearest, list_speeds
    from trainmark.analysis.quantities import add_cost
    from trainmark.record import site

    if not 0 <= threshold < 1:
        raise UsageError(f"threshold must be from 0 to below 1, not {threshold:g}; 0.03 is 3 %")
    kept = _store(store)
    prices = price or (site.load().price,) * 2
    # of several published rows that a word fits, the one that is most like the other side
    sides = [one if isinstance(one, str) and one.startswith(PREFIX) else _subject(one, kept) for one in (a, b)]
    runs = [record for side in sides if isinstance(side, Subject) for record in side.records]

    def choose(rows: Sequence[PublishedRow]) -> PublishedRow | None:
        nearest = find_nearest(runs[0], list_speeds(rows)) if runs else None
        return nearest.row if nearest else None

    subjects = [
        replace(subject, records=tuple(add_cost(record, own) for record in subject.records))
        for subject, own in zip((_subject(side, kept, choose) for side in sides), prices, strict=True)
    ]
    return verdict(comparison.compare(*subjects, metric=metric, threshold=threshold, anyway=anyway))


def verdict(found: Comparison) -> Verdict:
    from trainmark.view import compare_screen

    judgement = found.judgement
    reasons = compare_screen.explain_verdict(found)
    if judgement.interval is None:
        reasons = [f"{judgement.basis[0].upper()}{judgement.basis[1:]}.", *reasons]
    return Verdict(
        word=found.verdict,
        metric=found.compared.name,
        ratio=judgement.ratio,
        interval=judgement.interval,
        threshold=found.threshold,
        why=" ".join(reasons),
        differences=tuple(map(str, found.differences)),
        doubts=found.doubts,
        comparison=found,
    )


def report(
    runs: Runs | None = None,
    *,
    format: str = "html",  # noqa: A002 - the word of the command line
    path: Place | None = None,
    language: str | None = None,
    publish: bool = False,
    store: Place | None = None,
    price: Price | None = None,
) -> str:
    """A report of some runs, or of the newest ten, as text; written to `path` as well where one is given.

    `publish` replaces hosts, users, paths and serials, so that the report can be shared. `price` is what a device costs
    an hour; by default what the site's file says, and nothing in a report to be shared.
    """
    from trainmark import features
    from trainmark.record import site
    from trainmark.view.frame import write_report

    output = features.load("report.output")
    if output is None:
        raise NotReadyError("the feature report is not installed")

    kept = _store(store)
    chosen = records(store, limit=NEWEST) if runs is None else _records(runs, kept)
    if not chosen:
        raise UsageError("there are no records to report on; trainmark.run() makes one")
    shown = list(chosen)
    if publish:
        from trainmark.view.publish import make_publishable

        shown = list(make_publishable(shown).records)
    if price is None and not publish:
        price = site.load().price
    text: str = output.render(format, shown, store=kept, language=language, published=publish, price=price)
    if path is not None:
        write_report(Path(path), text, kept)
    return text


def _store(folder: Place | None) -> Store:
    return Store(Path(folder).expanduser() if folder is not None else default_folder())


def _subject(runs: Runs, store: Store, choose: Choose | None = None) -> Subject:
    from trainmark.analysis.published_lookup import find_subject

    if isinstance(runs, Subject):
        return runs
    if isinstance(runs, Record):
        return make_subject(runs.run_id, [runs])
    if isinstance(runs, str | PathLike):
        return find_subject(fspath(runs), store, choose)
    return make_subject("the list", runs)


def _records(runs: Runs, store: Store) -> Sequence[Record]:
    if isinstance(runs, Record):
        return [runs]
    return _subject(runs, store).records if isinstance(runs, Subject | str | PathLike) else runs


def _watch_plan(tell: Callable[[Moment], None]) -> OpenWatcher:
    def begin(plan: Plan) -> AbstractContextManager[Watcher]:
        return nullcontext(lambda ranks: tell(_moment(plan, ranks)))

    return begin


def _moment(plan: Plan, ranks: Sequence[RankLog]) -> Moment:
    log = ranks[0]
    values = log.evaluations[-1].values if log.evaluations else {}
    return Moment(
        workload=plan.workload,
        phase=log.phase,
        step=log.step,
        loss=log.loss[-1] if log.loss else None,
        quality={name: value for name, value in values.items() if value is not None},
    )


class _StatusPrinter:
    """Prints a line on stderr whenever a run enters a phase or was evaluated."""

    def __init__(self) -> None:
        self._last: tuple[str, Mapping[str, float]] = ("", {})

    def __call__(self, moment: Moment) -> None:
        if (moment.phase, moment.quality) == self._last:
            return
        self._last = (moment.phase, moment.quality)
        found = "".join(f"  {name} {value:.4g}" for name, value in moment.quality.items())
        _print_status(f"{moment.workload} {moment.phase:8} step {moment.step}{found}")


def _print_status(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _width() -> int:
    return shutil.get_terminal_size((TERMINAL_WIDTH, 0)).columns
