"""A set of text as the commands see it, without numpy."""

from pathlib import Path

from trainmark.data import DataSet, Option

DATA_SET = DataSet(
    name="text",
    title="Text",
    makes="lines of a small language whose entropy is known exactly",
    prepares="tokens from llm.c's .bin shards, Megatron's .bin and .idx pairs, or .txt, .jsonl and .parquet with a "
    "tokenizer",
    verifies="counts, sizes and the range of the tokens",
    things="lines",
    takes="about 5 s",
    smallest={"lines": 400},
    make_options=(Option(word="--lines", help="lines to train on (default: 40000); a twentieth is for validation"),),
    prepare_options=(
        Option(
            word="--train",
            kind=Path,
            metavar="PATH",
            required=True,
            help="a file, or a folder of files that are read in the order of their names",
        ),
        Option(word="--val", kind=Path, metavar="PATH", required=True, help="the same for validation"),
        Option(
            word="--tokenizer",
            kind=Path,
            metavar="FILE",
            help="tokenizer.json, for files of text (pip install trainmark[text], and trainmark[parquet] for .parquet) "
            "and to decode samples",
        ),
        Option(
            word="--column",
            kind=str,
            metavar="NAME",
            help="column of .parquet, or field of .jsonl, that holds the text (default: text)",
        ),
    ),
)
