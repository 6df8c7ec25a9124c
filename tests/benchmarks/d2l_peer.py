"""The d2l package's BERT on WikiText-2, timed. Runs in the peers' environment, started by `bench.py`.

    python d2l_peer.py data|train FOLDER [STEPS [DEVICE]]

FOLDER holds wiki.train.tokens. Prints one JSON object. d2l imports packages that BERT does not use; empty modules
stand in for them.
"""

import json
import re
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

for name in ("torchvision", "torchvision.transforms", "gym", "IPython", "matplotlib", "matplotlib.pyplot", "matplotlib_inline", "pandas",
             "requests", "scipy", "scipy.spatial", "PIL"):  # fmt: skip
    sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
import torch
from d2l import torch as d2l

WARM_UP = 3


def peak_mb() -> float:
    """The most memory that this program has held, in MB; what getrusage says counts the process that started it too."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"))[1]) / 1024


def build(folder: str) -> tuple["d2l._WikiTextDataset", float]:
    """The deck's data set of 64 tokens, without download, and the seconds that it took."""
    start = time.perf_counter()
    data = d2l._WikiTextDataset(d2l._read_wiki(folder), 64)
    return data, time.perf_counter() - start


def train(folder: str, steps: int, device: str = "cpu") -> dict[str, float]:
    """The deck's training step at batch 512, timed after a warm-up; the copy to the device is not timed."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    torch.manual_seed(0)
    data, _ = build(folder)
    size = len(data.vocab)
    net = d2l.BERTModel(size, num_hiddens=128, ffn_num_hiddens=256, num_heads=2, num_blks=2, dropout=0.2)
    loader, loss = torch.utils.data.DataLoader(data, 512, shuffle=True), torch.nn.CrossEntropyLoss()
    batches = iter(loader)
    net(*next(batches)[:4])  # sets up its lazy layers
    net = net.to(device)
    adam = torch.optim.Adam(net.parameters(), lr=1e-4)
    pairs = seconds = mlm_sum = nsp_sum = 0.0
    for step in range(steps):
        batch = [column.to(device) for column in next(batches)]
        wait()
        start = time.perf_counter()
        adam.zero_grad()
        tokens, segments, valid, positions, weights, labels, is_next = batch
        mlm, nsp, both = d2l._get_batch_loss_bert(net, loss, size, tokens, segments, valid, positions, weights, labels, is_next)
        both.backward()
        adam.step()
        wait()
        mlm_sum, nsp_sum = mlm_sum + float(mlm), nsp_sum + float(nsp)
        if step >= WARM_UP:
            pairs, seconds = pairs + len(tokens), seconds + time.perf_counter() - start
    return {"pairs_per_second": pairs / seconds, "mlm_loss_mean": mlm_sum / steps, "next_sentence_loss_mean": nsp_sum / steps}


if sys.argv[1] == "data":
    data, seconds = build(sys.argv[2])
    row = {"seconds": seconds, "rows": len(data), "peak_mb": peak_mb()}
else:
    row = train(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
print(json.dumps(row))
