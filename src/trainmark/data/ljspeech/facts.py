"""LJSpeech as the commands see it, without numpy."""

from pathlib import Path

from trainmark.data import DataSet, Option

DATA_SET = DataSet(
    name="ljspeech",
    title="LJSpeech",
    makes="an LJSpeech-shaped folder of synthetic speech",
    prepares="texts and audio files from LJSpeech-1.1.tar.bz2",
    verifies="texts and audio files",
    things="clips",
    takes="about 10 s on two cores",
    smallest={"clips": 40},
    make_options=(Option(word="--clips", help="sentences, one audio file each (default: 640)"),),
    prepare_options=(Option(word="--tar", kind=Path, metavar="FILE", required=True, help="LJSpeech-1.1.tar.bz2"),),
)
