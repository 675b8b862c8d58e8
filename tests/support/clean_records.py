"""Runs as a launcher, its ranks and its samplers leave them, written by hand and gathered by trainmark itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainmark import workloads
from trainmark.record import events, gather
from trainmark.record.events import EventWriter
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.precision import Precision
from trainmark.record.recipe import Limits, Recipe, deviations, to_values
from trainmark.record.record import Record
from trainmark.record.workload_facts import QualityFacts, ReferenceFacts, WorkloadFacts

MS = 1_000_000
LAUNCHED_NS = 5_000 * MS
GIB = 2**30

Scores = Callable[[int], Mapping[str, float]]


def pictures(right: int, samples: int = 200) -> Mapping[str, float]:
    return {
        "acc1": 100 * right / samples,
        "acc5": 100 * min(samples, right + 60) / samples,
        "val_loss": 3.217845678 - right / 90,
    }


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run does; everything it writes follows from this."""

    workload: str = "resnet50"
    recipe_name: str = "quick"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=lambda: Limits(steps=60))
    topology: str = "1x1"
    ranks: int = 1
    precision: str = "fp32"
    platform: str = "cpu"
    synthetic: bool = True
    plan: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    steps: int = 60
    steps_per_epoch: int = 25
    evaluate_at: tuple[int, ...] = (60,)
    scores: Scores = lambda step: pictures(20 + step // 3)
    samples: int = 200
    step_ms: float = 320.0
    ended: str | None = "the steps asked for are done"
    """None: the run was cut off."""
    bad_loss_at: int | None = None
    restart_after: int | None = None
    """The step at whose checkpoint the ranks were started again, four steps later."""
    resumed_at: int = 0
    device: str = "AMD EPYC"
    memory_bytes: int = 64 * GIB
    peak_tflops: float | None = 0.62
    power: bool = False
    fill: Mapping[str, Any] | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    carried: WorkloadFacts | None = None
    """What the record itself says of a workload that is not known here."""
    items: int | None = None
    """Of a step, where the workload is not known here."""
    artifacts: tuple[Mapping[str, str], ...] = ()

    def leave(self, folder: Path) -> Record:
        """Writes the run's folder, and returns the record made of it."""
        known = self.carried or workloads.facts(self.workload)
        assert known and known.reference
        reference = self.its_reference
        recipe = replace(reference, **self.recipe)
        plan = Plan(
            workload=self.workload,
            recipe_name=self.recipe_name,
            recipe=to_values(recipe),
            deviations=deviations(recipe, reference),
            topology=self.topology,
            precision=self.precision,
            platform=self.platform,
            data=DataChoice(name=known.data_set, folder="/data/set", synthetic=self.synthetic),
            limits=self.limits,
            **self.plan,
        )
        run_id = f"{self.workload}-{self.recipe_name}-{self.topology}-{self.precision}-20261115T205100-a1b2c3"
        head = {
            "run_id": run_id,
            "created": "2026-11-15T20:51:00Z",
            "group": self.group,
            "item": known.item,
            "target": asdict(known.quality.target),
            "reference_global_batch": known.reference.global_batch,
            **({"workload_facts": self.carried.to_json()} if self.carried else {}),
        }
        folder = folder / "runs" / run_id
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
        (folder / "run.json").write_text(json.dumps(head), encoding="utf-8")
        for rank in range(self.ranks):
            _Rank(self, rank, EventWriter(folder / f"rank{rank}.jsonl")).live()
        if self.fill:
            EventWriter(folder / "launcher.jsonl").write(events.BatchFound(**self.fill))
        _sample(self, folder)
        record = gather.gather_record(folder)
        assert Record.from_json(json.loads(record.dumps())) == record
        return record

    @property
    def its_reference(self) -> Recipe:
        known = self.carried or workloads.facts(self.workload)
        assert known and known.reference
        return Recipe(**known.reference.recipe)

    def span_ns(self, folder: Path) -> tuple[int, int]:
        """When rank 0 trained, by its own log."""
        events = [json.loads(line) for line in (folder / "rank0.jsonl").read_bytes().splitlines() if line]
        begin = next(event["at_ns"] for event in events if event["event"] == "ready")
        ends = [event["at_ns"] for event in events if event["event"] == "phases"]
        return begin, ends[-1] if ends else begin + int(self.steps * self.step_ms * MS)


class _Rank:
    """One rank's life, by a clock that is moved by hand."""

    def __init__(self, run: Run, rank: int, events: EventWriter) -> None:
        self.run, self.rank, self.events = run, rank, events
        self.now_ns = LAUNCHED_NS
        self.phases_ns: dict[str, int] = {}

    def charge(self, phase: str, ns: int) -> None:
        self.phases_ns[phase] = self.phases_ns.get(phase, 0) + ns
        self.now_ns += ns

    def live(self) -> None:
        run = self.run
        self.begin(run.resumed_at, restart=0)
        last = run.resumed_at + run.steps
        if run.restart_after is not None:
            self.train(run.resumed_at, run.restart_after)
            self.charge("checkpoint", 55 * MS)
            self.events.write(events.Saved(step=run.restart_after, phases_ns=dict(self.phases_ns)))
            self.train(run.restart_after, run.restart_after + 4)
            if self.rank == 0:
                self.events.write(
                    events.Failed(
                        rank=0, exit_code=4, sentence="rank 0 fell over", at_ns=self.now_ns, consequence=False
                    )
                )
            self.now_ns += 900 * MS
            self.phases_ns = {}
            self.begin(run.restart_after, restart=1)
            self.train(run.restart_after, last)
        else:
            self.train(run.resumed_at, last)
        if run.ended is None:
            return
        self.charge("checkpoint", 40 * MS)
        self.charge("other", 30 * MS + self.rank * MS)
        peak = int(2.5 * GIB) + self.rank * 7_340_032
        self.events.write(events.Phases(phases_ns=self.phases_ns, memory_peak_bytes=peak, at_ns=self.now_ns))
        if self.rank == 0 and run.bad_loss_at is None:
            source = "measured: large matmuls" if run.peak_tflops else "no peak is known of it"
            self.events.write(events.FlopsCounted(per_item=2.43e10, peak_tflops=run.peak_tflops, peak_source=source))
            self.events.write(events.ArtifactsLeft(artifacts=list(run.artifacts)))
        skipped = ["/data/set/a.jpg: not a JPEG"] if run.plan.get("skip_bad") else []
        self.events.write(events.End(ended=run.ended, skipped=skipped, facts=dict(run.facts)))
        if run.bad_loss_at is not None:
            self.events.write(
                events.Failed(
                    rank=self.rank,
                    exit_code=5,
                    sentence=f"the loss was not finite at step {run.bad_loss_at}",
                    at_ns=self.now_ns,
                    consequence=False,
                )
            )

    def begin(self, first_step: int, *, restart: int) -> None:
        startup_ns = 2300 * MS + self.rank * 11 * MS if not restart else self.now_ns - LAUNCHED_NS + 1200 * MS
        self.now_ns = LAUNCHED_NS + startup_ns
        self.phases_ns = {"startup": startup_ns}
        self.events.write(
            events.Begin(rank=self.rank, host="node-a", pid=7 + restart, startup_ns=startup_ns, restart=restart)
        )
        self.describe()
        if first_step:
            self.events.write(events.Resumed(step=first_step, damaged=[]))
        self.charge("init", 4100 * MS)
        self.events.write(
            events.Ready(steps_per_epoch=self.run.steps_per_epoch, first_step=first_step, at_ns=self.now_ns - 20 * MS)
        )
        self.prove()

    def describe(self) -> None:
        run, on_cpu = self.run, self.run.platform == "cpu"
        if self.rank:
            return
        if run.ranks > 1:
            moved = 2 * (run.ranks - 1) / run.ranks
            results = [
                {
                    "bytes": size,
                    "repeats": 5,
                    "median_s": 1.3 * size / 1e9 + 1e-4,
                    "best_s": size / 1e9 + 1e-4,
                    "bus_gigabytes_per_s": moved * size / (size / 1e9 + 1e-4) / 1e9,
                }
                for size in (4096, 65536, 1 << 20)
            ]
            self.events.write(events.LinksMeasured(results=results))
        self.events.write(
            events.EnvironmentSeen(
                trainmark=gather.trainmark.__version__,
                python="3.11.7",
                torch="2.6.0",
                device={
                    "type": "cpu" if on_cpu else "cuda",
                    "name": run.device,
                    "count_visible": max(2, run.ranks),
                    "memory_bytes": run.memory_bytes,
                    "driver": None,
                    "stand_in": False,
                },
                cpu={
                    "name": "AMD EPYC",
                    "logical_cores": 8,
                    "usable_cores": 4,
                    "capability": "AVX512",
                    "memory_bytes": 64 * GIB,
                },
                threads=4,
                variables={"OMP_NUM_THREADS": "4"},
                emulated_precision=False,
            )
        )

    def prove(self) -> None:
        if self.rank:
            return
        precision = Precision.parse(self.run.precision)
        used = "float32" if precision.computes_in == "tf32" else precision.computes_in
        tf32 = precision.allows_tf32
        self.events.write(
            events.PrecisionSeen(
                asked=precision.name,
                ran=precision.name,
                computed={"matmul": {used: 3}, "convolution": {used: 159}},
                multiplications={"matmul": {used: 6_291_456}, "convolution": {used: 4_089_184_256}},
                weights={precision.weights: 25_557_032},
                tf32={"matmul": tf32, "convolution": tf32},
                autocast=precision.autocast,
                loss_scale=65536.0 if precision.scales_loss else None,
                skipped_steps=0,
            )
        )

    def train(self, first: int, last: int) -> None:
        """Steps, with evaluations between them where the run has them."""
        marks = [at for at in self.run.evaluate_at if first < at < last]
        for begin, end in zip([first, *marks], [*marks, last], strict=True):
            for at in range(begin, end, 6):
                self.write_steps(at, min(at + 6, end))
            if end in self.run.evaluate_at and end > first:
                self.evaluate(end)

    def write_steps(self, first: int, last: int) -> None:
        run = self.run
        recipe = replace(run.its_reference, **run.recipe)
        steps = range(first, last)
        wait = [int((4 + step * 5 % 7 / 10) * MS) + self.rank for step in steps]
        # the ranks' steps are equally long, as the faster one waits inside the exchange
        compute = [
            int(run.step_ms * MS * (1 + 0.01 * (step * 7 % 11) / 11 + (1.2 if step - run.resumed_at < 3 else 0)))
            - self.rank * 1000
            for step in steps
        ]
        batch = recipe.step_batch_per_device
        items = [batch * (500 + step * 37 % 91) if run.workload == "tacotron2" else batch for step in steps]
        if run.items is not None:
            items = [run.items for _ in steps]
        if run.workload == "tacotron2":
            compute = [ns * count // (batch * 545) for ns, count in zip(compute, items, strict=True)]
        loss: list[float | None] = [float(f"{6.9 / (1 + 0.01 * step) + 0.001 * self.rank:.7g}") for step in steps]
        if run.bad_loss_at in steps:
            loss[steps.index(run.bad_loss_at)] = None  # type: ignore[arg-type]
        exchange = [int(ns * (0.12 + 0.002 * self.rank)) for ns in compute]
        more = {"exchange_ns": exchange} if run.ranks > 1 else {}
        self.now_ns += sum(wait) + sum(compute)
        self.events.write(events.Steps(first=first, wait_ns=wait, compute_ns=compute, items=items, **more, loss=loss))

    def evaluate(self, step: int) -> None:
        self.charge("evaluate", 1700 * MS)
        self.events.write(
            events.Evaluated(
                step=step,
                epoch=step / self.run.steps_per_epoch,
                values=dict(self.run.scores(step)),
                samples=self.run.samples,
                elapsed_ns=self.now_ns - LAUNCHED_NS,
            )
        )


def _sample(run: Run, folder: Path) -> None:
    """What the sampler of the machine writes beside the run, twice a second."""
    begin_ns, end_ns = run.span_ns(folder)
    log = EventWriter(folder / "telemetry0.jsonl")
    log.write(
        events.SamplerBegin(
            host="node-a",
            pid=5,
            first_rank=0,
            launched_ns=LAUNCHED_NS,
            at_ns=LAUNCHED_NS + 300 * MS,
            every_s=0.5,
            devices=[0],
            cores=8,
        )
    )
    missing = dict.fromkeys(("energy_j", "ecc_errors"), "no sensor says it")
    if not run.power:
        missing |= dict.fromkeys(("power_w", "temperature_c", "throttled"), "no sensor says it")
    log.write(events.Unavailable(at_ns=LAUNCHED_NS + 310 * MS, fields=missing))
    for index in range((end_ns - LAUNCHED_NS) // (500 * MS) + 2):
        at_ns = LAUNCHED_NS + 400 * MS + index * 500 * MS + index * 7 % 5 * MS
        passed_s = (at_ns - LAUNCHED_NS) / 1e9
        log.write(
            events.HostSample(
                at_ns=at_ns,
                busy_s=900 + 4.1 * passed_s,
                own_s=3.9 * passed_s,
                memory_used_bytes=5 * GIB + index * 1_048_576,
                shm_free_bytes=32 * GIB,
                load=4.25,
            )
        )
        reading: dict[str, Any] = {"device": 0, "memory_used_bytes": float(3 * GIB + (index % 17) * 4_194_304)}
        if run.power:
            hot = index % 10 == 3 and begin_ns <= at_ns <= end_ns
            reading |= {
                "power_w": 231.5 + index * 3 % 19,
                "temperature_c": 61.0 + index % 6,
                "throttled": ["software power cap"] if hot else [],
            }
        log.write(events.DeviceSamples(at_ns=at_ns + 2 * MS, readings=[reading]))
    log.write(events.SamplerEnd(at_ns=at_ns + 90 * MS, cpu_s=0.31))


QUICK = Run(
    recipe={"learning_rate": 0.05, "evaluate_after_limit": True, "eval_batch_per_device": 128}, group="three-repeats"
)
NOT_EVALUATED = Run(recipe={"learning_rate": 0.05}, evaluate_at=())
TWO_RANKS = Run(
    recipe_name="smoke",
    recipe={"batch_per_device": 8, "epochs": 3, "target": 90.0},
    limits=Limits(),
    topology="1x2",
    ranks=2,
    steps=75,
    evaluate_at=(25, 50, 75),
    ended="the recipe's cap of epochs is reached",
)
ON_A_CARD = Run(
    workload="vit",
    recipe_name="fill",
    recipe={"batch_per_device": 192, "accumulate": 1, "learning_rate": 0.0005},
    limits=Limits(seconds=60.0),
    precision="amp-fp16",
    platform="nvidia",
    synthetic=False,
    steps=240,
    steps_per_epoch=6673,
    evaluate_at=(),
    ended="the time asked for is over",
    device="NVIDIA A100-SXM4-40GB",
    memory_bytes=40 * GIB,
    peak_tflops=312,
    power=True,
    fill={
        "batch_per_device": 192,
        "reason": "memory ends here",
        "took_s": 12.5,
        "curve": [
            {"batch": 128, "items_per_s": 900.5, "step_s": 0.142, "memory_bytes": 20 * GIB, "unfit": ""},
            {"batch": 192, "items_per_s": 1000.5, "step_s": 0.192, "memory_bytes": 30 * GIB, "unfit": ""},
            {"batch": 256, "items_per_s": 0.0, "step_s": 0.0, "memory_bytes": None, "unfit": "out of memory"},
        ],
    },
)
SPEAKING = Run(
    workload="tacotron2",
    recipe_name="reference",
    limits=Limits(),
    topology="1x1",
    precision="tf32",
    platform="nvidia",
    synthetic=False,
    steps=90,
    steps_per_epoch=30,
    evaluate_at=(30, 60, 90),
    samples=100,
    scores=lambda step: {
        "val_loss": 0.93123 - step / 200,
        "masked_val_loss": 0.94125 - step / 201,
        "diagonality": -0.2 + step / 1000,
        "attention_focus": 0.71,
    },
    ended="the target is reached",
    device="NVIDIA A100-SXM4-40GB",
    memory_bytes=40 * GIB,
    peak_tflops=156,
    facts={"train_samples": 3840.0, "val_samples": 100.0, "padding_share": 0.1234},
    artifacts=({"file": "sample.wav", "caption": "a sentence, griffin-lim"},),
)
RESTARTED = Run(
    recipe_name="reference",
    limits=Limits(epochs=3),
    plan={"max_restarts": 2, "skip_bad": 3},
    steps=75,
    evaluate_at=(25, 50, 75),
    restart_after=50,
    ended="the epochs asked for are done",
)
RESUMED = replace(QUICK, resumed_at=100, steps=60, evaluate_at=(160,), plan={"resume_from": "/runs/x/checkpoints"})
CUT_OFF = replace(TWO_RANKS, ended=None)
NOT_FINITE = replace(QUICK, bad_loss_at=41, steps=42, evaluate_at=(), ended="the loss is not finite")

_SMALL = ReferenceFacts(
    batch_per_device=32, learning_rate=0.1, weight_decay=0.0, epochs=100, target=1.5, global_batch=32
)
TOKENS = Run(
    workload="lm",
    carried=WorkloadFacts(
        name="lm",
        title="A language model",
        item="tokens",
        data_set="texts",
        qualities=(QualityFacts(name="val_loss", better="lower", least=0),),
        reference=_SMALL,
    ),
    items=32 * 1024,
    scores=lambda step: {"val_loss": 4.2 - step / 100},
)
PIXELS = Run(
    workload="pixel-painter",
    carried=WorkloadFacts(
        name="pixel-painter",
        title="A painter of pixels",
        item="images",
        data_set="streets",
        qualities=(
            QualityFacts(name="pixel_acc", unit="%", least=0, most=100),
            QualityFacts(name="accuracy_gain", unit="%"),
        ),
        reference=replace(_SMALL, target=80.0),
    ),
    scores=lambda step: {"pixel_acc": 71.23456, "accuracy_gain": -3.1},
)

EVERY_KIND = {
    "quick": QUICK,
    "not evaluated": NOT_EVALUATED,
    "two ranks": TWO_RANKS,
    "on a card": ON_A_CARD,
    "speaking": SPEAKING,
    "restarted": RESTARTED,
    "resumed": RESUMED,
    "cut off": CUT_OFF,
    "not finite": NOT_FINITE,
}
OUTSIDE = {"counting tokens": TOKENS, "scoring pixels": PIXELS}
"""Of workloads that nobody here knows; the records themselves say what can be expected of them."""
