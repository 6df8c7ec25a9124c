"""transformers' BertModel, of the size of `tiny`, on the sentences of a text, timed. Runs in the peers' environment.

    python hf_peer.py TEXT [fp32|bf16]

TEXT is a WikiText file such as wiki.valid.tokens. Sentences are encoded in the file's order, 128 at a time, from token
ids, each batch padded to its longest; only the model is timed, not the padding. Prints one JSON object.
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

BATCH = 128
PAD, CLS, SEP, FIRST_WORD = 0, 2, 3, 5
SIZES = BertConfig(
    vocab_size=20_256,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=512,
)


def rows(path: str) -> list[list[int]]:
    """Token ids of each sentence: words numbered as they are first seen, specials around."""
    ids: dict[str, int] = {}
    found = []
    for line in Path(path).read_text("utf-8").splitlines():
        for sentence in line.lower().split(" . "):
            if words := sentence.split()[: SIZES.max_position_embeddings - 2]:
                numbers = (ids.setdefault(word, len(ids) % (SIZES.vocab_size - FIRST_WORD) + FIRST_WORD) for word in words)
                found.append([CLS, *numbers, SEP])
    return found


@torch.no_grad()
def rows_per_second(model: BertModel, found: list[list[int]]) -> float:
    """Sentences a second, once all were encoded before."""
    batches = []
    for start in range(0, len(found), BATCH):
        rows = [torch.tensor(row) for row in found[start : start + BATCH]]
        batches.append(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD))
    for _ in range(2):
        begin = time.perf_counter()
        for input_ids in batches:
            model(input_ids=input_ids, attention_mask=(input_ids != PAD).long(), token_type_ids=torch.zeros_like(input_ids))
        seconds = time.perf_counter() - begin
    return len(found) / seconds


if __name__ == "__main__":
    torch.manual_seed(0)
    dtype = sys.argv[2] if len(sys.argv) > 2 else "fp32"
    found = rows(sys.argv[1])
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        rate = rows_per_second(BertModel(SIZES).eval(), found)
    print(json.dumps({"dtype": dtype, "sentences": len(found), "sentences_per_second": rate}))
