"""`make chaos`: the whole flow under SIGKILL, at random moments of every stage, beside a run that nobody disturbs.

In: a corpus and a number of kills. Out: a Markdown table, or a `FaultError`.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .command import STAGES, Flow
from .kills import Report, Timeline, kill_often
from .outcome import check_registry, compare


def markdown(report: Report, compared: dict[str, Any], twice: Sequence[int], runs: Counter[str], seconds: float) -> str:
    """The outcome as a table."""
    files, hits = Counter(name.split("/")[0] for name in compared["files"]), Counter(report.hits)
    [weights] = (digest for name, digest in compared["files"].items() if name.startswith("run/"))
    rows = {
        "kills": f"{len(report.hits)}: " + ", ".join(f"{stage} {hits[stage]}" for stage in STAGES if hits[stage]),
        "attempts": f"{report.attempts}; each that was not killed exited with 0; no process outlived its command",
        "training went on from step": ", ".join(map(str, report.went_on_from)),
        "shards": f"identical: contents of {len(compared['shards'])} sets, {files['bucket']} bucket files",
        "other files": "identical: " + ", ".join(f"{name} {count}" for name, count in files.items() if name not in ("bucket", "run")),
        "final weights": f"identical: sha256 {weights[:16]}…",
        "losses": f"identical: {len(compared['steps'])} steps, each once, and {len(compared['held out'])} evaluations",
        "MLflow": f"one version, complete; its curve has every step, {len(twice)} of them twice; runs: "
        + ", ".join(f"{count} {status}" for status, count in runs.items()),
        "time": f"{seconds / 60:.1f} min",
    }
    return "\n".join(["| what | outcome |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="how many kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="training steps (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="a new folder for both stores and all output (default: a temporary one)")
    args = parser.parse_args()
    began = time.monotonic()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="chaos-"))).absolute()
    folder.mkdir(parents=True, exist_ok=not args.folder)
    corpus = os.environ.get("WIKITEXT2") or "sample"
    steps = (f"training.steps={args.steps}", "training.log_every=1", "training.checkpoint_every_steps=2")
    settings = (*steps, "training.batch_size=32", "training.evaluate_every=50", "vocabulary.min_count=50")
    undisturbed, disturbed = (Flow(folder / name, corpus, settings) for name in ("undisturbed", "disturbed"))
    print(f"both stores and all output: {folder}", file=sys.stderr)
    with undisturbed.start(folder / "undisturbed.log") as attempt:
        timeline = Timeline(attempt)
    report = kill_often(disturbed, timeline, args.kills, random.Random(args.seed), folder)
    compared = compare(disturbed, undisturbed)
    twice, runs = check_registry(disturbed, args.steps)
    print(markdown(report, compared, twice, runs, time.monotonic() - began))


if __name__ == "__main__":
    main()
