"""Facts of WaveNet, without torch."""

from trainmark.record.workload_facts import QualityFacts, ReferenceFacts, ShowFacts, WorkloadFacts

WINDOW = 10_240
"""Samples of a clip per step."""

PUBLISHED = ReferenceFacts(
    batch_per_device=8,
    learning_rate=0.001,
    weight_decay=0.0,
    epochs=640,
    target=6.0,
    global_batch=8,
)
"""A million steps of 8 clips are 640 passes over LJSpeech; public runs end near 6 nats."""

FACTS = WorkloadFacts(
    name="wavenet",
    title="WaveNet",
    task="Speech synthesis (vocoder)",
    item="audio samples",
    sample="clip",
    sample_words=("clip", "utterance"),
    items_per_sample=WINDOW,
    data_set="ljspeech",
    samples_per_epoch=12_500,
    flops_per_item=19.2e6,
    qualities=(
        QualityFacts(
            name="val_nll",
            unit="nats",
            better="lower",
            plain="negative log-likelihood",
            least=0,
            bar="linear_nll",
            bar_word="linear prediction",
            meaning="How unlikely each audio sample of the validation clips was to a network that had heard those "
            "before it: the mean of -ln p, corrected for the gain the sound was trained at.",
        ),
    ),
    reference=PUBLISHED,
    on_pages=(r"wave[\s_-]*net",),
    shows=ShowFacts(takes="sound", gives="sound", does="resynthesises audio from its mel"),
)
