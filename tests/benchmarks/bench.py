"""`make bench`: our stages beside their peers, in turn, on this machine.

Needs WIKITEXT2 (wikitext-2-v1.zip or a folder of its texts). Peers go into `artifacts/peers`, an environment of their
own. Prints a Markdown table of medians; each ratio is of the medians of one run.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import torch

from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.vocabulary import build_vocabulary
from pipeline.settings import load_preset
from pipeline.storage import Store
from pipeline.training.run import plan_run

HERE = Path(__file__).parent
PEERS = Path("artifacts/peers")
WARM_UP = 3


def peers_python() -> str:
    """Python of the peers' environment, which is made on the first call."""
    python, done = PEERS / "bin" / "python", PEERS / "installed"
    if not done.exists():
        venv.create(PEERS, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, f"torch=={torch.__version__.split('+')[0]}", "numpy"], check=True)
        subprocess.run([*install, "--no-deps", "d2l==1.0.3"], check=True)
        done.touch()
    return str(python)


def measure(*command: str) -> dict[str, Any]:
    """Run a command that prints one JSON object last."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def own_training(built: tuple[Store, Any, Any], steps: int, folder: Path) -> dict[str, Any]:
    """Our training in a child, pairs/s after a warm-up."""
    store, train, valid = built
    preset = load_preset("tiny").override(training={"steps": steps, "log_every": 1, "device": "cpu", "checkpoint_every_seconds": 0.0})
    run = plan_run(store, preset, train, valid, folder).save()
    subprocess.run([sys.executable, "-m", "pipeline.training", f"{run.work}/run.json"], check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (Path(run.work) / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "train"]
    first, last = rows[WARM_UP - 1], rows[-1]
    shutil.rmtree(store.address("run", run.key))
    rate = (last["pairs"] - first["pairs"]) / (last["seconds"] - first["seconds"])
    return {"pairs_per_second": rate, **{name: last[name] for name in ("mlm_loss_mean", "next_sentence_loss_mean")}}


def median(rows: list[dict[str, Any]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="turns of each side")
    parser.add_argument("--steps", type=int, default=12, help="training steps a turn, the first three not timed")
    args = parser.parse_args()
    if not (corpus_address := os.environ.get("WIKITEXT2")):
        sys.exit("error: set WIKITEXT2 to wikitext-2-v1.zip, or to a folder of its three texts")
    if args.steps <= WARM_UP or args.turns < 1:
        sys.exit(f"error: --steps: got {args.steps}, wanted more than {WARM_UP}; --turns: got {args.turns}, wanted at least 1")
    peer = [peers_python(), str(HERE / "d2l_peer.py")]
    with tempfile.TemporaryDirectory() as folder_name:
        folder, preset = Path(folder_name), load_preset("tiny")
        store = Store(str(folder / "store"))
        corpus = fetch_corpus(store, corpus_address).output
        vocabulary = build_vocabulary(store, corpus, preset.vocabulary)
        train, valid = (build_shards(store, corpus, vocabulary, split, preset.shards) for split in ("train", "valid"))
        texts = folder / "texts"
        texts.mkdir()
        for split in ("train", "valid"):
            shutil.copyfile(corpus.file(f"{split}.tokens"), texts / f"wiki.{split}.tokens")
        data: dict[str, list[dict[str, Any]]] = {"d2l": [], "own": []}
        training: dict[str, list[dict[str, Any]]] = {"d2l": [], "own": []}
        for turn in range(args.turns):
            data["d2l"].append(measure(*peer, "data", str(texts)))
            data["own"].append(measure(sys.executable, str(HERE / "own_data.py"), str(texts), str(folder / f"data-{turn}")))
            training["d2l"].append(measure(*peer, "train", str(texts), str(args.steps)))
            training["own"].append(own_training((store, train, valid), args.steps, folder / f"work-{turn}"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, ", end="")
    print(f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}; medians of {args.turns} turns\n")
    print("| what | this project | d2l 1.0.3 | ratio |\n|---|---|---|---|")
    for what, rows, name, unit in (
        ("data stages, WikiText-2 train", data, "seconds", "s"),
        ("peak memory of their process (d2l's holds torch, ours does not)", data, "peak_mb", "MB"),
        ("`tiny` training, CPU, fp32", training, "pairs_per_second", "pairs/s"),
    ):
        own, other = median(rows["own"], name), median(rows["d2l"], name)
        ratio = own / other if unit == "pairs/s" else other / own
        print(f"| {what} | {own:,.2f} {unit} | {other:,.2f} {unit} | {ratio:.2f} times as good |")
    if not torch.cuda.is_available():
        print("\nNot measured: GPU rows, since torch sees no GPU here.")


if __name__ == "__main__":
    main()
