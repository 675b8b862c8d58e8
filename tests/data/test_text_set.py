"""Text: a language of known entropy, files of tokens that are read safely, and what the commands make of them."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from trainmark import data as datasets
from trainmark.cli.main import main
from trainmark.data.text import language, make, prepare
from trainmark.data.text.language import Slot
from trainmark.data.text.prepare import verify
from trainmark.data.text.token_files import (
    INDEX,
    Index,
    TokenFile,
    TokenSplit,
    TokenStream,
    Windows,
    WordList,
    open_vocabulary,
    read_index,
)
from trainmark.record.errors import NotReadyError, UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("text") / "set"
    make.make(root, lines=2000)
    return root


# The language


def test_the_language_is_the_one_whose_lines_are_drawn_in_one_way_each() -> None:
    # of these templates it was proved that no two sequences of draws give one line; others need the proof anew
    digest = hashlib.sha256(repr(language.parse_templates()).encode()).hexdigest()
    assert digest[:16] == "cd8916e587c4ec9f"


def test_a_line_is_as_unlikely_as_its_choices_are_many() -> None:
    templates = [part for part in language.parse_templates() if part[0] == "the" and part[1] == "capital"]
    assert len(templates) == 1
    lands = len(next(part for part in templates[0] if isinstance(part, Slot)).phrases)
    line = next(
        line
        for line in (language.random_line(0, 0, number) for number in range(1000))
        if line.tokens[:2] == ("The", "capital")
    )
    assert line.nats == pytest.approx(math.log(len(language.parse_templates()) * lands))


def test_text_and_tokens_tell_each_other(made: Path) -> None:
    words = open_vocabulary(made)
    assert isinstance(words, WordList)
    for number in range(200):
        text = language.join_tokens(language.random_line(3, 1, number).tokens)
        assert words.decode(words.encode(text)) == text
    with pytest.raises(UsageError, match="the word 'Adda' is not in this set's vocabulary; did you mean 'Ada'"):
        words.encode("Adda sang.")


# The set and its files


def test_the_floor_of_the_set_is_the_information_in_its_own_lines(made: Path) -> None:
    index = read_index(made)
    lines = [language.random_line(0, 1, number) for number in range(100)]
    val = index.splits["val"]
    assert val.tokens == sum(len(line.tokens) for line in lines)
    assert val.loss_floor == pytest.approx(sum(line.nats for line in lines) / val.tokens)
    assert val.text_bytes == sum(len(language.join_tokens(line.tokens)) for line in lines)


def test_a_seed_gives_the_same_bytes_and_another_seed_other_ones(made: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        make.make(tmp_path / str(seed), lines=400, seed=seed)
    first, other = ((tmp_path / str(seed) / "val.bin").read_bytes() for seed in (0, 1))
    assert first != other and (made / "val.bin").read_bytes().startswith(first)
    # a record names its seed: another version must train on the same lines
    whole = (tmp_path / "0" / "train.bin").read_bytes() + first
    assert hashlib.sha256(whole).hexdigest()[:16] == "65e581868d8c7b49"


def tokens_of(folder: Path, name: str = "train") -> TokenStream:
    return TokenStream(folder, read_index(folder).splits[name])  # type: ignore[index]


def test_windows_follow_one_another_and_reach_over_files(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 5), ("c", 8)):
        count = {"a": 5, "b": 3, "c": 9}[name]
        np.arange(first, first + count, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    files = tuple(TokenFile(name=f"{n}.bin", tokens=c, dtype="uint16") for n, c in (("a", 5), ("b", 3), ("c", 9)))
    split = TokenSplit(files=files, largest=16)
    (tmp_path / INDEX).write_bytes(Index(splits={"train": split, "val": split}, source="llm.c").to_json())
    windows = Windows(tokens_of(tmp_path), 4)
    assert windows.count == 4
    assert [windows.read(number).tolist() for number in range(4)] == [
        list(range(first, first + 5)) for first in (0, 4, 8, 12)
    ]
    with pytest.raises(ValueError, match="there are 17"):
        windows.read(4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "../etc.bin"}, "leads somewhere else"),
        ({"tokens": 10**9}, "should have"),
        ({"tokens": -1}, "damaged"),
        ({"dtype": "object"}, "damaged"),
        ({"offset": 2}, "should have"),
        ({"extra": 1}, "damaged"),
    ],
)
def test_an_index_is_not_trusted(made: Path, tmp_path: Path, change: dict[str, object], said: str) -> None:
    document = json.loads((made / INDEX).read_bytes())
    document["splits"]["train"]["files"][0].update(change)
    for name in ("train.bin", "val.bin"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    (tmp_path / INDEX).write_text(json.dumps(document))
    with pytest.raises(NotReadyError, match=said):
        tokens_of(tmp_path)
    (tmp_path / INDEX).write_bytes((made / INDEX).read_bytes().replace(b"train.bin", b"train\xff.bin"))
    with pytest.raises(NotReadyError, match="damaged"):
        tokens_of(tmp_path)


def test_a_token_that_is_too_large_is_refused_where_it_is_read_and_named_by_verify(tmp_path: Path) -> None:
    make.make(tmp_path / "set", lines=100)
    path = tmp_path / "set" / "train.bin"
    data = bytearray(path.read_bytes())
    data[40:42] = b"\xff\xff"
    path.write_bytes(data)
    assert verify(tmp_path / "set").ok
    report = verify(tmp_path / "set", decode="full")
    assert "train.bin holds tokens 0 to 65535" in str(report.problems[0]).replace(":", "")
    with pytest.raises(NotReadyError, match="token outside 0 to"):
        tokens_of(tmp_path / "set").read(0, 30)
    path.write_bytes(data[:-2])
    assert "bytes and should have" in verify(tmp_path / "set").sentence()


# Preparing


def shard(path: Path, tokens: list[int], *, said: int | None = None, magic: int = 20240520) -> Path:
    path.parent.mkdir(exist_ok=True)
    head = np.zeros(256, "<i4")
    head[:3] = magic, 1, len(tokens) if said is None else said
    path.write_bytes(head.tobytes() + np.array(tokens, "<u2").tobytes())
    return path


def pair(path: Path, sequences: list[list[int]], **wrong: object) -> Path:
    width = {"<i4": 4, "<u2": 8}
    dtype = "<i4"
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    places = ((np.cumsum(lengths) - lengths) * 4).astype("<i8")
    places = np.asarray(wrong.get("places", places), "<i8")
    ends = np.arange(len(sequences) + 1, dtype="<i8")
    count = wrong.get("count", len(sequences))
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, wrong.get("code", width[dtype]), count, len(ends))
    path.with_suffix(".idx").write_bytes(head + lengths.tobytes() + places.tobytes() + ends.tobytes())
    path.write_bytes(np.concatenate(sequences).astype(dtype).tobytes())
    return path


def test_shards_of_llm_c_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    shard(tmp_path / "train" / "b.bin", [7, 8, 9])
    shard(tmp_path / "train" / "a.bin", [50256, 1, 2])
    val = shard(tmp_path / "v.bin", [3, 4])
    said = datasets.find("text").prepare(
        tmp_path / "out", any_archive=False, progress=lambda *_: None, train=tmp_path / "train", val=val, tokenizer=None
    )
    assert said == "6 tokens of train, 2 tokens of val, from llm.c files"
    assert tokens_of(tmp_path / "out").read(0, 6).tolist() == [50256, 1, 2, 7, 8, 9]
    assert read_index(tmp_path / "out").splits["train"].largest == 50256
    assert verify(tmp_path / "out", decode="full").ok


def test_pairs_of_megatron_are_read(tmp_path: Path) -> None:
    train = pair(tmp_path / "t.bin", [[5, 128_255], [], [6, 7, 8]])
    said = prepare.prepare(tmp_path / "out", train=train, val=pair(tmp_path / "v.bin", [[1]]))
    assert said == "5 tokens of train, 1 tokens of val, from megatron files"
    assert tokens_of(tmp_path / "out").read(0, 5).tolist() == [5, 128_255, 6, 7, 8]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: shard(path, [1, 2], said=3), "says it holds 3 tokens"),
        (lambda path: shard(path, [1, 2], said=-1), "says it holds -1 tokens"),
        (lambda path: shard(path, [1, 2], magic=1), "is no shard of llm.c"),
        (lambda path: path.write_bytes(b"x" * 7), "is no shard of llm.c"),
        (lambda path: pair(path, [[1, 2]], code=6), "type 6"),
        (lambda path: pair(path, [[1, 2]], count=2**60), "fetch it again"),
        (lambda path: pair(path, [[1, 2], [3]], places=[0, 0]), "do not follow one another"),
        (lambda path: (pair(path, [[1, 2]]), path.write_bytes(b"1234")), "its index needs 8"),
        (lambda path: pair(path, [[1, -2]]), "holds the token -2"),
        (lambda path: (pair(path, [[1]]), path.with_suffix(".idx").write_bytes(b"MMIDIDX")), "is no index"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused(tmp_path: Path, spoil: object, said: str) -> None:
    spoil(tmp_path / "t.bin")  # type: ignore[operator]
    with pytest.raises(NotReadyError, match=said):
        prepare.prepare(tmp_path / "out", train=tmp_path / "t.bin", val=tmp_path / "t.bin")
    assert not (tmp_path / "out" / INDEX).exists()


def test_text_is_turned_into_tokens_with_its_end_before_each_document(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<|endoftext|>": 0, "a": 1, "b": 2, "?": 3}, "?"))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader.save(str(tmp_path / "t.json"))
    (tmp_path / "x.jsonl").write_text('{"text": "a b"}\n\n{"text": "b ü"}\n')
    (tmp_path / "v.txt").write_text("b a")
    words = ["--train", str(tmp_path / "x.jsonl"), "--val", str(tmp_path / "v.txt"), "--out", str(tmp_path / "out")]
    assert main(["data", "prepare", "text", *words]) == 2
    assert main(["data", "prepare", "text", *words, "--tokenizer", str(tmp_path / "t.json")]) == 0
    assert tokens_of(tmp_path / "out").read(0, 6).tolist() == [0, 1, 2, 0, 2, 3]
    assert read_index(tmp_path / "out").splits["train"].text_bytes == 7
    assert read_index(tmp_path / "out").splits["val"].bytes_per_token == pytest.approx(3 / 3)
    vocabulary = open_vocabulary(tmp_path / "out")
    assert vocabulary is not None
    assert vocabulary.encode("b a") == [2, 1]
    assert main(["data", "verify", "text", str(tmp_path / "out"), "--decode", "full"]) == 0
    (tmp_path / "x.jsonl").write_text('{"text": 3}\n')
    assert main(["data", "prepare", "text", *words, "--tokenizer", str(tmp_path / "t.json")]) == 3


def test_rows_of_a_parquet_file_are_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<|endoftext|>": 0, "a": 1, "b": 2}, "b"))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader.save(str(tmp_path / "t.json"))
    (tmp_path / "v.txt").write_text("b a")
    file = tmp_path / "x.parquet"
    file.write_bytes(b"PAR1")
    words = ["--train", str(file), "--val", str(tmp_path / "v.txt"), "--tokenizer", str(tmp_path / "t.json")]

    def refused(*more: str) -> str:
        assert main(["data", "prepare", "text", *words, *more, "--out", str(tmp_path / "refused")]) == 3
        return capsys.readouterr().err

    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        assert "x.parquet needs the package pyarrow: pip install 'trainmark[parquet]'" in refused()
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    from pyarrow import parquet

    assert "is no Parquet file, or it is damaged" in refused()
    rows = {"id": [1, 2, 3], "content": ["a b", "b", "a a"], "kind": pyarrow.array(["a"] * 3).dictionary_encode()}
    parquet.write_table(pyarrow.table(rows), file, row_group_size=2)
    assert "has no column 'text'; name one of its own with --column: id, content, kind" in refused()
    assert "has int64 in its column 'id'; name one of text with --column" in refused("--column", "id")
    for column, tokens in (("content", [0, 1, 2, 0, 2, 0, 1, 1]), ("kind", [0, 1] * 3)):
        out = tmp_path / column
        assert main(["data", "prepare", "text", *words, "--column", column, "--out", str(out)]) == 0
        assert tokens_of(out).read(0, len(tokens)).tolist() == tokens
    damaged = bytearray(file.read_bytes())
    damaged[4:120] = bytes(116)
    file.write_bytes(damaged)
    assert str(file) in refused("--column", "content")
    parquet.write_table(pyarrow.table({"text": ["a", None]}), file)
    assert "document 2: its column 'text' is empty" in refused()


def test_tokens_with_a_tokenizer_know_their_bytes(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel({"aaa": 0, "b": 1}, "b"))
    reader.save(str(tmp_path / "t.json"))
    val = shard(tmp_path / "v.bin", [0, 1])
    prepare.prepare(tmp_path / "out", train=val, val=val, tokenizer=tmp_path / "t.json")
    assert read_index(tmp_path / "out").splits["val"].text_bytes == len("aaa b")
    with pytest.raises(NotReadyError, match="hold token 9"):
        far = shard(tmp_path / "f.bin", [9])
        prepare.prepare(tmp_path / "far", train=far, val=far, tokenizer=tmp_path / "t.json")
