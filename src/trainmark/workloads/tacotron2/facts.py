"""Facts of Tacotron2, without torch."""

from trainmark.record.workload_facts import ListeningTest, QualityFacts, ReferenceFacts, ShowFacts, WorkloadFacts

CLIP_FRAMES = 566
"""Mean mel frames of a clip of LJSpeech."""

PUBLISHED = ReferenceFacts(
    batch_per_device=128,
    learning_rate=0.001,
    weight_decay=1e-6,
    epochs=1501,
    target=0.4852,
    global_batch=1024,
)
"""Settings of the published tables."""

FACTS = WorkloadFacts(
    name="tacotron2",
    title="Tacotron2",
    task="Speech synthesis",
    item="mel frames",
    sample="clip",
    sample_words=("sample", "clip", "utterance", "样本"),
    items_per_sample=CLIP_FRAMES,
    most_items_per_sample=2000,  # no clip of LJSpeech, nor of the synthetic set, is longer
    data_set="ljspeech",
    least_loss=0,
    samples_per_epoch=12_500,
    flops_per_item=145e6,
    qualities=(
        QualityFacts(
            name="val_loss",
            better="lower",
            plain="validation loss",
            least=0,
            on_pages=("val_loss", "validation loss", "final_val_loss", "验证loss"),
            caution="it depends on how padding falls into batches and on dropout that stays on in evaluation, so it "
            "moves with the batch and the number of devices",
            beware="that only rows of one batch and topology are ranked by it",
        ),
        QualityFacts(
            name="masked_val_loss",
            better="lower",
            least=0,
        ),
        QualityFacts(
            name="diagonality",
            least=-2,
            most=1,
        ),
        QualityFacts(
            name="attention_focus",
            least=0,
            most=1,
        ),
    ),
    reference=PUBLISHED,
    on_pages=(r"tacotron[\s_-]*2",),
    listening_test=ListeningTest(
        quality="MOS", value=3.946, margin=0.134, by="NVIDIA's listeners, of this model and WaveGlow on LJSpeech"
    ),
    shows=ShowFacts(takes="text", gives="sound", does="reads a text aloud"),
)
