"""Facts common to all language models."""

from __future__ import annotations

from trainmark.record.workload_facts import QualityFacts, ShowFacts

ITEM = "tokens"
DATA_SET = "text"
TASK = "Language modelling"
SHOWS = ShowFacts(takes="text", gives="text", does="continues a text")
VAL_LOSS = QualityFacts(
    name="val_loss",
    unit="nats",
    better="lower",
    plain="loss",
    least=0,
    on_pages=("val_loss", "loss", "lm_loss", "log perplexity", "log_ppl", "eval_loss"),
    meaning="How unlikely each token of the validation text was to the network that had read those before it in the "
    "window: the mean of -ln p. MLPerf calls it log perplexity.",
)
TIMES_FLOOR = QualityFacts(
    name="times_floor",
    unit="-",
    better="lower",
    least=0.98,
    meaning="val_loss as a multiple of the least that is possible, the entropy of the text, where arithmetic knows "
    "that: 1 is a perfect model, and below 0.98 something leaked or was counted wrongly.",
)
BITS_PER_BYTE = QualityFacts(
    name="bits_per_byte",
    unit="bits",
    better="lower",
    least=0,
    meaning="val_loss in bits for each byte of the text the tokens stand for, so that networks with other vocabularies "
    "can be compared.",
)
QUALITIES = (VAL_LOSS, TIMES_FLOOR, BITS_PER_BYTE)
