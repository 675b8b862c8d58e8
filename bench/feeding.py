"""Whether pictures come as fast as steps want them: p_train over p_core of a `quick` run beside its own decoding.

python bench/feeding.py [--workload resnet50] [--budget 60s]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile

import figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--budget", default="60s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "run",
            args.workload,
            "--recipe",
            "quick",
            "--budget",
            args.budget,
            "--store",
            folder,
            "--json",
            "--quiet",
        ]
        ended = subprocess.run([sys.executable, "-m", "trainmark", *words], stdout=subprocess.PIPE, check=True)
    metrics = json.loads(ended.stdout)["metrics"]
    p_train, p_core = (metrics[name]["value"] for name in ("p_train", "p_core"))
    print(f"{args.workload} quick: p_train {p_train:.4g}, p_core {p_core:.4g} {metrics['p_core']['unit']}, ", end="")
    print(f"ratio {p_train / p_core:.4f}")
    figures.note(f"{args.workload} p_train over p_core", p_train / p_core)


if __name__ == "__main__":
    main()
