"""How long a run takes that has nothing to do, beside an empty Prefect flow: `.venv/bin/python tests/benchmarks/rerun.py`.

Both start a temporary Prefect server of their own, in turn, each in a fresh process, with the same settings and home.
The corpus is WIKITEXT2's where that is set, else the built-in sample; it is trained for three steps first.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TURNS = 3
EMPTY = """
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

@flow
def empty() -> None:
    pass

with temporary_settings({PREFECT_API_URL: None}):
    empty()
"""


def seconds(command: list[str], environment: dict[str, str], folder: Path) -> float:
    """Wall time of a command that has to succeed."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.monotonic() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "BERT_"))}
        changed = {
            "BERT_STORE": str(folder / "store"),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": "",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
            "DO_NOT_TRACK": "true",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PYTHONPATH": str(ROOT),
        }
        corpus = os.environ.get("WIKITEXT2") or "sample"
        run = [sys.executable, "-m", "flows.cli", "run", "--corpus", corpus, "--steps", "3", "--set", "training.device=cpu"]
        print(f"first run   {seconds(run, kept | changed, folder):.1f} s")
        empty, again = [], []
        for _ in range(TURNS):
            empty.append(seconds([sys.executable, "-c", EMPTY], kept | changed, folder))
            again.append(seconds(run, kept | changed, folder))
            print(f"empty flow  {empty[-1]:.1f} s   run with nothing to do  {again[-1]:.1f} s")
        beyond = [long - short for long, short in zip(again, empty, strict=True)]
        medians = ", ".join(f"{statistics.median(times):.1f} s" for times in (empty, again, beyond))
        print(f"medians of {TURNS} (empty, nothing to do, difference): {medians}")


if __name__ == "__main__":
    main()
