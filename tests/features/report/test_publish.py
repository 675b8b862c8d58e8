"""A published copy has all results, and no name of a person, host or place."""

from __future__ import annotations

import argparse
import html
import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from hypothesis import assume, given, settings, strategies as st
from support.clean_records import EVERY_KIND
from support.records import a_vocoder_record, make_record, make_timeline, typed

from trainmark.features.report import command as report
from trainmark.features.report.output import list_formats
from trainmark.record.machine import Artifact
from trainmark.record.plan import DataChoice
from trainmark.record.recipe import Deviation
from trainmark.record.record import Doubt, Record, Restart
from trainmark.record.store import Store
from trainmark.record.timeline import Timeline
from trainmark.view.publish import PublishableCopy, make_publishable

HERE = {"HOME": "/home/mlewandowski", "USER": "mlewandowski", "HOSTNAME": "login-x7", "CI_JOB_TOKEN": "correct-horse"}

PLANTED = {
    "the host of rank 0": "gpu17.hall3.example.com",
    "its short name": "gpu17",
    "its domain": "hall3.example",
    "the host of rank 1": "gpu18",
    "the login host": "login-x7",
    "the user": "mlewandowski",
    "another user": "kowalczyk",
    "the data's folder": "/mnt/customer-zebra/image net",
    "the customer": "zebra",
    "the weights": "unreleased-v9.pt",
    "the store": "/home/mlewandowski/my runs",
    "a script there": "runs/x.py",
    "the folder of a run": "resnet50-a/",
    "a card": "GPU-5d3fb7a1-92a4-4d0e-9f7c-0123456789ab",
    "a serial number": "1320221045678",
    "a bus": "0000:3b:00.0",
    "a network card": "0c:42:a1:6f:33:9e",
    "an IPv4 address": "10.31.7.42",
    "an IPv6 address": "fe80::e42:a1ff:fe6f:339e",
    "an e-mail address": "piotr@example.org",
    "a registry": "registry.internal.example",
    "an AWS key": "AKIAIOSFODNN7EXAMPLE",
    "a GitHub token": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "a hub token": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "a bearer token": "tok3nOfABearer",
    "a password": "hunter2hunter2",
    "a secret of the environment": "correct-horse",
    "a key with no mark": "Zm9vYmFyQmF6UXV4MTIzNDU2Nzg5MGFiY2RlZg",
    "a digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}
"""What must be nowhere in a published copy."""


def make_telling_record(**changes: Any) -> Record:
    """A record that mentions all of it, in every field that can hold text."""
    hosts = ("gpu17.hall3.example.com", "gpu18")
    timeline = make_timeline(ranks=2)
    ranks = tuple(replace(trace, host=host) for trace, host in zip(timeline.ranks, hosts, strict=True))
    machine = {
        "first_rank": 0, "every_s": 0.5, "samples": 90, "ended_early": False, "sampler_cpu_s": 0.5, "last_s": 300.0,
        "training_s": [6.0, 290.0], "unavailable": {"power_w": "nvidia-smi of gpu18 says: GPU 0000:3B:00.0 is lost"},
        "host_series": {"load": {"at_s": [1.0, 2.0], "values": [1.0, 2.0]}}, "devices": [],
    }  # fmt: skip
    values: dict[str, Any] = {
        "status": "incomplete",
        "ended": "rank 1 on gpu18 failed in train at step 7: no /mnt/customer-zebra/image net/train/n1/1.JPEG; "
        'its last lines:\n  File "/home/mlewandowski/my runs/x.py", line 3\n'
        "stacks are in /home/mlewandowski/my runs/resnet50-a/rank*.stacks\n"
        "curl -H 'Authorization: Bearer tok3nOfABearer' https://kowalczyk:hunter2hunter2@registry.internal.example/v2\n"
        "connect to 10.31.7.42 port 22, then [fe80::e42:a1ff:fe6f:339e], mail piotr@example.org, "
        "SN: 1320221045678, card 0c:42:a1:6f:33:9e",
        "plan": {
            "topology": "1x2",
            "data": DataChoice(name="imagenet", folder="/mnt/customer-zebra/image net", synthetic=False),
            "init_from": "/home/kowalczyk/unreleased-v9.pt",
            "init_sha256": "0" * 64,
            "resume_from": "/home/mlewandowski/my runs/resnet50-a/checkpoints",
        },
        "timeline": Timeline(ranks=ranks, warmup_steps=10),
        "environment": {
            "device": {"name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-5d3fb7a1-92a4-4d0e-9f7c-0123456789ab"},
            "torch": "2.6.0+cu124",
            "os": "Linux 6.1.0",
            "variables": {
                "CUDA_VISIBLE_DEVICES": "GPU-5d3fb7a1-92a4-4d0e-9f7c-0123456789ab",
                "LD_PRELOAD": "/home/mlewandowski/my runs/lib.so:/opt/zebra/lib.so",
                "NCCL_DEBUG": "Zm9vYmFyQmF6UXV4MTIzNDU2Nzg5MGFiY2RlZg",
                "NCCL_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "8",
                "PYTORCH_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True",
                "HF_HOME_TOKEN": "hunter2hunter2",
                "MALLOC_CONF": "password=hunter2hunter2,narenas:2",
                "KMP_AFFINITY": "AKIAIOSFODNN7EXAMPLE",
                "GLIBC_TUNABLES": "correct-horse",
            },
        },
        "telemetry": {"machines": [{"host": host.split(".")[0], **machine} for host in hosts]},
        "doubts": (
            Doubt(code="rank-skew", text="ranks differ by more than 5 %: rank 1 on gpu18 took 1.20 times as long"),
            Doubt(code="init-from", text="training began with the weights of unreleased-v9.pt, not random ones"),
            Doubt(code="resumed", text="ghp_16C7e42F292c6912E7710c838347Ae178B4a hf_AbCdEfGhIjKlMnOpQrStUvWx"),
        ),
        "restarts": (Restart(step=3, lost_s=1.5, reason="gpu18 was lost", damaged=("/home/kowalczyk/c.pt is torn",)),),
        "skipped_files": (
            "/mnt/customer-zebra/image net/train/n1/a zebra.JPEG: image file is truncated (34 bytes not processed)",
        ),
        "artifacts": (
            Artifact(file="sample.wav", caption="made on login-x7 by mlewandowski, 9f86d081884c7d659a2feaa0c55ad015"
            "a3bf4f1b2b0b822cd15d6c15b0f00a08"),
        ),
    }  # fmt: skip
    return make_record(**{**values, **changes})


@pytest.fixture(scope="module")
def published() -> PublishableCopy:
    return make_publishable([make_telling_record(), a_vocoder_record()], environment=HERE)


def dump_record(records: tuple[Record, ...]) -> str:
    return "\n".join(record.dumps() for record in records)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    for record in (make_telling_record(), a_vocoder_record()):
        Store(folder).add(record)
    return folder


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("form", [form for form in list_formats() if form != "mllog"])  # which needs a run's events
def test_nothing_that_was_planted_is_in_a_published_report(
    form: str,
    language: str,
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    out = tmp_path / "report"
    words = ["--format", form, "--lang", language, "--publish", "--out", str(out), "--store", str(store)]
    assert report.run(parser.parse_args(words)) == 0
    said = capsys.readouterr().err
    assert "host-1" in said
    text = html.unescape(out.read_text(encoding="utf-8"))
    assert "resnet50" in text.lower().replace("-", "")
    for what, planted in PLANTED.items():
        assert planted.lower() not in (text + said).lower(), what


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_of_an_honest_record_every_number_and_doubt_stays(kind: str, tmp_path: Path) -> None:
    record = EVERY_KIND[kind].leave(tmp_path)
    found = make_publishable([record], environment={})
    (copy,) = found.records
    assert found.dropped == 0
    assert (copy.metrics, copy.doubts, copy.ended) == (record.metrics, record.doubts, record.ended)
    assert (copy.environment, copy.quality, copy.artifacts) == (record.environment, record.quality, record.artifacts)
    assert {entry.partition("-")[0] for entry in found.replaced} == {"host", "path"}


def test_the_planted_record_holds_all_that_is_looked_for() -> None:
    held = make_telling_record().dumps() + " ".join(HERE.values())
    for what, planted in PLANTED.items():
        assert planted.lower() in held.lower(), what


def test_the_list_of_what_was_replaced_shows_nothing_of_it(published: PublishableCopy) -> None:
    for what, planted in PLANTED.items():
        assert planted not in " ".join(published.replaced), what
    assert {entry.partition("-")[0] for entry in published.replaced} == {"host", "user", "path", "text"}
    assert "host-1: name of a host" in published.replaced
    for entry in published.replaced:
        assert entry.partition(":")[0] in dump_record(published.records)


def test_a_copy_is_a_whole_record_with_the_same_results(published: PublishableCopy) -> None:
    for original, copy in zip((make_telling_record(), a_vocoder_record()), published.records, strict=True):
        assert Record.from_json(json.loads(copy.dumps())) == copy
        assert copy.metrics == original.metrics
        assert copy.quality == original.quality
        assert copy.plan.fingerprint == original.plan.fingerprint
        assert (copy.plan.recipe, copy.plan.deviations) == (original.plan.recipe, original.plan.deviations)
        assert copy.timeline.phases_ns == original.timeline.phases_ns
        assert [trace.items for trace in copy.timeline.ranks] == [trace.items for trace in original.timeline.ranks]
        assert (copy.run_id, copy.created, copy.status) == (original.run_id, original.created, original.status)
        assert copy.environment.device.name == original.environment.device.name
        assert [doubt.code for doubt in copy.doubts] == [doubt.code for doubt in original.doubts]


def test_settings_that_explain_a_speed_stay(published: PublishableCopy) -> None:
    environment = published.records[0].environment
    assert environment.torch == "2.6.0+cu124"
    assert environment.os == "Linux 6.1.0"
    assert environment.variables["NCCL_SOCKET_IFNAME"] == "eth0"
    assert environment.variables["OMP_NUM_THREADS"] == "8"
    assert environment.variables["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:128,expandable_segments:True"
    assert environment.variables["MALLOC_CONF"] == "(left out)"


def test_two_runs_on_one_host_are_still_seen_to_be() -> None:
    def on(host: str) -> Record:
        trace = replace(make_timeline().ranks[0], host=host)
        return make_record(timeline=Timeline(ranks=(trace,), warmup_steps=10))

    copies = make_publishable([on("alpha-01"), on("beta-02"), on("alpha-01.example.com")], environment={}).records
    assert [copy.timeline.ranks[0].host for copy in copies] == ["host-1", "host-2", "host-1"]


def test_a_host_is_one_in_fields_sentences_and_telemetry(published: PublishableCopy) -> None:
    copy = published.records[0]
    assert [trace.host for trace in copy.timeline.ranks] == ["host-1", "host-2"]
    assert [machine.host for machine in copy.telemetry.machines] == ["host-1", "host-2"]
    assert "rank 1 on host-2 took" in copy.doubts[0].text
    assert copy.ended == "rank 1 on host-2 failed in train at step 7: (left out)"
    assert copy.restarts[0].reason == "host-2 was lost"


@pytest.mark.parametrize(
    "name", ["node", "gpu", "images", "root", "vm", "x", "steps", "epyc", "a100", "rank", "machines"]
)
def test_a_machine_with_an_ordinary_name_does_not_shred_sentences(name: str) -> None:
    said = f"no images on the node: rank 0 of gpu root steps took 5 machines x vm, rank 1 on {name} was slow"
    timeline = make_timeline()
    trace = replace(timeline.ranks[0], host=name)
    record = make_record(
        device="AMD EPYC A100",
        timeline=Timeline(ranks=(trace,), warmup_steps=10),
        telemetry={"machines": []},
        doubts=(Doubt(code="x", text=said), Doubt(code="y", text=f"the kernel does not say it on {name}")),
    )
    copy = make_publishable([record], environment={"USER": name, "HOME": f"/home/{name}"}).records[0]
    assert copy.timeline.ranks[0].host == "host-1"
    assert copy.environment.device.name == "AMD EPYC A100"
    assert copy.doubts[0].text == said.replace(f"rank 1 on {name}", "rank 1 on host-1")
    assert copy.doubts[1].text == "the kernel does not say it on host-1"


@pytest.mark.parametrize(
    "sentence",
    [
        "p_core is known to ±7.3 %, not ±1 %: about 967 more steps would do",
        "/sys/class/powercap has no energy counter of a processor, '/dev/shm' is small",
        "2.40/23.5 GiB at 4.4 images/s, 12:34:56 later, 3 / 4 of all, and/or n/a",
        "synthetic data, not the real imagenet set: accuracy only shows that training works",
        "driver 550.54.15, tokens: many, the token is wrong, /: nothing differs",
        "the steady part: 33 steps after 0 of warm-up",
        "resnet50-smoke-1x1-fp32-20261116T051959-91cb03 was cut off",
    ],
)
def test_an_ordinary_sentence_stays_as_it_is(sentence: str) -> None:
    run_id = "resnet50-smoke-1x1-fp32-20261116T051959-91cb03"
    record = make_record(run_id=run_id, doubts=(Doubt(code="x", text=sentence),))
    copy = make_publishable([record], environment={}).records[0]
    assert copy.doubts[0].text == sentence
    assert copy.run_id == run_id


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("user@node7:/srv/x", "text-1"),
        ("see C:\\Users\\x.pt and \\\\nas\\share\\y", "see path-2 and path-3"),
        ("~/x/y ~ola/z", "path-2 path-3"),
        ("/数据/张三/集合，读不到", "path-2"),
        ("(/srv/a.JPEG)", "(path-2)"),
        ("enx0c42a16f339e is down", "text-1 is down"),
        ("postgres://u:p@h/db", "text-1"),
        ("S/N: 0324X18", "S/N: text-1"),
        ("from 10.31.7.42, port 22", "from text-1, port 22"),
    ],
)
def test_what_is_no_plain_word_goes_from_any_sentence(text: str, left: str) -> None:
    record = make_record(doubts=(Doubt(code="x", text=text),))
    copy = make_publishable([record], environment={}).records[0]
    assert copy.doubts[0].text == left


@pytest.mark.parametrize("key", ["1320221045678", "AKIAIOSFODNN7EXAMPLE", "/srv/x", "piotr@example.org", "10.31.7.42"])
def test_a_secret_is_no_name_of_a_field_either(key: str) -> None:
    record = make_record()
    telemetry = {"machines": [{"host": "node-a", key: 1, "unavailable": {key: "x", "power_w": "no sensor says it"}}]}
    copy = make_publishable([replace(record, **typed({"telemetry": telemetry}))], environment={}).records[0]
    assert key not in copy.dumps()
    assert copy.telemetry.machines[0].unavailable == {"power_w": "no sensor says it"}


def test_this_machine_and_its_user_are_looked_for_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "quiet-otter")
    monkeypatch.setenv("USER", "wkaminska")
    record = make_record(ended="started on quiet-otter by wkaminska")
    assert make_publishable([record]).records[0].ended == "started on host-2 by user-1"  # host-1 is the record's own


def test_a_platform_file_of_ones_own_is_a_path_too() -> None:
    record = make_record(plan={"platform": "/home/ola/newchip.toml"})
    copy = make_publishable([record], environment={}).records[0]
    assert re.fullmatch(r"path-\d+\.toml", copy.plan.platform)
    assert Record.from_json(json.loads(copy.dumps())) == copy


@pytest.mark.parametrize("value", ["/home/ola/runs/tacotron2-a/state.pt", "ola-lists.txt", "lists of ola"])
def test_a_path_in_a_recipe_is_in_no_report_and_no_site(value: str, cli: Cli, tmp_path: Path) -> None:
    plan, digest = make_record().plan, "0" * 64
    deviation = Deviation(name="file_lists", short="", reference="llama3.1", actual=value)
    recipe = {**plan.recipe, "file_lists": value, "mels_from_sha256": digest, "evaluate_every": "4 epochs from 1"}
    record = make_record(plan={"recipe": recipe, "deviations": (deviation,)}, ended=f"{value} cannot be read")
    Store(tmp_path / "in").add(record)
    words = ("report", "--publish", "--store", tmp_path / "in", "--format")
    for form in ("json", "markdown", "csv", "html"):
        ended = cli(*words, form, "--out", tmp_path / form, USER="ola", HOME="/home/ola")
        assert ended.returncode == 0, ended.stderr
        assert value not in ended.stderr + html.unescape((tmp_path / form).read_text())
    assert cli("site", tmp_path / "in", "--out", tmp_path / "site", "--publish", USER="ola").returncode == 0
    for page in (tmp_path / "site").rglob("*.*"):
        assert value not in html.unescape(page.read_text())
    (document,) = json.loads((tmp_path / "json").read_text())
    copy = Record.from_json(document)
    assert copy.plan.recipe == {**recipe, "file_lists": "path-1"}
    assert copy.plan.deviations == (replace(deviation, actual="path-1"),)


LETTERS = "abcdefghijklmnopqrstuvwxyz"
names = st.from_regex(r"[a-z]{2,8}[0-9]{1,3}(-[a-z0-9]{2,6}){1,2}", fullmatch=True)
folders = st.lists(
    st.text(alphabet=LETTERS + "0123456789._ -äł中", min_size=3, max_size=9), min_size=2, max_size=4
).map(lambda parts: "/" + "/".join(f"q{part.strip('. ')}q" for part in parts))
sentences = st.sampled_from(["{}", "on {}", "it was {} that failed", "({})", "'{}': x", "a={};b", "see {}: no"])


@settings(max_examples=60, deadline=None)
@given(host=names, user=names, folder=folders, sentence=sentences, field=st.integers(0, 7))
def test_a_name_planted_anywhere_is_nowhere(host: str, user: str, folder: str, sentence: str, field: int) -> None:
    assume(host not in user and user not in host)
    trace = replace(make_timeline(steps=12).ranks[0], host=host)
    said = "; ".join(sentence.format(name) for name in (host, user, folder))
    places: list[dict[str, Any]] = [
        {"ended": said},
        {"doubts": (Doubt(code="x", text=said),)},
        {"environment": {"anything": {host: [said, user]}}},
        {"telemetry": {"machines": [], user: said}},
        {"restarts": (Restart(step=1, lost_s=0.5, reason=said, damaged=(folder,)),)},
        {"skipped_files": (f"{folder}/a.JPEG: {said}",)},
        {"artifacts": (Artifact(file=f"{user}.wav", caption=said),)},
        {"coverage": said, "group": host, "run_id": f"run-{user}"},
    ]
    record = make_record(
        timeline=Timeline(ranks=(trace,)),
        plan={"data": DataChoice(name="imagenet", folder=folder, synthetic=True)},
        **places[field],
    )
    published = make_publishable([record], environment={"USER": user})
    text = published.records[0].dumps() + repr(published.replaced)
    for planted in (host, user, folder):
        assert planted not in text
    assert Record.from_json(json.loads(published.records[0].dumps())) == published.records[0]


@pytest.mark.parametrize("piece", ["a", "1.", "A1b2", "/a ", "a.b@", "eyJabcdefgh.", "token=", "_", "a b c d/ ", "::"])
def test_a_long_line_of_junk_is_read_in_one_pass(piece: str) -> None:
    """Where a pattern went back to every sign, these lines would take minutes."""
    record = make_record(ended=piece * 20_000)
    assert make_publishable([record], environment={}).records


def test_what_a_user_typed_is_left_out_of_a_copy_unless_it_was_asked_for() -> None:
    record = make_record(tags={"driver": "550.54"}, note="for Zebra, on login-x7")
    safe = make_publishable([record], environment=HERE)
    assert (safe.records[0].tags, safe.records[0].note) == ({}, None)
    (kept,) = make_publishable([record], labels=True, environment=HERE).records
    assert kept.tags == {"driver": "550.54"}
    assert kept.note == "for Zebra, on host-2"
