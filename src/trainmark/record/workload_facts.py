"""Facts of a workload for those who never train it: names, data, qualities, reference recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

import msgspec

from trainmark.record.errors import UsageError, describe_misfit
from trainmark.record.numbers import Finite, Target, Whole
from trainmark.record.plan import Topology
from trainmark.record.recipe import RECIPES

if TYPE_CHECKING:
    from trainmark.record.plan import Plan


CHANCE, CLASSES = "chance", "classes"
"""The data facts with the accuracy of guessing, and among how many."""
Place = Literal["in the band", "above the band", "below the band"]


class Scored(Protocol):
    """An evaluation, of a record or of a running rank."""

    @property
    def step(self) -> int: ...

    @property
    def values(self) -> Mapping[str, float | None]: ...


class BandPoint(NamedTuple):
    samples: int
    """Trained on before the evaluation."""
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LossBand:
    """Range of public runs of a recipe, at one batch and learning rate."""

    quality: str
    global_batch: int
    learning_rate: float
    points: tuple[BandPoint, ...]
    source: str
    may_differ: frozenset[str]
    """Fields of the recipe in which those runs differed, too, or that do not change what is learnt."""


class BandVerdict(NamedTuple):
    samples: int
    value: float
    point: BandPoint
    place: Place


def find_band(plan: Plan, bands: Sequence[LossBand]) -> LossBand | None:
    """The band that applies to a plan; None where no public run is like it."""
    batch = int(plan.recipe["batch_per_device"]) * int(plan.recipe.get("accumulate", 1))
    batch *= Topology.parse(plan.topology).devices
    for band in bands:
        others = {deviation.name for deviation in plan.deviations} - band.may_differ
        alike = (band.global_batch, band.learning_rate) == (batch, plan.recipe["learning_rate"])
        if alike and not others and not plan.data.synthetic and plan.init_from is None:
            return band
    return None


def compare_to_band(band: LossBand, history: Sequence[Scored]) -> Iterator[BandVerdict]:
    """Compares the evaluation at each point of the band, the first that reaches it."""
    for evaluation in history:
        samples, value = evaluation.step * band.global_batch, evaluation.values.get(band.quality)
        point = next((at for at in band.points if at.samples <= samples < at.samples + band.global_batch), None)
        if point is not None and value is not None:
            place: Place = "in the band"
            if not point.low <= value <= point.high:
                place = "above the band" if value > point.high else "below the band"
            yield BandVerdict(samples, value, point, place)


@dataclass(frozen=True, kw_only=True)
class QualityFacts:
    """One number by which a trained model is judged."""

    name: str
    """As evaluations name it: `acc1`, `val_loss`."""
    unit: str = "-"
    better: Literal["higher", "lower"] = "higher"
    least: Finite | None = None
    most: Finite | None = None
    """No value lies outside these; None where there is no such bound."""
    counted: bool = False
    """True for a percentage of the evaluated samples that are right, so that it is a whole number of them."""
    word: str = ""
    """Its name in tables; by default `name`."""
    plain: str = ""
    """Its name in sentences, such as `accuracy`; by default `word`."""
    on_pages: tuple[str, ...] = ()
    """What published pages call it."""
    meaning: str = ""
    """What it is, as `trainmark explain` says it."""
    caution: str = ""
    """Why published values of it may not mean the same in every row."""
    beware: str = ""
    """What a reader of such rows should see to."""
    bar: str = ""
    """Which of the data's facts holds what a simpler way makes of the samples it is measured on, where one is known: a
    network that is no better has not learnt, and a doubt says so."""
    bar_word: str = ""
    """What that way is called: `linear prediction`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "word", self.word or self.name)
        object.__setattr__(self, "plain", self.plain or self.word)
        object.__setattr__(self, "on_pages", tuple(self.on_pages))

    @property
    def target(self) -> Target:
        return Target(name=self.name, unit=self.unit, better=self.better)


@dataclass(frozen=True, kw_only=True)
class ListeningTest:
    quality: str
    """As pages name it: `MOS`."""
    value: Finite
    margin: Finite
    """Of its 95 % interval, on either side."""
    by: str
    """Who asked whom, in a few words."""


@dataclass(frozen=True, kw_only=True)
class ReferenceFacts:
    batch_per_device: Whole
    learning_rate: Finite
    weight_decay: Finite
    epochs: Whole
    target: Finite
    global_batch: Whole
    """Over all devices and micro-batches."""
    accumulate: Whole = 1

    @property
    def recipe(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "global_batch"}


@dataclass(frozen=True, kw_only=True)
class ShowFacts:
    """What a trained network can show people."""

    takes: Literal["text", "sound", "image"]
    """What an INPUT is: a text itself, or the path of a file."""
    gives: Literal["text", "sound", "image"]
    """What the first part of a sample is."""
    does: str
    """`reads a text aloud`."""


@dataclass(frozen=True, kw_only=True)
class WorkloadFacts:
    name: str
    title: str
    """The network's name as people write it."""
    item: str
    """What throughput counts."""
    data_set: str
    qualities: Annotated[tuple[QualityFacts, ...], msgspec.Meta(min_length=1)]
    """The first is what training aims at."""
    task: str = ""
    """What the network does, in a word or two."""
    sample: str = "sample"
    """What one sample is called."""
    sample_words: tuple[str, ...] = ()
    """Words by which pages mean samples, where these are not the items."""
    items_per_sample: Finite | None = None
    """On average over the real set."""
    samples_per_epoch: Whole | None = None
    """Of the real training set."""
    flops_per_item: Finite | None = None
    """Of training the reference network on one item; a multiply-add is 2."""
    reference: ReferenceFacts | None = None
    recipes: tuple[str, ...] = tuple(RECIPES)
    on_pages: tuple[str, ...] = ()
    """Patterns of the names that published pages use for it."""
    quality_on_pages: str = ""
    """Column head of its quality on such pages; by default as in our tables."""
    listening_test: ListeningTest | None = None
    """What published opinions of the same model are held to."""
    bands: tuple[LossBand, ...] = ()
    """Where the losses of public runs of its reference recipe lay."""
    first_run: Whole = 0
    """Its place among the full-size networks of `run` without a workload; 0: it is tried only with more time."""
    learns_first: bool = False
    """Its recipe smoke is what `run` without a workload trains to a target."""
    shows: ShowFacts | None = None
    """What `trainmark sample` asks of a trained network; None where it has nothing to show."""

    @property
    def quality(self) -> QualityFacts:
        """What training aims at."""
        return self.qualities[0]

    @property
    def items_per_epoch(self) -> float | None:
        """Of the real training set; an average of items a sample makes this good to a few percent."""
        if self.samples_per_epoch is None or self.items_per_sample is None:
            return None
        return self.samples_per_epoch * self.items_per_sample

    def find_quality(self, name: str | None) -> QualityFacts | None:
        return next((quality for quality in self.qualities if quality.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """The part that records keep, for readers without the workload."""
        document = asdict(self)
        for name in (
            "sample_words",
            "on_pages",
            "quality_on_pages",
            "listening_test",
            "bands",
            "shows",
            "first_run",
            "learns_first",
        ):
            del document[name]
        for quality in document["qualities"]:
            for name in ("on_pages", "meaning", "caution", "beware"):
                del quality[name]
        return {**document, "qualities": list(document["qualities"]), "recipes": list(self.recipes)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WorkloadFacts:
        """UsageError where these are no facts; fields of a newer version that are not known here are left out."""
        try:
            return msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"these are no facts of a workload: {describe_misfit(error)}") from error


def derive_facts(workload: Any) -> WorkloadFacts:
    """The facts of a workload object: its own, or derived from its attributes."""
    own = getattr(workload, "facts", None)
    if isinstance(own, WorkloadFacts):
        return own
    target: Target = workload.target
    others = tuple(quality for quality in getattr(workload, "qualities", ()) if quality.name != target.name)
    aim = next((quality for quality in getattr(workload, "qualities", ()) if quality.name == target.name), None)
    recipe = workload.recipes["reference"]
    return WorkloadFacts(
        name=workload.name,
        title=getattr(workload, "title", workload.name),
        task=getattr(workload, "task", ""),
        item=workload.item,
        data_set=workload.data_set,
        qualities=(aim or QualityFacts(name=target.name, unit=target.unit, better=target.better), *others),
        recipes=tuple(workload.recipes),
        shows=getattr(workload, "shows", None),
        reference=ReferenceFacts(
            batch_per_device=recipe.batch_per_device,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            epochs=recipe.epochs,
            target=recipe.target,
            accumulate=recipe.accumulate,
            global_batch=workload.reference_global_batch,
        ),
    )
