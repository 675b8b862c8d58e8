"""Checks a platform's collectives: ranks in processes of their own join and all-reduce."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.rendezvous import make_collective_variables
from trainmark.platforms import files
from trainmark.record.cores import end_with_parent
from trainmark.record.precision import PRECISIONS
from trainmark.train.ranks import PARENT

LIMIT_S = 60.0
LENGTH = 1 << 16


def find_failure(word: str, ranks: int) -> str | None:
    """What went wrong between the ranks of a platform; None where the all-reduce is right."""
    variables = {**make_collective_variables(ClusterEnv(), None), **os.environ, PARENT: str(os.getpid())}
    with tempfile.TemporaryDirectory(prefix="trainmark-") as folder, ExitStack() as started:
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(ranks)]
        children = []
        for rank, log in enumerate(logs):
            words = ["-m", "trainmark.features.doctor.collective_check", word, str(rank), str(ranks), folder]
            with log.open("wb") as output:
                child = subprocess.Popen(
                    [sys.executable, *words], env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            started.callback(child.wait)
            started.callback(child.kill)
            children.append(child)
        return _wait_for_failure(children, logs)


def _wait_for_failure(children: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> str | None:
    ends_at_s = time.monotonic() + LIMIT_S
    waiting = dict(enumerate(children))
    while waiting:
        for rank, child in list(waiting.items()):
            if child.poll() is None:
                continue
            if child.returncode:
                lines = logs[rank].read_text(encoding="utf-8", errors="replace").splitlines()
                last = next((line for line in reversed(lines) if line.strip()), "no message")
                return f"rank {rank} of {len(children)} ended with {child.returncode}: {last}"
            del waiting[rank]
        if waiting and time.monotonic() > ends_at_s:
            return f"rank {min(waiting)} of {len(children)} did not end within {LIMIT_S:.0f} s"
        time.sleep(0.02)
    return None


def main(word: str, rank: int, ranks: int, folder: Path) -> int:
    end_with_parent(int(os.environ[PARENT]))
    import torch
    from torch import distributed

    from trainmark.platforms.platform import Platform

    device = Platform(files.load(word)).open(rank)
    distributed.init_process_group(
        device.platform.file.collectives,
        init_method=f"file://{folder}/coordinator",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=LIMIT_S),
    )
    numbers = torch.arange(LENGTH, dtype=torch.float32, device=device.torch) * (rank + 1)
    with device.arithmetic(PRECISIONS["fp32"]):
        distributed.all_reduce(numbers)
    device.synchronize()
    wanted = torch.arange(LENGTH, dtype=torch.float32) * (ranks * (ranks + 1) // 2)
    wrong = int((numbers.cpu() != wanted).sum())
    if wrong:
        print(f"{wrong} of {LENGTH} sums are wrong", file=sys.stderr)
    distributed.barrier()
    distributed.destroy_process_group()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
