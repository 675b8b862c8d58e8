"""What a series of step times says: where it becomes steady, how fast it is and how surely, whether it drifts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainmark.record.numbers import CONFIDENCE, WIDEST, around, quantile

Series = NDArray[np.float64]

MIN_STEPS = 8
"""Below this many steps no interval is given: the spread of so few values is a guess."""

MIN_STEPS_FOR_DRIFT = 16
"""Below this many steps a trend cannot be told from the wander of a correlated series."""

DRIFT_THAT_MATTERS = 0.02
"""A smaller change from the first step to the last is not called a drift, however certain it is."""

_MAX_POINTS = 4096  # a longer series is summed in runs of equal length first: the slow wander that matters stays
_CERTAIN_SPLIT = 0.9998  # the best of all splits is chosen, so its bar is higher than that of a line
_CERTAIN_LINE = 0.999
_SLOWEST, _WANDERING = 4, 0.1  # so many cosines stand alone where chance gives them their power less often than that
_HIGHEST_CORRELATION = 0.95  # beyond it the correction would amplify its own noise


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A throughput and the range its true value lies in with 95 % confidence."""

    value: float
    """Items per second: sum of items / sum of seconds."""
    error: float
    """Standard error of the value's logarithm."""
    half_width: float
    """Of the interval, on the logarithm."""
    steps: int
    degrees: int
    """Of freedom: how surely the spread behind the interval is known itself."""

    @property
    def low(self) -> float:
        return around(self.value, self.half_width)[0]

    @property
    def high(self) -> float:
        return around(self.value, self.half_width)[1]

    @property
    def share(self) -> float:
        """0.01 reads "±1 %"."""
        return math.expm1(self.half_width)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How a series of step times changed on its way, and whether that is large and certain enough to doubt it."""

    rates: tuple[float, float]
    """Items a second before and after the change, hiccups left out; of a slow drift, at the first step and the last."""
    at: int | None
    """The first step at the second rate; None where one rate went over into the other little by little."""
    until: int | None = None
    """The first step that was as before again; None where none was."""
    significant: bool
    """A steady series looks like this less than once in a hundred times."""

    @property
    def relative_change(self) -> float:
        """Of the time a step takes: +0.03 reads "steps became 3 % slower"."""
        before, after = self.rates
        return before / after - 1 if after else 0.0

    @property
    def is_drifting(self) -> bool:
        """Certain, and more than 2 %."""
        return self.significant and abs(self.relative_change) > DRIFT_THAT_MATTERS


def scale_to_mean_items(step_s: Series, items: Series) -> Series:
    """What each step would have taken with the mean number of items; the times themselves where all hold as many.

    A step of mel frames takes longer the more of them it holds, which is neither warm-up, drift nor unrest. So the part
    of each time that goes with its items is taken out: the slope of a straight line through times over items, fitted
    with outliers clipped to four robust deviations. The line may stand on a time that every step needs whatever it
    holds, which the plain ratio of seconds to items would take for unrest.
    """
    if not len(items) or items.min() == items.max():
        return step_s
    return _remove_slope(items, step_s, _seconds_per_item(step_s, items))


def find_steady_start(step_s: Series, items: Series | None = None) -> int:
    """The index of the first step after the warm-up; never more than half of the series lies before it.

    Warming up means getting faster. Two rules:

    1. Single slow steps at the very start (compilation, allocation, tuning) belong to the warm-up with all before them:
       among the first tenth of the steps (at least 3, at most 10) and right behind, those more than five robust
       deviations above the median of the second half, unless steps as slow keep occurring there.
    2. For what fades slowly: where the rest is best split into two levels, as `drift` does it, of which the second is
       faster at the 0.5 % level, correlation of neighbours respected, the first is warm-up; and again, until nothing
       more is found. Fewer than 16 steps are too few for this rule.

    Steps that became slower are drift, not warm-up: only the part before is searched for a warm-up, and everything from
    its end on counts. The same holds where they became faster only after half of the series. Where items differ from
    step to step, times are first passed through `scale_to_mean_items`, with the slope of the second half.
    """
    most = end = len(step_s)
    while True:
        start, changed_at = _find_warmup(step_s[:end], None if items is None else items[:end], most // 2)
        if changed_at is None:
            return start
        end = changed_at


def _find_warmup(step_s: Series, items: Series | None, most: int) -> tuple[int, int | None]:
    """Where the warm-up ends; and the step at which another change came that is none, if one did."""
    half = len(step_s) // 2
    if items is not None and len(items) and items.min() != items.max():
        step_s = _remove_slope(items, step_s, _seconds_per_item(step_s[half:], items[half:]))
    centre, deviation = _centre_and_deviation(step_s[half:])
    start = _end_of_slow_first_steps(step_s, half, centre + 5 * deviation)
    while len(step_s) - start >= MIN_STEPS_FOR_DRIFT and (logs := _clipped_logs(step_s[start:])) is not None:
        fit = _fit_two_levels(logs)
        at = start + _unfold(fit.at or 0, len(step_s) - start)
        faster = fit.levels[1] < fit.levels[0]
        if faster and at <= most and fit.is_certain_at(0.9975):
            start = at
        else:
            return start, at if fit.is_certain_at(_CERTAIN_SPLIT) else None
    return start, None


def mean_interval(step_s: Series, items: Series) -> Interval | None:
    """The throughput of these steps and its confidence interval; None for fewer than 8 steps, or if they took no time.

    Give the steps that count, those from `find_steady_start` on: nothing is left out here.

    The interval is of the throughput's logarithm. Throughput is a ratio of sums, so its variance is that of `items -
    throughput * seconds` per step, over the square of the mean step; steps whose time follows their items (mel frames)
    therefore do not widen it. Neighbouring steps
    resemble each other, so the variance is the long-run one: the series is prewhitened with its lag-1 correlation
    (corrected for its bias in short series), the variance near frequency zero is the mean square of the first
    v = 0.65 sqrt(n) cosine coefficients (4 <= v <= 30), and the quantile is Student's with v degrees of freedom
    (Andrews and Monahan 1992; Lazarus, Lewis, Stock and Watson 2018). Where the four slowest of them hold more power
    than the others, which chance does once in ten series, they alone count: so a wander slower than the others see is
    half seen, and the interval of an ordinary series is 4 % wider in the mean.

    Measured coverage of the 95 % interval at 30, 100 and 400 steps (bench/drift.py): 91 to 96 % for independent normal
    and lognormal steps (sigma up to 1) and, at a sigma of 5 %, for lag-1 correlations up to 0.8; both together, sigma 1
    and correlation 0.8, 86 to 90 %, up to 3 points less than the interval that was symmetric around the value, half of
    whose lower ends lay below zero there; cutting with `find_steady_start` first costs 1 to 4 points
    (6 at 30 steps with correlation 0.8).
    Where it falls short: 8 to 16 steps with a correlation above 0.5, 80 to 90 %; correlation 0.9 with 30 steps, 88 %;
    a slow wander under three times as strong independent noise, 81, 72, 76, 84 and 88 % with 30, 100, 200, 400 and
    1,000 steps if neighbours in it are correlated by 0.98 (at 0.95: 85, 85, 88, 90 and 93 %), as a run of a few swings
    cannot tell their mean; and rare spikes, which no method can know before they occur: steps three times as long, one
    in fifty, 51 % with 30 steps, 86 % with 100, 93 % with 400. As a rule, what happens fewer than five times in the
    series is not in its interval.
    """
    n = len(step_s)
    if n < MIN_STEPS or not step_s.any():
        return None
    throughput = float(items.sum() / step_s.sum())
    residual = items - throughput * step_s
    if float(np.abs(residual).max()) <= 1e-12 * float(items.mean()):  # nothing but rounding
        residual = np.zeros(n)
    variance, degrees = _long_run_variance(residual, wander=True)
    error = math.sqrt(variance / n) / float(step_s.mean()) / throughput if throughput else 0.0
    half_width = min(WIDEST, quantile(0.5 + CONFIDENCE / 2, degrees) * error)
    return Interval(value=throughput, error=error, half_width=half_width, steps=n, degrees=degrees)


def estimate_steps_needed(step_s: Series, items: Series, relative_half_width: float = 0.01) -> int:
    """About how many more steps would bring the interval to the given half-width; 0 if it is there already.

    A forecast from the spread seen so far, and as rough: mostly within a factor of two from 100 steps on, of three
    from 30 on. A series too short for an interval is asked to become long enough for one.
    """
    n = len(step_s)
    interval = mean_interval(step_s, items)
    if interval is None:
        return max(0, MIN_STEPS - n)
    wanted_half_width = math.log1p(relative_half_width)
    total = n
    for _ in range(50):  # the quantile shrinks as the series grows; this settles in a few rounds
        wanted = n * (interval.error * quantile(0.5 + CONFIDENCE / 2, _degrees(total)) / wanted_half_width) ** 2
        if abs(wanted - total) <= 0.001 * total:
            break
        total = max(MIN_STEPS, math.ceil(wanted))
    return max(0, math.ceil(wanted) - n)


def detect_drift(step_s: Series, items: Series | None = None) -> Drift | None:
    """Whether the steps given became slower or faster, at once or little by little; None for fewer than 16 steps.

    Give the steps that count, those from `find_steady_start` on. Three models of their logarithms are fitted, with
    outliers clipped to four robust deviations from the running median, which keeps a change of level and removes single
    steps: two levels, a straight line, and a stretch at another level than what is before and after it. Each is tested
    against the prewhitened cosine variance of its residuals; of the first two the certain one with the smaller residual
    is reported, the third where neither is certain.

    A steady series is called drifting in at most 2 of 100 cases up to a lag-1 correlation of 0.5, in 3 or 4 at 0.8.
    Found in at least 95 of 100 cases, under 1 % of noise with a correlation of 0.5, if it begins 30 to 50 % into the
    series: 5 % slower from 100 steps on, 10 % from 40 on. Where items differ from step to step, times are first passed
    through `scale_to_mean_items`.
    """
    mean_items = 1.0
    if items is not None and len(items):
        step_s, mean_items = scale_to_mean_items(step_s, items), float(np.mean(items))
    if len(step_s) < MIN_STEPS_FOR_DRIFT:
        return None
    logs = _clipped_logs(step_s)
    if logs is None:
        return Drift(rates=(0.0, 0.0), at=None, significant=False)
    split, line, stretch = _fit_two_levels(logs), _fit_line(logs), _fit_stretch(logs)
    certain = [fit for fit, bar in ((split, _CERTAIN_SPLIT), (line, _CERTAIN_LINE)) if fit.is_certain_at(bar)]
    if not certain and stretch is not None and stretch.is_certain_at(1 - 0.02 / len(logs) ** 2):  # of so many pairs
        certain = [stretch]
    fit = min(certain, default=line, key=lambda found: found.left)
    first_s, last_s = (math.exp(level) for level in fit.levels)
    return Drift(
        rates=(mean_items / first_s, mean_items / last_s),
        at=None if fit.at is None else _unfold(fit.at, len(step_s)),
        until=None if fit.until is None else _unfold(fit.until, len(step_s)),
        significant=bool(certain) and abs(fit.levels[1] - fit.levels[0]) > 1e-9,  # less than that is rounding
    )


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """One model of how a series changed."""

    levels: tuple[float, float]
    at: int | None = None
    """The first value of the second level; None where there are none."""
    until: int | None = None
    """The first value behind it."""
    left: float
    """The sum of squares that it does not explain."""
    error: float
    """Of the difference of the levels."""
    degrees: int

    def is_certain_at(self, probability: float) -> bool:
        change = abs(self.levels[1] - self.levels[0])
        return change > quantile(probability, self.degrees) * self.error


def _fit_two_levels(values: Series, *, beside: float = 0.0) -> _Fit:
    """Of all ways to split a series in two, the one that leaves least; `beside` is left anyway."""
    n = len(values)
    fewest = max(4, n // 20)
    at = np.arange(fewest, n - fewest + 1)
    sums = np.cumsum(values)
    before, after = sums[at - 1] / at, (sums[-1] - sums[at - 1]) / (n - at)
    best = int(np.argmax((after - before) ** 2 * at * (n - at)))
    split, levels = int(at[best]), (float(before[best]), float(after[best]))
    left = values - np.where(np.arange(n) < split, *levels)
    variance, degrees = _long_run_variance(left, removed=1, least_degrees=min(8, max(5, n // 5)))
    error = math.sqrt(variance * (1 / split + 1 / (n - split)))
    return _Fit(levels=levels, at=split, left=beside + float(left @ left), error=error, degrees=degrees)


def _fit_stretch(values: Series) -> _Fit | None:
    """The best split, and the best of one of its parts: what lies between, if it differs alike from both sides."""
    n = len(values)
    fewest = max(4, n // 20)
    first = _fit_two_levels(values).at or 0
    others = [
        (fit.left, begin + (fit.at or 0))
        for begin, part, rest in ((0, values[:first], values[first:]), (first, values[first:], values[:first]))
        if len(part) >= max(2 * fewest, MIN_STEPS)
        for fit in [_fit_two_levels(part, beside=float(np.square(rest - rest.mean()).sum()))]
    ]
    if not others:
        return None
    begin, end = sorted((first, min(others)[1]))
    before, inside, behind = values[:begin], values[begin:end], values[end:]
    outside = (float(before.sum()) + float(behind.sum())) / (n - len(inside))
    level = float(inside.mean())
    if (level - before.mean()) * (level - behind.mean()) <= 0:
        return None
    left = np.concatenate([part - part.mean() for part in (before, inside, behind)])
    variance, degrees = _long_run_variance(left, removed=2, least_degrees=min(8, max(6, n // 5)))
    error = math.sqrt(variance * (1 / len(inside) + 1 / (n - len(inside))))
    return _Fit(levels=(outside, level), at=begin, until=end, left=float(left @ left), error=error, degrees=degrees)


def _fit_line(values: Series) -> _Fit:
    n, mean = len(values), float(values.mean())
    line = (np.arange(n) - (n - 1) / 2) / n  # rises by 1 from the first step to the last
    change = float(line @ values / (line @ line))
    left = values - mean - change * line
    variance, degrees = _long_run_variance(left, removed=1, least_degrees=min(8, max(5, n // 5)))
    error = math.sqrt(variance / float(line @ line))
    levels = (mean - change / 2, mean + change / 2)
    return _Fit(levels=levels, left=float(left @ left), error=error, degrees=degrees)


def _clipped_logs(step_s: Series) -> Series | None:
    """Logarithms of at most a few thousand means, hiccups clipped; None where no step took any time.

    A hiccup lies more than four robust deviations off the median of its neighbours: that takes single steps, and leaves
    a change of level as it is.
    """
    if not step_s.any():
        return None
    values = np.log(np.maximum(_fold_means(step_s), 1e-3 * float(np.median(step_s[step_s > 0]))))
    reach = max(2, min(len(values) // 10, 12))
    near = np.lib.stride_tricks.sliding_window_view(np.pad(values, reach, mode="reflect"), 2 * reach + 1)
    level = np.median(near, axis=1)
    deviation = 1.4826 * float(np.median(np.abs(values - level)))
    return np.asarray(np.clip(values, level - 4 * deviation, level + 4 * deviation))


def _centre_and_deviation(values: Series) -> tuple[float, float]:
    """Median, and the median distance from it scaled to a normal's deviation, at least 1 % of the median."""
    if not len(values):
        return 0.0, 0.0
    centre = float(np.median(values))
    return centre, max(1.4826 * float(np.median(np.abs(values - centre))), 0.01 * centre)


def _remove_slope(items: Series, step_s: Series, slope: float) -> Series:
    return np.asarray(np.maximum(step_s - slope * (items - items.mean()), 0.0))


def _seconds_per_item(step_s: Series, items: Series) -> float:
    """What one item more adds to a step; never below 0."""
    spread, many = items - items.mean(), items >= items.mean()
    if many.all() or not many.any():  # nothing to fit: a step twice as large is taken to need twice as long
        return float(step_s.sum() / items.sum()) if items.any() else 0.0
    # begins with medians, which no hiccup moves far
    apart = float(np.median(items[many]) - np.median(items[~many]))
    slope = float(np.median(step_s[many]) - np.median(step_s[~many])) / apart
    for _ in range(3):
        level = step_s - slope * items
        centre = float(np.median(level))
        deviation = max(1.4826 * float(np.median(np.abs(level - centre))), 0.01 * float(np.median(step_s)))
        slope += float(spread @ np.clip(level - centre, -4 * deviation, 4 * deviation)) / float(spread @ spread)
    return max(slope, 0.0)


def _end_of_slow_first_steps(step_s: Series, most: int, slow: float) -> int:
    later = step_s[most:]

    def is_warmup(i: int) -> bool:
        as_slow_later = int(np.count_nonzero(later >= 0.9 * step_s[i]))
        return float(step_s[i]) > slow and as_slow_later <= max(1, 0.02 * len(later))

    first = min(most, max(3, min(10, len(step_s) // 10)))
    end = max((i + 1 for i in range(first) if is_warmup(i)), default=0)
    while 0 < end < most and is_warmup(end):
        end += 1
    return end


def _long_run_variance(
    residual: Series, *, removed: int = 0, least_degrees: int = 4, wander: bool = False
) -> tuple[float, int]:
    """n times the variance of the mean of a correlated series that was centred, and its degrees of freedom.

    Where a fitted line or level was `removed` too, one of the slow cosines went with it, and a degree of freedom. With
    `wander`, the slowest cosines alone count where they hold more power than the others by Fisher's F.
    """
    degrees = max(_degrees(len(residual)), least_degrees)
    folded = _fold_means(residual)
    fold, n = len(residual) // len(folded), len(folded)
    square = float(folded @ folded)
    if square == 0:
        return 0.0, degrees
    correlation = float(folded[1:] @ folded[:-1]) / square
    unbiased = (n * correlation + 1 + removed) / (n - 4)  # short series look less correlated than they are
    kept = min(max(unbiased, 0.0), _HIGHEST_CORRELATION, 1 - 3 / n)  # a short series cannot tell a higher one
    white = folded[1:] - kept * folded[:-1]
    points = (np.arange(n - 1) + 0.5) / (n - 1)
    cosines = math.sqrt(2 / (n - 1)) * np.cos(np.pi * np.outer(np.arange(1, degrees + 1), points))
    power = np.square(cosines @ white)
    others = (degrees - _SLOWEST) / 2
    if wander and others > 0:
        share = float(power[_SLOWEST:].sum() / power.sum())
        if share**others * (1 + others * (1 - share)) < _WANDERING:  # of F with 4 degrees of freedom, in closed form
            power, degrees = power[:_SLOWEST], _SLOWEST
    degrees -= removed
    return fold * float(power.sum()) / degrees / (1 - kept) ** 2, degrees


def _fold_means(values: Series) -> Series:
    """A long series as at most a few thousand means of equally many neighbours; what does not fit goes at the front."""
    fold = _fold_length(len(values))
    return values[len(values) % fold :].reshape(-1, fold).mean(axis=1) if fold > 1 else values


def _fold_length(n: int) -> int:
    return -(-n // _MAX_POINTS)


def _unfold(index: int, n: int) -> int:
    """Where a mean of a folded series begins in the series of n values itself."""
    return n % _fold_length(n) + _fold_length(n) * index


def _degrees(n: int) -> int:
    return min(30, max(4, int(0.65 * math.sqrt(n))))
