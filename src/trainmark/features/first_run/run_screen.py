"""The first screen: what the machine is, what it reaches, what that means, and what to do next; 24 lines of 80."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainmark import workloads
from trainmark.analysis import device_names as names
from trainmark.analysis.beside import PublishedSpeed, find_nearest, list_speeds, rate_per_device
from trainmark.features.first_run.run_way import GROUP, TRAINED
from trainmark.record.format import device_name, number, verdict
from trainmark.record.language import Say, current_language, translator
from trainmark.record.numbers import is_too_noisy, share
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.site import HOUR_S, Price
from trainmark.view.headline import describe_learning, format_times, name_network
from trainmark.view.terminal import TerminalWriter
from trainmark.workloads import facts_of, title_of

PAGE = f"{GROUP}.html"
DAY_S = 24 * HOUR_S
YEAR_S = 365 * DAY_S
SURE = 0.05
"""Half-width of the interval, as a share, from which a speed counts as known."""
WAITS = 0.03
"""Share by which p_whole may lie below p_core without a word."""
MAX_NOTES = 3


def shows(records: Sequence[Record]) -> bool:
    """Whether these are the runs of such a command."""
    groups = {record.group for record in records}
    return len(groups) == 1 and str(groups.pop()).startswith(f"{GROUP}-")


def render(
    records: Sequence[Record],
    rows: Iterable[PublishedRow],
    *,
    page: str | None,
    price: Price,
    width: int,
    color: bool,
    encoding: str,
) -> str:
    say, writer = translator(current_language()), TerminalWriter(width=width, color=color, encoding=encoding)
    full = [record for record in records if record.plan.recipe_name != TRAINED]
    small = [record for record in records if record.plan.recipe_name == TRAINED]
    writer.put(_describe_machine(records, say))
    writer.put(_describe_verdict(full, small, say), "")
    speeds = list_speeds(list(rows))
    several = any(Topology.parse(record.plan.topology).devices > 1 for record in full)
    heads, cells = _table_of_devices(full, speeds, say) if several else _table_of_one(full, speeds, price, say)
    if full:
        writer.put(writer.grid(heads, cells, left={0, len(heads) - 1}), indent=2)
    for line in (*(_describe_trained(record, say) for record in small), _list_untried(records, say)):
        if line:
            writer.put(line, indent=2)
    if notes := list(_find_notes(full, small, say))[:MAX_NOTES]:
        writer.put("", say("Good to know"))
        for note in notes:
            writer.put(f"· {note}", indent=2)
    writer.put("")
    for name, line in _list_next(records, speeds, page, say):
        writer.put_unbroken(f"{name:<9} {line}")
    return writer.getvalue()


def _describe_machine(records: Sequence[Record], say: Say) -> str:
    """Device, memory, precision, and how long the command took."""
    found = records[-1].environment
    took_s = sum(_value(record, "e2e_time") or 0.0 for record in records)
    parts = [device_name(records[-1])]
    if found.device.type == "cpu":
        gib = number((found.cpu.memory_bytes or 0) / 2**30)
        parts[0] += say(", {cores} cores, {gib} GiB").format(cores=found.cpu.usable_cores, gib=gib)
        parts.append(say("no accelerator"))
    else:
        count = max(Topology.parse(record.plan.topology).devices for record in records)
        parts[0] = f"{count} x {parts[0]}" if count > 1 else parts[0]
    return " · ".join([*parts, records[-1].precision, format_minutes(took_s)])


def _describe_verdict(full: Sequence[Record], small: Sequence[Record], say: Say) -> str:
    known = [record for record in full if (half := _half_width(record)) is not None and half <= SURE]
    sentence = say("This machine trains real networks; {known} of {count} speeds are known to ±5 % or better.").format(
        known=len(known), count=len(full)
    )
    if not full:
        sentence = say("No full-size network could be tried in the time.")
    elif len(known) == len(full):
        sentence = say("This machine trains real networks, each speed known to ±5 % or better.")
    for record in small:
        words = {"network": title_of(record), "time": format_minutes(_value(record, "e2e_time") or 0.0)}
        learnt = verdict(record) == "reached"
        told = say("It learns: a small {network} reached its target in {time}.")
        if not learnt:
            told = say("A small {network} did not reach its target in {time}.")
        sentence += " " + told.format(**words)
    return sentence


def _table_of_one(
    full: Sequence[Record], speeds: Sequence[PublishedSpeed], price: Price, say: Say
) -> tuple[list[str], list[list[str]]]:
    heads = ["", say("speed"), say("known to"), say("full training"), say("a published device")]
    return heads, [
        [
            name_network(record),
            _speed(record),
            _known(record, say),
            _whole(record, price, say),
            _beside(record, speeds, say),
        ]
        for record in full
    ]


def _table_of_devices(
    full: Sequence[Record], speeds: Sequence[PublishedSpeed], say: Say
) -> tuple[list[str], list[list[str]]]:
    """One device beside all of them."""
    most = max(Topology.parse(record.plan.topology).devices for record in full)
    heads = [
        *("", say("one device"), say("{count} devices").format(count=most), say("of peak"), say("scaling")),
        say("a published device"),
    ]
    cells = []
    for name in dict.fromkeys(record.plan.workload for record in full):
        by_size = {Topology.parse(one.plan.topology).devices: one for one in full if one.plan.workload == name}
        one, all_of_them = by_size.get(1), by_size.get(most)
        shown = all_of_them or one
        if shown is None:
            continue
        rates = [rate_per_device(record, "p_core") if record else None for record in (one, all_of_them)]
        scaling = f"{100 * rates[1] / rates[0]:.0f} %" if rates[0] and rates[1] else "—"
        cells.append(
            [
                name_network(shown),
                _speed(one) if one else "—",
                f"{_speed(all_of_them)} {_known(all_of_them, say)}" if all_of_them else "—",
                f"{used:.0f} %" if (used := _value(shown, "mfu")) is not None else "—",
                scaling,
                _beside(shown, speeds, say),
            ]
        )
    return heads, cells


def _value(record: Record, name: str) -> float | None:
    metric = record.metrics.get(name)
    return metric.value if metric else None


def _half_width(record: Record) -> float | None:
    metric = record.metrics.get("p_core")
    return share(metric.interval) if metric and metric.interval and not is_too_noisy(metric.interval) else None


def _speed(record: Record) -> str:
    metric = record.metrics.get("p_core")
    return f"{number(metric.value)} {metric.unit}" if metric and metric.value is not None else "—"


def _known(record: Record, say: Say) -> str:
    half = _half_width(record)
    return say("too noisy") if half is None else f"±{number(100 * half, 2)} %"


def _whole(record: Record, price: Price, say: Say) -> str:
    """How long the reference recipe would take at this speed, to its cap, and what that would cost."""
    items, rate = count_reference_items(record), _value(record, "p_core")
    if not items or not rate:
        return "—"
    seconds = items / rate
    told = say("{days} days").format(days=number(seconds / DAY_S, 2 if seconds < 100 * DAY_S else 3))
    if seconds > 2 * YEAR_S:
        told = say("{years} years").format(years=number(seconds / YEAR_S, 2))
    if price.device_hour is None:
        return told
    devices = Topology.parse(record.plan.topology).devices
    return f"{told}, {number(price.device_hour * devices * seconds / HOUR_S, 2)} {price.currency}".rstrip()


def count_reference_items(record: Record) -> float | None:
    """Items of the reference recipe up to its cap; None where that is not known."""
    facts = facts_of(record)
    if facts is None or record.plan.workload not in workloads.names():
        return None
    workload = workloads.load(record.plan.workload)
    reference = workload.recipes["reference"]
    per_step = workload.reference_global_batch * (facts.items_per_sample or 0)
    caps = (reference.items, reference.steps * per_step, reference.epochs * (facts.items_per_epoch or 0))
    return min((cap for cap in caps if cap), default=None)


def _beside(record: Record, speeds: Sequence[PublishedSpeed], say: Say) -> str:
    found = find_nearest(record, speeds)
    own = rate_per_device(record, found.metric) if found else None
    if found is None or own is None:
        return ""
    words = {"device": names.short_device(found.row.device), "times": format_times(own, found.rate)}
    told = say("{device}: {times} times faster") if own < found.rate else say("{device}: {times} times slower")
    return told.format(**words)


def _describe_trained(record: Record, say: Say) -> str:
    return f"{name_network(record)}: {_speed(record)}; {describe_learning(record, say)}"


def _list_untried(records: Sequence[Record], say: Say) -> str:
    tried = {record.plan.workload for record in records if record.plan.recipe_name != TRAINED}
    others = [facts for facts in workloads.all_facts() if facts.name not in tried]
    if not others:
        return ""
    titles = ", ".join(facts.title for facts in others)
    return say("not tried at full size: {titles} (trainmark run {name})").format(titles=titles, name=others[0].name)


def _find_notes(full: Sequence[Record], small: Sequence[Record], say: Say) -> Iterable[str]:
    """What a reader should know, each with what to do about it."""
    loads = [record.environment.others or 0.0 for record in full]
    if any(doubt.code == "foreign-load" for record in full for doubt in record.doubts):
        yield say("others used {percent} % of the machine: trainmark doctor names them").format(
            percent=f"{100 * max(loads):.0f}"
        )
    waits = [
        (1 - (_value(record, "p_whole") or 0.0) / core, title_of(record))
        for record in full
        if (core := _value(record, "p_core"))
    ]
    if waits and max(waits)[0] > WAITS:
        share_lost, network = max(waits)
        yield say("waiting for data and evaluating costs {network} {percent} %: trainmark show --all has where").format(
            network=network, percent=f"{100 * share_lost:.0f}"
        )
    if any(record.metrics.get("throttled") and (_value(record, "throttled") or 0) > 0 for record in full):
        yield say("a device was slowed by heat or power: trainmark doctor")
    used = [found for record in full if (found := _value(record, "mfu")) is not None]
    if used and max(used) > 70:
        yield say("{percent} % of what matmuls reach here: little is left to gain in software").format(
            percent=f"{max(used):.0f}"
        )
    if any(record.plan.data.synthetic for record in full):
        yield say("data is synthetic: the speed is real, a quality on the real set needs --data")


def _list_next(
    records: Sequence[Record], speeds: Sequence[PublishedSpeed], page: str | None, say: Say
) -> Iterable[tuple[str, str]]:
    if page:
        yield say("Page"), page
    yield say("Better"), f"trainmark run --budget 15m   {say('all workloads, and speeds known better')}"
    found = next(((record, near) for record in records if (near := find_nearest(record, speeds))), None)
    if found is not None:
        record, near = found
        yield say("Compare"), f"trainmark compare {near.row.name} {record.run_id.rpartition('-')[2]}"
    yield say("Words"), f"trainmark explain p_core     {say('what a number means')}"


def format_minutes(seconds: float) -> str:
    """`12 s`, `3 min 04 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
