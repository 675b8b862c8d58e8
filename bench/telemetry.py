"""What the sampler beside a run costs, in processor time of its own: start-up, and a second of sampling.

    python bench/telemetry.py [--seconds 20] [--platform cpu]

Programs that a platform's sensors are read by count too, as they run beside the training just the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def cost(platform: str, seconds: float, devices: int) -> tuple[float, int]:
    """Processor seconds of a sampler that ran so long, and how often it looked at the host."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "telemetry0.jsonl"
        words = [sys.executable, "-m", "trainmark.launch.sampler", str(file), platform, str(devices)]
        process = subprocess.Popen(words)
        time.sleep(seconds)
        process.terminate()
        process.wait(20)
        events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return events[-1]["cpu_s"], sum(event["event"] == "host" for event in events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()
    startup_s, _ = cost(args.platform, 1.0, args.devices)
    whole_s, samples = cost(args.platform, args.seconds, args.devices)
    sampling = 100 * max(0.0, whole_s - startup_s) / max(args.seconds - 1.0, 1e-9)
    print(f"{samples} samples in {args.seconds:g} s: {whole_s:.2f} s of one core, {100 * whole_s / args.seconds:.2f} %")
    print(f"of that {startup_s:.2f} s are start-up; sampling itself takes {sampling:.2f} % of one core")


if __name__ == "__main__":
    main()
