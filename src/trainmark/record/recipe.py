"""The hyperparameters of a training, and how they deviate from the reference recipe."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trainmark.record.errors import UsageError, nearest
from trainmark.record.numbers import Finite, Whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST = 2**53
"""Of all numbers a recipe or a limit may hold; beyond it a computer cannot count in steps of one everywhere."""
Value = Whole | Finite | bool | str


def knob(
    default: Any = MISSING,
    *,
    short: str = "",
    least: float | None = None,
    most: float | None = None,
    words: Sequence[str] = (),
    span: bool = False,
    run: bool = False,
) -> Any:
    """A recipe field with the bounds `--set` is held to; `short` is its name in the tables' fix_hp column. Where `span`
    is true, a length such as `500 steps` is taken beside the words. Where `run` is true, it names a run; planning
    replaces it by the file of its weights, and puts their hash into the field of the same name with `_sha256`."""
    bounds = {"short": short, "least": least, "most": most, "words": tuple(words), "span": span, "run": run}
    return field(default=default, metadata=bounds)


@dataclass(frozen=True)
class Span:
    """A length of training: `1 epoch`, `16000 steps` or `1e9 items`; `4 epochs from 1` are 1, 5, 9, ..."""

    count: float
    unit: str
    """`steps`, `epochs` or `items`; items are counted over all devices."""
    first: int = 0
    """Of epochs: by how many they are shifted."""

    @classmethod
    def parse(cls, text: str) -> Span:
        number = r"[0-9][0-9.]*(?:[eE]\+?[0-9]+)?"
        found = re.fullmatch(rf"\s*({number})\s*(step|epoch|item)s?(?:\s+from\s+([0-9]{{1,9}}))?\s*", text)
        count = float(found[1]) if found and found[1].count(".") < 2 else 0.0
        first = int(found[3] or 0) if found else 0
        if found is None or not 1 <= count < math.inf or (found[2] != "item" and count != int(count)):
            raise UsageError(f"{text!r} is not a length of training; try '1 epoch', '500 steps' or '1e6 items'")
        if first and (found[2] != "epoch" or first >= count):
            raise UsageError(f"{text!r} begins too late; 'from' counts epochs, and less than one length of them")
        return cls(count, found[2] + "s", first)

    def __str__(self) -> str:
        shown = f"{self.count:.0f}" if self.count == int(self.count) and self.count < 1e6 else f"{self.count:g}"
        later = f" from {self.first}" if self.first else ""
        return f"{shown} {self.unit.removesuffix('s') if self.count == 1 else self.unit}{later}"


@dataclass(frozen=True, kw_only=True)
class RecipeKind:
    """How a recipe of a certain name is fitted to a machine."""

    real_data: bool = False
    """Uses the real data set of the site file; the others use synthetic data."""
    shares_batch: bool = False
    """Keeps the global batch: it is divided among the devices, not multiplied by them."""
    finds_batch: bool = False
    """Searches the batch that fills a device, and scales the learning rate with it."""


RECIPES = {
    "reference": RecipeKind(real_data=True),
    "fill": RecipeKind(real_data=True, finds_batch=True),
    "quick": RecipeKind(),
    "smoke": RecipeKind(shares_batch=True),
}
"""Recipes every workload has."""
_OTHER_RECIPES = {"mlperf": RecipeKind(real_data=True)}
"""Recipes some workloads have; any other name is of the plain kind."""


def get_recipe_kind(recipe_name: str) -> RecipeKind:
    return RECIPES.get(recipe_name) or _OTHER_RECIPES.get(recipe_name, RecipeKind())


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where a run stops before its recipe would; without any, at the recipe's target or cap."""

    steps: Whole | None = None
    seconds: Whole | Finite | None = None
    epochs: Whole | None = None
    items: Whole | None = None
    """What throughput counts, over all devices."""
    half_width: Finite | None = None
    """Stop once the 95 % interval of p_core is within this share of it."""
    wall_s: Whole | Finite | None = None
    """Stop in time to end so long after the launch: a run's share of a budget, start-up and set-up included."""

    @property
    def to_target(self) -> bool:
        """True where the run ends when it reaches its target, if not before."""
        return self.steps is None and self.items is None and self.seconds is None and self.half_width is None

    @property
    def full(self) -> bool:
        """True where throughput covers all training steps, as in the published tables; else the steady part only."""
        return self.to_target and self.wall_s is None

    def most_steps(self, items_per_step: float) -> int | None:
        """How many steps the limits of steps and items leave, counted from where the run began."""
        by_items = None if self.items is None else math.ceil(self.items / items_per_step)
        return min((most for most in (self.steps, by_items) if most is not None), default=None)

    def __str__(self) -> str:
        shown = {
            "{} steps": self.steps,
            "{} items": self.items,
            "p_core known to ±{:g} %": None if self.half_width is None else 100 * self.half_width,
            "{:g} s": self.seconds,
            "{} epochs": self.epochs,
        }
        parts = [text.format(value) for text, value in shown.items() if value is not None]
        if self.wall_s is not None:
            parts = [*(parts or ["the target"]), f"{self.wall_s:g} s with start-up"]
        return " or ".join(parts) or "the target or the recipe's cap"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The fields of every recipe; a workload adds its own in a subclass."""

    batch_per_device: int = knob(short="bs", least=1)
    learning_rate: float = knob(short="lr", least=0)
    weight_decay: float = knob(short="wd", least=0)
    epochs: int = knob(0, least=0)
    """The cap: training ends here even if the target was not reached; 0: none in epochs, as for an endless stream."""
    steps: int = knob(0, least=0)
    """The same in steps; 0: none. Where there are several caps, the first to be reached counts."""
    items: int = knob(0, least=0)
    """The same in what throughput counts, over all devices."""
    target: float = knob()
    """The quality at which training ends, in the unit of the workload's target."""
    eval_batch_per_device: int = knob(256, short="eval_bs", least=1)
    evaluate_first: bool = knob(False)
    evaluate_every: str = knob("1 epoch", words=("end",), span=True)
    """A length such as `1 epoch`, `500 steps` or `1e6 items`; `4 epochs from 1` is after epochs 1, 5, 9, ...; `end`: at
    the cap only, where all evaluate."""
    evaluate_after_limit: bool = knob(False)
    """Evaluate once more when a limit of steps, items or seconds ended the run."""
    checkpoint_every: str = knob("end", words=("end", "never"), span=True)
    """A length as of `evaluate_every`, and at the end; `end`: only there; `never`: not even there."""
    leave_sample: bool = knob(False)
    """After training, save a sample of the network's output beside the record."""
    seed: int = knob(0, least=0)
    input_workers: int = knob(-1, least=-1)
    """Data-loading processes per rank; -1 divides the cores among the ranks, 0 works inside the trainer."""
    implementation: str = knob("plain", words=("plain",))
    """`plain`: the network by torch's own operators and autograd. A workload whose network also has hand-written
    gradients, proved equal by a test, takes `fast` too."""
    memory_format: str = knob("channels_last", words=("channels_last", "contiguous"))
    optimizer_kind: str = knob("fused", words=("fused", "foreach", "plain"))
    """How the optimizer walks the parameters; the arithmetic is the same."""
    clip_gradient_norm: float = knob(0.0, least=0)
    """The norm of all gradients together is brought down to this; 0: gradients are not clipped."""
    accumulate: int = knob(1, least=1)
    """Micro-batches whose gradients make one step; each holds `batch_per_device` samples."""
    average_decay: float = knob(0.0, least=0, most=0.999999)
    """The network is judged by the average of its weights over steps, of which each step takes this share over and at
    most (1 + t) / (10 + t) after t steps, so that the beginning is soon forgotten; 0: by its weights themselves."""
    batch_norm: str = knob("per-device", words=("per-device", "all-devices"))
    """Whose samples a batch norm takes its mean and variance from in training: each device's own, as published runs do,
    or all devices' together, which makes a step the same however many share its batch."""
    compiled: str = knob("no", words=("no", "yes", "blocks"))
    """`yes` trains the network through torch.compile, `blocks` each block of a network that names them; the first
    steps, in which it compiles, are warm-up."""
    parallel: str = knob("ddp", words=("ddp", "fsdp", "hsdp"))
    """How ranks share a network: `ddp` gives each all of it, `fsdp` shards it over all of them, `hsdp` over those of a
    node, and nodes average gradients."""
    evaluate_in: str = knob("same", words=("same", "fp32"))
    """Precision of evaluation where training runs under autocast: `same` as training, or without autocast."""
    host_settings: str = knob("tuned", words=("tuned", "default"))
    """`tuned` starts the workers with the allocator and thread settings their platform file lists."""

    @property
    def step_batch_per_device(self) -> int:
        """Samples a device takes in one step, over all its micro-batches."""
        return self.batch_per_device * self.accumulate

    @property
    def tensor_parallel(self) -> int:
        """Devices that compute each block together; a recipe whose network can be cut so has a field for it."""
        return 1

    @property
    def score_clips(self) -> int:
        """Validation sentences that are scored after training; a recipe of a network that speaks has a field for it."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One field in which a run's recipe is not the reference recipe."""

    name: str
    short: str
    reference: Value
    actual: Value

    def __str__(self) -> str:
        shown = f"{self.actual:g}" if isinstance(self.actual, float) else str(self.actual)
        return f"{self.short or self.name}={shown}"


FAST_OR_PLAIN = knob("fast", words=("fast", "plain"))
"""`implementation` of a recipe whose network has hand-written gradients."""

AnyRecipe = TypeVar("AnyRecipe", bound="DataclassInstance")
"""A recipe, or settings of another kind whose fields are knobs."""


def deviations(actual: Recipe, reference: Recipe) -> tuple[Deviation, ...]:
    """Every field whose value differs, in the recipe's order."""
    return tuple(
        Deviation(
            name=f.name,
            short=f.metadata.get("short", ""),
            reference=getattr(reference, f.name),
            actual=getattr(actual, f.name),
        )
        for f in fields(actual)
        if getattr(actual, f.name) != getattr(reference, f.name)
    )


def fix_hp(found: Sequence[Deviation], most: int = 2) -> str:
    """The tables' word for what differs from the reference recipe: `/` where nothing does."""
    shown = ",".join(str(deviation) for deviation in found[:most])
    return (shown + (f",+{len(found) - most} more" if len(found) > most else "")) or "/"


def apply_settings(recipe: AnyRecipe, settings: Sequence[str]) -> AnyRecipe:
    """The recipe with `key=value` settings applied; UsageError for an unknown key or an invalid value."""
    changes: dict[str, Value] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign:
            raise UsageError(f"--set {setting!r} is not key=value; try '--set learning_rate=0.8'")
        changes[key.strip()] = _parse_setting(type(recipe), key.strip(), text.strip())
    return from_values(type(recipe), {**to_values(recipe), **changes})


def to_values(recipe: DataclassInstance) -> dict[str, Value]:
    return {f.name: getattr(recipe, f.name) for f in fields(recipe)}


def from_values(kind: type[AnyRecipe], values: Mapping[str, Value]) -> AnyRecipe:
    known, hints = {f.name: f.metadata for f in fields(kind)}, typing.get_type_hints(kind)
    for name in values:
        if name not in known:
            raise UsageError(f"setting {name!r} is not known; {nearest(name, known)}")
    return kind(**{name: _check_value(name, value, hints[name], known[name]) for name, value in values.items()})


_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _check_value(name: str, value: Any, wanted: Any, bounds: Mapping[str, Any]) -> Value:
    """The value, a length in its usual spelling; UsageError where the field does not take it."""
    words, least, most = bounds.get("words", ()), bounds.get("least"), bounds.get("most")
    problem = ""
    try:
        msgspec.convert(value, wanted)
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"setting {name} must be a finite number, not {value}")
        if isinstance(value, (int, float)) and abs(value) > LARGEST:
            problem = f"at most {LARGEST:g}"
        elif least is not None and value < least:
            problem = f"at least {least:g}"
        elif most is not None and value > most:
            problem = f"at most {most:g}"
    except msgspec.ValidationError:
        problem = _TYPE_WORDS.get(wanted, "text")
    if problem:
        raise UsageError(f"setting {name} must be {problem}, not {value!r}")
    if value in words or not (words or bounds.get("span")):
        return typing.cast(Value, value)
    if not bounds.get("span"):
        raise UsageError(
            f"setting {name} must be one of {', '.join(words)}, not {value!r}; {nearest(str(value), words)}"
        )
    try:
        return str(Span.parse(value))
    except UsageError as error:
        raise UsageError(f"setting {name} must be {' or '.join(words)} or a length: {error}") from None


def _parse_setting(kind: type[DataclassInstance], key: str, text: str) -> Value:
    names = {f.name: f.metadata.get("short") for f in fields(kind)}
    if key not in names:
        meant = next((name for name, short in names.items() if short == key), None)
        hint = f"did you mean {meant!r}?" if meant else nearest(key, names)
        raise UsageError(f"setting {key!r} is not known; {hint}")
    wanted = typing.get_type_hints(kind)[key]
    if wanted is bool:
        text = {"yes": "true", "no": "false"}.get(text.lower(), text)
    try:
        return typing.cast(Value, msgspec.convert(text, wanted, strict=False))
    except msgspec.ValidationError:
        raise UsageError(f"setting {key} must be {_TYPE_WORDS.get(wanted, 'text')}, not {text!r}") from None
