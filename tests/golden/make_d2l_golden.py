"""Make `d2l_bert.safetensors`: weights, inputs and outputs of the d2l package's BERT, small, in eval mode.

Run in an environment of its own, from the folder of this file:
    python3 -m venv d2l-env && d2l-env/bin/pip install torch==2.13.0 numpy safetensors
    d2l-env/bin/pip install --no-deps d2l==1.0.3 && d2l-env/bin/python make_d2l_golden.py

d2l imports plotting and gym packages that BERT does not use; empty modules stand in for them.
"""

import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

for name in ("torchvision", "gym", "IPython", "matplotlib", "matplotlib.pyplot", "matplotlib_inline", "pandas", "requests", "scipy",
             "scipy.spatial", "PIL", "torchvision.transforms"):  # fmt: skip
    sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
import torch
from d2l import torch as d2l
from safetensors.torch import save_file

VOCABULARY, LENGTHS, MASKS = 40, (12, 7, 9), (3, 1, 2)

torch.manual_seed(0)
net = d2l.BERTModel(VOCABULARY, num_hiddens=16, ffn_num_hiddens=32, num_heads=2, num_blks=2, dropout=0.2, max_len=20)
longest, most = max(LENGTHS), max(MASKS)
tokens, segments = torch.zeros(len(LENGTHS), longest, dtype=torch.long), torch.zeros(len(LENGTHS), longest, dtype=torch.long)
positions = torch.zeros(len(LENGTHS), most, dtype=torch.long)
for row, (length, masks) in enumerate(zip(LENGTHS, MASKS, strict=True)):
    tokens[row, :length] = torch.randint(5, VOCABULARY, (length,))
    segments[row, length // 2 : length] = 1
    positions[row, :masks] = torch.randperm(length - 1)[:masks].sort().values + 1
valid = torch.tensor(LENGTHS)
net.eval()  # before the first call too: its lazy layers take no random numbers then but those of their weights
with torch.no_grad():
    net(tokens, segments, valid, positions)
    for parameter in net.parameters():  # the defaults leave norms and biases at 1 and 0, which would hide a mistake
        parameter.add_(torch.randn_like(parameter) * 0.1)
    encoded, mlm_logits, nsp_logits = net(tokens, segments, valid, positions)
save_file(
    {f"weights.{name}": value.contiguous() for name, value in net.state_dict().items()}
    | {"tokens": tokens, "segments": segments, "lengths": valid, "positions": positions, "masks": torch.tensor(MASKS)}
    | {"encoded": encoded, "mlm_logits": mlm_logits, "nsp_logits": nsp_logits},
    "d2l_bert.safetensors",
)
