"""The site file is checked data: what it may say, where it is looked for, and how a mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmark.record import site
from trainmark.record.errors import UsageError

WHOLE = """
[data]
imagenet = "/data/imagenet"
ljspeech = "sets/lj"

[remote]
python = "~/venv/bin/python"
folder = "work"
user = "trainer"
port = 2222
ssh_config = "ssh/config"
allow_root = true

[network]
interface = "eth1"
port = 29500
"""


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_fact_is_read_and_paths_begin_where_the_file_lies(tmp_path: Path) -> None:
    chosen = written(tmp_path / "chosen.toml", WHOLE)
    assert site.load({"TRAINMARK_CONFIG": str(chosen)}, cwd=tmp_path) == site.Site(
        data={"imagenet": "/data/imagenet", "ljspeech": str(tmp_path / "sets" / "lj")},
        remote=site.Remote(
            python="~/venv/bin/python",
            folder="work",
            user="trainer",
            port=2222,
            ssh_config=str(tmp_path / "ssh" / "config"),
            allow_root=True,
        ),
        network=site.Network(interface="eth1", port=29500),
    )


def test_without_a_file_every_fact_has_its_default_and_root_is_not_allowed(tmp_path: Path) -> None:
    found = site.load({}, cwd=tmp_path, home=tmp_path)
    assert found == site.Site()
    assert found.remote == site.Remote(python="python3", folder=".", allow_root=False)


def test_the_variable_comes_before_the_folder_and_the_folder_before_the_home(tmp_path: Path) -> None:
    chosen = written(tmp_path / "chosen.toml", '[network]\ninterface = "chosen"')
    here = written(tmp_path / "here" / "trainmark.toml", '[network]\ninterface = "here"')
    home = written(tmp_path / "home" / ".config" / "trainmark" / "trainmark.toml", '[network]\ninterface = "home"')
    environ = {"TRAINMARK_CONFIG": str(chosen), "HOME": str(tmp_path / "home")}
    found = []
    for path in (chosen, here, home):
        found.append(site.load(environ, cwd=tmp_path / "here").network.interface)
        path.unlink()
        environ.pop("TRAINMARK_CONFIG", None)
    assert found == ["chosen", "here", "home"]


def test_a_variable_that_names_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"TRAINMARK_CONFIG names .*absent\.toml, and there is no such file"):
        site.load({"TRAINMARK_CONFIG": str(tmp_path / "absent.toml")}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[remot]\n", "key 'remot' is not known; did you mean 'remote'?"),
        ("remote = 3\n", "remote must be a table, not 3"),
        ('[remote]\npyton = "x"\n', "remote: key 'pyton' is not known; did you mean 'python'?"),
        ("[remote]\npython = 3\n", "remote: python must be a text, not 3"),
        ('[remote]\nuser = ""\n', "remote: user must be a text, not ''"),
        ('[remote]\nallow_root = "no"\n', "remote: allow_root must be true or false, not 'no'"),
        ("[network]\nport = 0\n", "network: port must be a port number from 1 to 65535, not 0"),
        ("[network]\nport = true\n", "network: port must be a port number from 1 to 65535, not True"),
        ("[data]\nimagenet = 3\n", "data of imagenet must be a text, not 3"),
        ('[expected]\nmetric = "p_core"\n', "expected must be a list, not"),
        ("[network\n", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_key(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path / "trainmark.toml", text)
    with pytest.raises(UsageError) as refused:
        site.load({}, cwd=tmp_path)
    assert sentence in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_of_the_working_folder_sets_values_and_names_no_programs(tmp_path: Path) -> None:
    """What it may set is read all the same; only entering other hosts by it is refused."""
    here = written(tmp_path / "here" / "trainmark.toml", WHOLE)
    environ = {"HOME": str(tmp_path / "home")}
    found = site.load(environ, cwd=here.parent)
    assert found.data["imagenet"] == "/data/imagenet"
    with pytest.raises(UsageError) as refused:
        found.entering_hosts(trust=False)
    assert f"site file {here}: python of [remote] decides what ssh runs" in str(refused.value)
    assert "say --trust" in str(refused.value)
    assert f'{tmp_path}/home/.config/trainmark/trainmark.toml: trust = ["{here.parent}"]' in str(refused.value)
    assert found.entering_hosts(trust=True).remote.ssh_config == str(here.parent / "ssh" / "config")


@pytest.mark.parametrize("key", ["python", "folder", "user", "ssh_config"])
def test_every_word_that_changes_what_ssh_runs_needs_trust(tmp_path: Path, key: str) -> None:
    written(tmp_path / "trainmark.toml", f'[remote]\n{key} = "x"\n')
    with pytest.raises(UsageError, match=rf"{key} of \[remote\]"):
        site.load({}, cwd=tmp_path).entering_hosts(trust=False)


def test_the_users_own_files_are_followed_and_may_vouch_for_folders(tmp_path: Path) -> None:
    remote = '[remote]\nssh_config = "cluster.ssh"\n'
    here = written(tmp_path / "here" / "trainmark.toml", remote)
    chosen = written(tmp_path / "chosen.toml", remote)
    own = written(tmp_path / "home" / ".config" / "trainmark" / "trainmark.toml", remote)
    environ = {"HOME": str(tmp_path / "home")}
    for where, cwd in (
        ({**environ, "TRAINMARK_CONFIG": str(chosen)}, here.parent),  # named by hand
        (environ, tmp_path),
        (environ, own.parent),
    ):
        assert site.load(where, cwd=cwd).entering_hosts(trust=False).remote.ssh_config
    own.write_text(f'trust = ["{here.parent}"]\n')
    assert site.load(environ, cwd=here.parent).entering_hosts(trust=False).remote.ssh_config


def test_a_file_cannot_vouch_for_itself(tmp_path: Path) -> None:
    written(tmp_path / "trainmark.toml", f'trust = ["{tmp_path}"]\n')
    with pytest.raises(UsageError, match="trust is for your own file"):
        site.load({}, cwd=tmp_path)
    written(tmp_path / "trainmark.toml", 'untrusted = ""\n')
    with pytest.raises(UsageError, match="key 'untrusted' is not known"):
        site.load({}, cwd=tmp_path)
