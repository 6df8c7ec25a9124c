"""`make bench`: our stages beside their peers, in turn, on this machine.

Needs WIKITEXT2 (wikitext-2-v1.zip or a folder of its texts). Peers go into `artifacts/peers`, an environment of their
own. Prints a Markdown table of medians, each ratio of the medians of one run, and which rows could not be measured. A run
of all parts writes the same into EXPERIMENTS.md.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.vocabulary import build_vocabulary
from pipeline.export import export_encoder
from pipeline.settings import load_preset
from pipeline.storage import Output, Store
from pipeline.training.precision import chosen_precision
from pipeline.training.run import RunSettings, plan_run, read_metrics

HERE = Path(__file__).parent
PEERS = Path("artifacts/peers")
EXPERIMENTS = HERE.parents[1] / "EXPERIMENTS.md"
BEGIN, END = "<!-- make bench writes from here -->\n", "<!-- to here -->\n"
PEER_PACKAGES = {"d2l": "d2l==1.0.3", "transformers": "transformers==5.24.0"}
WARM_UP = 3
COPIES = {9: 16, 93: 160}  # of WikiText-2 train, 97 MB and 1.0 GB, and the buckets for them
Row = dict[str, Any]


@dataclass
class Bench:
    """What the rows share: a folder, WikiText-2 as texts and in a store, how many turns; and what cannot be measured."""

    folder: Path
    texts: Path
    store: Store
    corpus: Output
    vocabulary: Output
    shards: tuple[Output, Output]
    turns: int
    steps: int
    lines: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def plan(self, name: str, **training: Any) -> RunSettings:
        """A run of `tiny` on the CPU, unless it says otherwise."""
        preset = load_preset("tiny").override(training={"device": "cpu", "steps": self.steps} | training)
        return plan_run(self.store, preset, *self.shards, self.folder / name).save()

    def in_turn(self, **sides: Callable[[int], Row]) -> dict[str, list[Row]]:
        """Measure each side in turn, as often as there are turns."""
        found: dict[str, list[Row]] = {name: [] for name in sides}
        for turn in range(self.turns):
            for name, side in sides.items():
                found[name].append(side(turn))
                print(f"{name} {turn + 1}: {json.dumps(found[name][-1])}", file=sys.stderr)
        return found

    def say(self, line: str) -> None:
        """Print a line of the result as soon as it is known."""
        self.lines.append(f"{line}\n")
        print(line, flush=True)

    def row(self, what: str, own: str, other: str, ratio: str, target: str) -> None:
        """A row of the table."""
        self.say(f"| {what} | {own} | {other} | {ratio} | {target} |")


def median(rows: list[Row], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def peers_python() -> str:
    """Python of the peers' environment, which is made on the first call."""
    python, done = PEERS / "bin" / "python", PEERS / "installed"
    wanted = " ".join([torch.__version__, *PEER_PACKAGES.values()])
    if not done.exists() or done.read_text("utf-8") != wanted:
        venv.create(PEERS, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, f"torch=={torch.__version__.split('+')[0]}", "numpy", PEER_PACKAGES["transformers"]], check=True)
        subprocess.run([*install, "--no-deps", PEER_PACKAGES["d2l"]], check=True)
        done.write_text(wanted, "utf-8")
    return str(python)


def measure(*command: str) -> Row:
    """Run a command that prints one JSON object last."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stderr}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def own(script: str, *arguments: object) -> Row:
    return measure(sys.executable, str(HERE / script), *map(str, arguments))


def peer(script: str, *arguments: object) -> Row:
    return measure(peers_python(), str(HERE / script), *map(str, arguments))


def train(bench: Bench, run: RunSettings) -> Output:
    """Train a run in a child."""
    subprocess.run([sys.executable, "-m", "pipeline.training", f"{run.work}/run.json"], check=True, stdout=subprocess.DEVNULL)
    output = bench.store.find("run", run.key)
    assert output
    return output


def timed_training(bench: Bench, run: RunSettings, warm_up: int = WARM_UP) -> Row:
    """Of a run that is trained now: pairs/s after a warm-up, the loss at its end, and what its manifest records.

    :param warm_up: steps that are not timed; metrics are written after the last of them.
    """
    output = train(bench, run)
    rows = [row for row in read_metrics(output) if row["kind"] == "train"]
    shutil.rmtree(output.address)  # so that the next turn does not find it
    first, last = rows[min(warm_up, len(rows) - 1) - 1], rows[-1]
    rate = (last["pairs"] - first["pairs"]) / (last["seconds"] - first["seconds"])
    return {
        "pairs_per_second": rate,
        "seconds": last["seconds"],
        "loss": last["mlm_loss"] + last["next_sentence_loss"],
        "recorded": output.manifest["recorded"],
    }


def data_rows(bench: Bench) -> None:
    def build(turn: int) -> Row:
        try:
            return own("own_data.py", bench.texts, bench.folder / f"data-{turn}")
        finally:
            shutil.rmtree(bench.folder / f"data-{turn}")

    found = bench.in_turn(d2l=lambda _: peer("d2l_peer.py", "data", bench.texts), own=build)
    for what, name, unit, digits, target in (
        ("data stages, WikiText-2 train", "seconds", "s", 2, "12"),
        ("peak memory of their process (d2l's holds torch, ours does not)", "peak_mb", "MB", 0, "2"),
    ):
        ours, theirs = median(found["own"], name), median(found["d2l"], name)
        bench.row(what, f"{ours:.{digits}f} {unit}", f"d2l: {theirs:.{digits}f} {unit}", f"{theirs / ours:.2f}", target)


def scale_rows(bench: Bench) -> None:
    text = (bench.texts / "wiki.train.tokens").read_bytes()

    def build(copies: int) -> Row:
        folder, store = bench.folder / "copies", bench.folder / "copies-store"
        folder.mkdir()
        try:
            with (folder / "wiki.train.tokens").open("wb") as file:
                file.writelines(text for _ in range(copies))
            shutil.copy(bench.texts / "wiki.valid.tokens", folder)
            return own("own_data.py", folder, store, COPIES[copies])
        finally:
            for made in (folder, store):
                shutil.rmtree(made, ignore_errors=True)

    small, large = COPIES
    found = bench.in_turn(small=lambda _: build(small), large=lambda _: build(large))
    few, many = found["small"], found["large"]
    seconds = [median(rows, "seconds") for rows in (few, many)]
    growth = seconds[1] / seconds[0] / (median(many, "megabytes") / median(few, "megabytes"))
    sizes = [f"{median(rows, 'megabytes'):,.0f} MB" for rows in (few, many)]
    what = f"text repeated to {sizes[1]} (160 buckets), beside {sizes[0]} (16 buckets)"
    bench.row(f"data stages, {what}: time for a byte", f"{seconds[1]:.1f} s", f"{seconds[0]:.1f} s", f"{growth:.2f}", "0.85 to 1.15")
    peak = [median(rows, "peak_mb") for rows in (few, many)]
    bench.row("the same: peak memory", f"{peak[1]:.0f} MB", f"{peak[0]:.0f} MB", f"{peak[1] / peak[0]:.2f}", "to 1.20, below 1,500 MB")


def builders_row(bench: Bench) -> None:
    """Shards alone, by one process and by two, each on a core of its own and already started."""
    copies = max(COPIES)
    if len(os.sched_getaffinity(0)) < 2:
        bench.missing.append("builders: two of them need two cores")
        return
    folder, store = bench.folder / "many", Store(str(bench.folder / "many-store"))
    folder.mkdir()
    text = (bench.texts / "wiki.train.tokens").read_bytes()
    with (folder / "wiki.train.tokens").open("wb") as file:
        file.writelines(text for _ in range(copies))
    shutil.copy(bench.texts / "wiki.valid.tokens", folder)
    corpus = fetch_corpus(store, str(folder)).output
    vocabulary = build_vocabulary(store, corpus, load_preset("tiny"))
    shutil.rmtree(folder)

    def build(processes: int) -> Row:
        place = bench.folder / "many-shards"
        try:
            return own("own_builders.py", corpus.address, vocabulary.address, place, processes, COPIES[copies])
        finally:
            shutil.rmtree(place, ignore_errors=True)

    found = bench.in_turn(one=lambda _: build(1), two=lambda _: build(2))
    shutil.rmtree(store.root)
    one, two = (median(found[name], "seconds") for name in ("one", "two"))
    size = corpus.facts["train"]["bytes"] / 1e6
    bench.row(f"shards alone, {size:,.0f} MB: two processes beside one", f"{two:.1f} s", f"{one:.1f} s", f"{one / two:.2f}", "1.7")


def prose_row(bench: Bench) -> None:
    """The paper's recipe, WordPiece included, on a gigabyte of generated text; once, since it takes long."""
    generated, store = bench.folder / "generated.jsonl", bench.folder / "generated-store"
    try:
        subprocess.run([sys.executable, str(HERE / "generate_text.py"), str(generated), "1000"], check=True)
        found = own("own_data.py", generated, store, 128, "mini")
    finally:
        generated.unlink(missing_ok=True)
        shutil.rmtree(store, ignore_errors=True)
    what = f"`mini`'s data stages, {found['megabytes']:,.0f} MB of generated JSON Lines (128 buckets): peak memory"
    bench.row(what, f"{found['peak_mb']:.0f} MB", f"{found['seconds']:.0f} s", "", "below 1,500 MB")


def training_rows(bench: Bench) -> None:
    quiet = {"checkpoint_every_seconds": 0.0, "log_every": 1}
    precision = chosen_precision("auto", torch.device("cpu"))
    floor_run = bench.plan("floor", **quiet)
    found = bench.in_turn(
        d2l=lambda _: peer("d2l_peer.py", "train", bench.texts, bench.steps),
        own=lambda turn: timed_training(bench, bench.plan(f"train-{turn}", **quiet)),
        floor=lambda _: own("floor.py", f"{floor_run.work}/run.json", precision),
    )
    ours, theirs, floor = (median(found[name], "pairs_per_second") for name in ("own", "d2l", "floor"))
    what = f"`tiny` training, CPU, {precision}, batch 512"
    bench.row(what, f"{ours:.0f} pairs/s", f"d2l: {theirs:.0f} pairs/s", f"{ours / theirs:.2f}", "6")
    share = f"{ours / floor:.0%}"
    products = f"its matrix products alone: {floor:.0f} pairs/s"
    bench.row(f"the same, beside its floor in {precision}", f"{ours:.0f} pairs/s", products, share, "60%")
    if precision == "fp32":
        bench.missing.append("the floor in bf16: this processor has no bf16 products, torch emulates them many times slower than fp32")


def precision_row(bench: Bench) -> None:
    few = {"checkpoint_every_seconds": 0.0, "steps": 10, "batch_size": 32}
    losses = [timed_training(bench, bench.plan(name, precision=name, **few))["loss"] for name in ("bf16", "fp32")]
    off = abs(losses[0] / losses[1] - 1)
    bench.row("loss after 10 steps of 32 pairs, bf16 beside fp32", f"{losses[0]:.4f}", f"{losses[1]:.4f}", f"{off:.2%} off", "0.5%")


def encoding_rows(bench: Bench) -> None:
    text = bench.texts / "wiki.valid.tokens"
    run = train(bench, bench.plan("encoder", steps=1, batch_size=8))
    encoder = export_encoder(bench.store, run, bench.vocabulary, bench.corpus).address
    for dtype in dict.fromkeys(["fp32", chosen_precision("auto", torch.device("cpu"))]):
        found = bench.in_turn(
            transformers=lambda _, dtype=dtype: peer("hf_peer.py", text, dtype),
            own=lambda _, dtype=dtype: own("own_encoding.py", text, encoder, dtype),
        )
        ours, theirs = (median(found[name], "sentences_per_second") for name in ("own", "transformers"))
        what = f"encoding WikiText-2 valid, batch 128, from ids, CPU, {dtype}"
        bench.row(what, f"{ours:,.0f} sentences/s", f"transformers: {theirs:,.0f} sentences/s", f"{ours / theirs:.2f}", "4")
        with_text = median(found["own"], "sentences_per_second_from_text")
        bench.row("the same, from text", f"{with_text:,.0f} sentences/s", "", "", "")


def overhead_rows(bench: Bench) -> None:
    """What a run of 50 steps with two checkpoints spends beside its steps."""
    run = {"steps": 50, "checkpoint_every_seconds": 0.0, "checkpoint_every_steps": 20}
    found = bench.in_turn(own=lambda turn: timed_training(bench, bench.plan(f"whole-{turn}", **run)))["own"]
    seconds, interval = median(found, "seconds"), load_preset("tiny").training.checkpoint_every_seconds

    def spent(name: str) -> float:
        return statistics.median(row["recorded"][name] for row in found)

    checkpoint = spent("seconds_checkpointing") / 2
    bench.row(
        "a checkpoint of `tiny`, beside the default interval",
        f"{checkpoint:.2f} s",
        f"{interval:.0f} s",
        f"{checkpoint / interval:.2%}",
        "2%",
    )
    for what, name in (("metrics, 50 steps of `tiny`", "seconds_writing_metrics"), ("waiting for batches", "seconds_waiting_for_batches")):
        bench.row(f"{what}, beside the steps", f"{spent(name):.3f} s", f"{seconds:.1f} s", f"{spent(name) / seconds:.2%}", "2%")


def gpu_rows(bench: Bench) -> None:
    if not torch.cuda.is_available():
        bench.missing.append("GPU rows: torch sees no GPU here")
        return
    warm_up = 20
    many = {"device": "cuda", "steps": 200, "checkpoint_every_seconds": 0.0, "log_every": warm_up}
    found = bench.in_turn(
        d2l=lambda _: peer("d2l_peer.py", "train", bench.texts, 30, "cuda"),
        own=lambda turn: timed_training(bench, bench.plan(f"gpu-{turn}", **many), warm_up),
    )
    ours, theirs = (median(found[name], "pairs_per_second") for name in ("own", "d2l"))
    what = f"`tiny` training, {torch.cuda.get_device_name()}, batch 512"
    bench.row(what, f"{ours:,.0f} pairs/s", f"d2l: {theirs:,.0f} pairs/s", f"{ours / theirs:.2f}", "40")
    bench.missing.append("model FLOPs utilisation of `base`: there is no such preset yet")


PARTS = {
    "data": data_rows,
    "scale": scale_rows,
    "builders": builders_row,
    "prose": prose_row,
    "training": training_rows,
    "precision": precision_row,
    "encoding": encoding_rows,
    "overhead": overhead_rows,
    "gpu": gpu_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side")
    parser.add_argument("--steps", type=int, default=12, help="training steps a turn, the first three not timed")
    args = parser.parse_args()
    if not (corpus_address := os.environ.get("WIKITEXT2")):
        sys.exit("error: set WIKITEXT2 to wikitext-2-v1.zip, or to a folder of its three texts")
    if args.steps <= WARM_UP or args.turns < 1:
        sys.exit(f"error: --steps: got {args.steps}, wanted more than {WARM_UP}; --turns: got {args.turns}, wanted at least 1")
    if unknown := set(args.parts) - set(PARTS):
        sys.exit(f"error: PART: got {', '.join(sorted(unknown))}, wanted some of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as name:
        folder, preset = Path(name), load_preset("tiny")
        store = Store(str(folder / "store"))
        corpus = fetch_corpus(store, corpus_address).output
        vocabulary = build_vocabulary(store, corpus, preset)
        train_shards, valid_shards = (build_shards(store, corpus, vocabulary, split, preset) for split in ("train", "valid"))
        texts = folder / "texts"
        texts.mkdir()
        for split in ("train", "valid"):
            shutil.copyfile(corpus.file(f"{split}.tokens"), texts / f"wiki.{split}.tokens")
        bench = Bench(folder, texts, store, corpus, vocabulary, (train_shards, valid_shards), args.turns, args.steps)
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        capability = torch.backends.cpu.get_cpu_capability()
        machine = f"{platform.machine()}, {os.cpu_count()} cores, {capability}, {gpu}"
        bench.say(f"{machine}, torch {torch.__version__}; medians of {args.turns} turns\n")
        bench.say("| what | this project | beside | ratio | target |\n|---|---|---|---|---|")
        for part in args.parts or PARTS:
            PARTS[part](bench)
    for reason in bench.missing:
        bench.say(f"\nNot measured: {reason}.")
    if not args.parts:
        text = EXPERIMENTS.read_text("utf-8")
        before, _, rest = text.partition(BEGIN)
        EXPERIMENTS.write_text(f"{before}{BEGIN}\n{''.join(bench.lines)}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
