"""A planned run with the command that starts it on another machine, and what all renderings share."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trainmark.launch.options import RunOptions
from trainmark.platforms import files
from trainmark.record.errors import UsageError
from trainmark.record.plan import Plan, Topology

MAX_NAME_LENGTH = 53
"""Kubernetes names pods NAME-node-0-0, with at most 63 characters."""


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A planned run to be started on another machine."""

    options: RunOptions
    plans: Sequence[Plan]
    as_json: bool = False
    """The run prints its record as JSON."""
    given_name: str | None = None

    @property
    def name(self) -> str:
        """As given, or one that is valid in Slurm and Kubernetes."""
        if self.given_name is not None:
            return self.given_name
        what = "-".join(dict.fromkeys(plan.workload for plan in self.plans))
        name = f"trainmark-{what}-{self.plans[0].recipe_name}-{self.plans[0].topology}"
        return re.sub(r"[^a-z0-9]+", "-", name.lower())[:MAX_NAME_LENGTH].strip("-")

    @property
    def words(self) -> tuple[tuple[str, ...], ...]:
        """`run` with its workloads, then each option with its value."""
        names, *rest = self.options.to_argv()
        return (("run", *names), *rest, *([("--json",)] if self.as_json else []))

    @property
    def topology(self) -> Topology:
        return Topology.parse(self.plans[0].topology)

    @property
    def on_cpu(self) -> bool:
        """True where no devices are requested from the scheduler."""
        return files.load(self.plans[0].platform).device_type == "cpu"

    @property
    def command(self) -> list[str]:
        return ["trainmark", *(word for group in self.words for word in group)]

    def shell_command(self) -> str:
        """The command for a shell, one option per line."""
        first, *rest = self.words
        lines = [" ".join(map(quote_word, words)) for words in (("trainmark", *first), *rest)]
        return " \\\n    ".join(lines)


def option(flag: str, help_: str, *, metavar: str = "NAME", default: Any = None, kind: type = str) -> Any:
    """A field of a request that is an option of `trainmark launch render`; required where its default is `...`."""
    metadata = {"flag": flag, "help": help_, "metavar": metavar, "kind": kind}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def make_absolute(path: str | None) -> str | None:
    """An absolute path, valid wherever the job starts."""
    return None if path is None else str(Path(path).expanduser().absolute())


def describe_job(job: ClusterJob) -> list[str]:
    """What is trained, for the comment at the top of a rendering."""
    lines = []
    for plan in job.plans:
        synthetic = " (synthetic)" if plan.data.synthetic else ""
        lines += [
            f"{plan.workload}, recipe {plan.recipe_name}, {plan.topology}, {plan.precision}, platform {plan.platform}",
            f"  data {plan.data.folder}{synthetic}",
            f"  plan {plan.fingerprint}",
        ]
    return [replace_unprintable(line) for line in lines]


def quote_word(word: str) -> str:
    """The word for bash; what a terminal would obey when the script is shown is spelled out."""
    if word.isprintable():
        return shlex.quote(word)
    spelled = (sign if sign.isprintable() and sign not in "\\'" else _spell_bytes(sign) for sign in word)
    return f"$'{''.join(spelled)}'"


def _spell_bytes(sign: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(sign))


def replace_unprintable(text: str) -> str:
    """For comments: a line break in a path must not end the comment."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def make_activation_line(venv: str) -> str:
    """The shell line that activates a virtual environment."""
    return f". {quote_word(str(PurePosixPath(venv) / 'bin' / 'activate'))}"


def check_option(option: str, text: str, pattern: str, wanted: str) -> str:
    """The value of an option, if it matches the pattern."""
    if not re.fullmatch(pattern, text):
        raise UsageError(f"{option} {text!r} is not {wanted}")
    return text
