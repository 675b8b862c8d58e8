"""Definitions of all metrics, phases, terms and doubts, for `explain`, the page and docs/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from trainmark.record.errors import UsageError, nearest
from trainmark.record.language import LANGUAGES, catalogue, translator
from trainmark.record.metrics import METRICS, PRICED

PHASES_EXPLAINED = {
    "startup": "From the launcher's start to the first line of the worker: interpreter and imports.",
    "init": "Importing torch, opening the device and the data set, building model and optimizer, compiling; where the "
    "worker was started before its run was planned, also its wait for the plan.",
    "warmup": "Steps done before the series is steady. They stay on the record and, in a run cut to so many steps or "
    "seconds, are left out of throughput; in a full run this phase is empty and every step counts.",
    "data_wait": "The loop waiting for its next batch on the device: loading and copying that was not hidden.",
    "compute": "Forward, backward, gradient exchange and optimizer.",
    "evaluate": "Evaluation, its own wait for data included.",
    "checkpoint": "Saving the state of training.",
    "restart": "Of a run whose ranks were started again: the work that was lost with them, and the time until the new "
    "workers' first lines. No throughput holds it.",
    "other": "What is left between the phases above; it should be near zero.",
}
"""By phase, in the order they are charged."""

WORDS = {
    "fix_hp": "The fields in which a run's recipe differs from the workload's reference recipe, computed and never "
    "typed; '/' where none does. bs is batch_per_device, lr learning_rate, wd weight_decay.",
    "scaling": "How much of the ideal speed-up a larger topology reached: its throughput / (how many times as many "
    "devices x the throughput of the smallest topology). Weak scaling keeps the batch of each device, strong scaling "
    "the global batch; all else must be equal. `trainmark scaling` shows it with its interval.",
    "configuration": "The device's name and the topology: nodes x devices per node.",
    "quality": "How good the trained model was, by the workload's own word: acc (top-1 accuracy over the whole "
    "validation set, each sample counted once) or val_loss. 'reached' and 'missed' are about the recipe's target; a "
    "'short run', cut to so many steps or seconds, is not held to it.",
    "val_loss": "Tacotron2's quality by the published definition: squared error of the mel before and after the "
    "postnet plus the gate's cross-entropy, each a mean over all frames of padded batches, with the prenet's dropout "
    "on. Batches and draws are fixed, so it is the same at every world size.",
    "masked_val_loss": "The same loss over each clip's own frames, as a mean over clips: padding does not count.",
    "diagonality": "How steadily attention reads: 1 - 3 x the mean distance between where it looks and where a steady "
    "reader would be, both from 0 to 1. 1 is a steady reader, 0 attention spread evenly, below 0 attention that is "
    "stuck. A low val_loss can hide broken attention; this does not.",
    "attention_focus": "The largest attention weight of a frame, as a mean over frames: 1 is one letter at a time.",
    "predicted_mos": "Of `trainmark sample --score`: what a network that learnt from listeners' opinions predicts for "
    "speech, from 1 to 5. It is no listening test, fills no cell of a MOS and is compared with none; "
    "recordings of the same sentences stand beside it.",
    "wer": "Of `trainmark sample --score`: words a speech recogniser heard otherwise than they were said, as "
    "a share of those said.",
    "real_time_factor": "Of `trainmark sample`: seconds of computing for a second of sound. Below 1 is faster than "
    "real time.",
    "interval": "'±0.4 %' beside a throughput: with 95 % confidence the value a long run would find lies between the "
    "one shown divided by 1.004 and times 1.004. It is made on the logarithm, so that it never reaches zero, and "
    "respects that neighbouring steps resemble each other. Beyond ±50 % the words are 'too noisy to say'.",
    "coverage": "The steps that p_whole, p_train and p_core cover. In a full run these are all training steps, as in "
    "the published tables; in a run cut to so many steps or seconds, only the steady part.",
    "spread": "Over the repeats of one run: (largest - smallest) / median of p_core, and how many completed. It is "
    "about speed; DeepSpark's stability is about quality.",
    "stability": "DeepSpark's: of 5 repeats of a full run that all reached the target, 1 - 0.2 for each whose quality "
    "lies further than 1 % from their median; 1 is best. There is none where fewer were made or one missed the target. "
    "`trainmark run WORKLOAD --recipe reference --repeat 5` gives one, and `report --format deepspark` shows it. "
    "Repeats share a seed, so that it tells what the machine adds.",
    "performance": "DeepSpark's word for p_steady: the speed of all cards together in steady training, data loading "
    "included. p_core leaves the wait for data out, p_train holds all training steps of a full run.",
    "scalability": "DeepSpark's: p_steady of so many cards over as many times p_steady of one card, or likewise of "
    "nodes; the table says which. `scaling` is the same by p_core, with its interval.",
    "doubts": "Reasons to trust a result less, found by looking at it and said in words wherever it is shown.",
    "artifacts": "Files a trained model left beside its record to be looked at or listened to. They are made after the "
    "clock has stopped, so no number holds their time.",
    "telemetry": "What a process beside the run sampled about twice a second of devices and host: power, temperature, "
    "memory, use and clock, the processors' load and how much of it was other programs'. A sensor that cannot be read "
    "is unavailable with its reason, never 0.",
    "data_facts": "What the reader of the data says about how it was read, such as the share of padding in batches, or "
    "how many classes it has and what guessing among them would give (chance).",
    "status": "How the run ended: valid, incomplete, invalid or no record. An incomplete run did not reach its end and "
    "its numbers cover what was measured before. An invalid one must not be used: its loss was not finite, or its "
    "device counted time unlike the host. A folder without a record belongs to a run that still runs, or ended before "
    "a record could be written.",
    "precision": "What the matmuls of the run's first step were really computed in: fp32, tf32, bf16, fp16, amp-... "
    "where autocast lowered them from float32 weights, or fp8 where linear layers scaled their operands to eight "
    "bits and the rest was bf16. Two things are checked. What was asked of the device are the operand types, "
    "as seen on their way to it. What is computed by it is shown by matmuls, run before the first step, whose"
    " results differ for each type; where these are narrower, they count. A type names a run if three "
    "quarters of all multiplications were done in it and hardly any in a narrower one; for fp8 half of them "
    "will do, as attention and the head never use it, and the record has their share. Where a CPU emulates a "
    "narrow type with float32 kernels, operands with only narrow values make a narrow result.",
    "group": "What the runs of one --repeat have in common.",
    "fingerprint": "Equal for two runs that were asked for the same training on the same kind of platform.",
}

DOUBTS = {
    "incomplete": "The run did not reach its end: the numbers cover what was measured before.",
    "generated-data": "The data was made by trainmark: speed is real, but quality says only that training works. "
    "Give the real set with --data.",
    "stand-in": "It ran on the stand-in, which is no device but shows how a run would fare on one: its speed, memory "
    "and power mean nothing.",
    "init-from": "Training began with given weights, not random ones: its time to target is not that from scratch.",
    "random-start": "The recipe is meant to begin with weights that were trained before, and none were given: speed is "
    "real, but its quality cannot be held to the published one.",
    "target-missed": "A full run ended without the quality its recipe asks for.",
    "loss-rose": "The training loss was certainly higher at the end than at the beginning, by more than 2 %: with this "
    "recipe the network does not learn, whatever its speed.",
    "loss-constant": "The loss was the same number, to its last digit, in each of the last steps. A network that "
    "learns, or only sees other samples, never has that: its outputs are constant, or a device puts a number in the "
    "place of infinity.",
    "at-chance": "The accuracy is no better than guessing among the classes of the data, within what so many samples "
    "can tell: it does not show that training works.",
    "below-bar": "The network is no better than a simpler way, computed on the same samples after the run; the text "
    "has both figures. It has not learnt what the workload is about, whatever its speed: train for longer.",
    "below-floor": "The loss is lower than 0.98 of the entropy of the data, which arithmetic knows and no model can "
    "beat: validation text leaked into training, or something is counted wrongly.",
    "few-steps": "p_core is not known to ±1 %; the text says how many more steps would do.",
    "drifting": "Steps became slower by more than 2 %, at whichever step, or faster after the warm-up: heat, a full "
    "cache, another load. The text has both rates; throughputs hold the fast part and the slow one. Where steps "
    "hold different numbers of items, what these explain is taken out first.",
    "rank-skew": "The slowest rank's own computing took more than 5 % longer than the fastest's, and not for having "
    "more items; the text names it. The exchange of gradients is left out, because in it the fast ranks wait for the "
    "slow one, so that whole steps are equally long on all.",
    "device-clock": "Over all training, the device's own events and the host's clock differ by more than 3 %, although "
    "each stretch of training begins and ends with an idle device: the text has both figures. Beyond 10 % the result "
    "is not valid, and under --strict from 3 % on. `trainmark platform check` looks at a device's events.",
    "suspended": "The machine slept during the run, as laptops and virtual machines do. The clocks that time steps "
    "stood still meanwhile, so that no number is wrong, but the run took longer than it says.",
    "stalled-step": "One step took more than 20 times the median, and 2 s longer: the process was stopped, its machine "
    "was, or storage did not answer. The text has the step, and which numbers hold it.",
    "time-unaccounted": "More than 10 % of the training, and more than half a second, belongs to no step, so that "
    "p_core and p_train tell different stories: look at p_train.",
    "small-batch": "The global batch is below the reference recipe's, so the device may not be filled. Where there are "
    "fewer training samples than the recipe's batch, they are the batch.",
    "left-out": "The recipe left training samples out, such as clips that are too long for it; the text has how many. "
    "An epoch is one pass over the others.",
    "emulated-precision": "The processor has no instructions for the precision asked for.",
    "precision-differs": "The arithmetic of the run's first step, or what the device makes of it inside, is not what "
    "was asked for; the text has what ran and how many matmuls in which type. Labels in tables say what ran. Under "
    "--strict the result is not valid.",
    "cpu-differs": "Before training, one step and one evaluation of the workload's own network, with a few samples, "
    "were made on the device and on the CPU, and something differs by more than rounding explains; the text names the "
    "first layer, statistic, gradient or sum that does. An operator of the device is wrong. Under --strict the result "
    "is not valid.",
    "weights-differ": "The weights of the network that was trained are not as many as those of the network its plan "
    "describes, counted without a device: weights that should be tied came apart, or the network is another one.",
    "skipped-steps": "A loss scaler left out more than 1 % of the steps because their gradients were not finite; a few "
    "at the beginning are usual, while it looks for its scale.",
    "mfu-above-100": "The run did more FLOPs a second than the peak of its devices in the precision asked for, so "
    "that something narrower ran than its label says, or the peak is wrong; the text names where that is from.",
    "crowded-cores": "On a CPU, more ranks ran on a machine than it has usable cores, by the scheduler's affinity and "
    "the control group's quota; more than four times as many are refused.",
    "foreign-load": "Other programs, or other guests of the host, used more than 10 % of the machine meanwhile.",
    "sampler-ended": "The process that samples devices and host ended before the run did. The run is not touched by "
    "that, but what its power, heat, memory and foreign load were later is not known.",
    "power-sampling": "Power rests on fewer than 60 samples, on less than one a second, or on samples with a gap of "
    "more than 2 s: less than MLPerf asks for.",
    "power-impossible": "The mean of a device's power is more than 1.5 times what its data sheet allows: a sensor in "
    "milliwatts, or the sum of several devices. Power and energy of the run mean nothing.",
    "power-constant": "All samples of a device's power, at least 20, are one number: a limit or a placeholder, not a "
    "measurement.",
    "throttled": "A device said that heat or its power limit slowed it; the text says how often and why.",
    "ecc-errors": "The memory of a device had errors it could not correct during the run: the result may be wrong, and "
    "the device should be looked at.",
    "skip-bad": "Unreadable data files were allowed to be left out; the record lists those that were.",
    "torn-events": "A rank's event file ended in the middle of a line: what that line held is not counted.",
    "no-sample": "The trained model should have left files to look at or listen to and could not; the measured result "
    "is not touched by that.",
    "resumed": "The run went on from a checkpoint: times cover only the part after it.",
    "restarted": "Ranks died and were started again from the newest checkpoint; the text says where and how much time "
    "was lost. e2e_time holds that time, throughputs do not.",
    "no-end": "Of `trainmark sample`: the limit on frames came before the network said that it had come to the end.",
    "no-sound": "Of `trainmark sample`: the network ended at its first frame.",
    "weak-attention": "Of `trainmark sample`: attention did not read along the text, so the words are hardly right.",
    "long-text": "Of `trainmark sample`: a sentence is longer than any in LJSpeech, which such networks learn from.",
    "unheard-voice": "Of `trainmark sample --score`: recordings of the voice itself score badly, so they tell little.",
    "untrained": "Of `trainmark sample`: the weights are those of a network that has not seen a single batch.",
}
"""By the code programs read on the record."""

ALSO = {
    "scaling_efficiency": "scaling",
    "acc": "quality",
    "acc1": "quality",
    "final_acc1": "quality",
    "target": "quality",
    "doubt": "doubts",
    "linearity": "scalability",
    "deviations": "fix_hp",
    "±": "interval",
    "repeat": "group",
    "notes": "doubts",
    "samples": "artifacts",
    "padding": "data_facts",
    "flops": "mfu",
    "price": "cost",
    "money": "cost",
    "device_hour": "cost",
    "kwh": "energy_kwh",
    "pue": "energy_kwh",
    "watts": "power",
    "joules": "energy",
    "peak": "mfu",
    "focus": "attention_focus",
    "rtf": "real_time_factor",
    "hyper_parameter_changes": "fix_hp",
    "data_precision": "precision",
    "training_result": "quality",
}
"""Other words people use, and the one that explains them."""


class Meaning(NamedTuple):
    kind: str
    """metric, phase, word or doubt."""
    word: str
    definition: str
    name: str = ""
    """The name in code, where the word of the tables is another."""
    unit: str = ""
    formula: str = ""
    title: str = ""
    """What Chinese tables call it; empty in English, and where they keep the word."""
    language: str = "en"


def list_meanings(language: str = "en") -> Iterator[Meaning]:
    """Everything that can be explained, metrics first."""
    for metric in (*METRICS.values(), *PRICED.values()):
        unit = metric.general_unit
        yield _translate(
            language, Meaning("metric", metric.alias, metric.definition, metric.name, unit, metric.formula)
        )
    for kind, entries in (("phase", PHASES_EXPLAINED), ("word", WORDS), ("doubt", DOUBTS)):
        for word, definition in entries.items():
            yield _translate(language, Meaning(kind, word, definition))


def _translate(language: str, entry: Meaning) -> Meaning:
    """The same in another language; what is younger than its translation stays English."""
    say = translator(language)
    definition = say(entry.definition)
    if definition == entry.definition:
        return entry
    title = say(entry.name) if entry.name else ""
    return entry._replace(title=title, formula=say(entry.formula), definition=definition, language=language)


def find_meaning(word: str, language: str = "en") -> Meaning:
    """What a word means, by either name of a metric, a translated one, and by the words people use for it."""
    plain = word.strip().lower()
    known = list(list_meanings(language))
    named = find_by_translated_name(plain)
    for asked in (plain, plain.replace("-", "_"), plain.replace("_", "-"), ALSO.get(plain, plain), named and named[0]):
        for entry in known:
            if asked and asked in (entry.word, entry.name):
                return entry
    names = [name for entry in known for name in (entry.word, entry.name) if name]
    close = nearest(word, [*names, *ALSO], otherwise="'trainmark explain' lists them")
    raise UsageError(f"word {word!r} is not known; {close}")


def find_by_translated_name(name: str) -> tuple[str, str] | None:
    """The word that tables of another language call so, or a metric whose name there begins so, and the language."""
    if not name.strip() or name.isascii():
        return None
    asked = name.strip().lower()
    for language in LANGUAGES[1:]:
        titles = catalogue(language)
        for alias, metric in (METRICS | PRICED).items():
            if titles.get(metric.name, "").startswith(asked):
                return alias, language
        for sentence, translation in titles.items():
            # the heads of our own tables, and of those in another's form
            word = re.sub(r"[\s-]+", "_", sentence.rpartition("\x04")[2].lower())
            if translation.lower() == asked and (found := _find_explaining_word(word)):
                return found, language
    return None


def _find_explaining_word(word: str) -> str | None:
    """The word that explains another one, if any does."""
    entries = (METRICS | PRICED).values()
    metric = next((metric.alias for metric in entries if word in (metric.alias, metric.name)), None)
    return metric or next(
        (entry for entry in (word, ALSO.get(word, "")) if entry in {**PHASES_EXPLAINED, **WORDS}), None
    )
