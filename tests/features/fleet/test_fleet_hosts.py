"""A fleet on hosts that are namespaces with a real sshd each: what they send is judged, and the thin cable is named."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support import hosts as making
from support.fleets import host_record
from support.hosts import Hosts

WHY_NOT = making.missing_sshd() or making.missing_shaper()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

STUB = """\
#!/bin/sh
# runs are not made, but sent; links are measured by trainmark itself
case " $* " in *" doctor "*) exec {python} "$@";; esac
cat {folder}/$(hostname).json
"""


def test_hosts_send_their_records_and_the_thin_cable_between_them_is_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    key = making.make_key(keys / "id")
    with Hosts(4) as four:
        *fleet, user = four
        servers = [host.start_sshd(key) for host in fleet]
        for number, host in enumerate(fleet):
            record = host_record(host.name, 1.0 if number else 0.8)
            (four.folder / f"{host.name}.json").write_text(record.dumps() + "\n", encoding="utf-8")
        stub = four.folder / "python"
        facts = {"python": sys.executable, "folder": four.folder}
        stub.write_text(STUB.format(**facts), encoding="utf-8")
        stub.chmod(0o755)
        config = making.ssh_config(keys / "config", key, servers)
        site = tmp_path / "site.toml"
        site.write_text(f"[remote]\npython = {json.dumps(str(stub))}\nssh_config = {json.dumps(str(config))}\n")
        four.slow(1, mbit=100)
        names = ",".join(host.name for host in fleet)
        words = ["fleet", "resnet50", "--platform", "cpu", "--steps", "60", "--hosts", names, "--links", "--json"]
        own = {"TRAINMARK_CONFIG": str(site), "TRAINMARK_STORE": str(tmp_path / "store")}
        environment = {**os.environ, **own}
        ran = user.run([sys.executable, "-m", "trainmark", *words], env=environment, timeout=240)
    assert ran.returncode == 6, ran.stderr
    document = json.loads(ran.stdout)
    assert [one["host"] for one in document["hosts"] if one["verdict"] == "slow"] == ["trainmark-h0"]
    assert [one["host"] for one in document["links"]["cables"] if one["slow"]] == ["trainmark-h1"]
    assert document["links"]["pairs"] == 3
    assert len(list((tmp_path / "store" / "records").glob("*.json"))) == 3
