"""With d2l's weights our model gives d2l's outputs. `tests/golden/make_d2l_golden.py` made the file."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from pipeline.model.encoder import EncoderShape
from pipeline.model.pretraining import Batch, BertForPretraining

GOLDEN = Path(__file__).parents[2] / "golden" / "d2l_bert.safetensors"
_NAMES = {
    "encoder.token_embedding": "encoder.token_embedding",
    "encoder.token_type_embedding": "encoder.segment_embedding",
    "masked_lm.transform": "mlm.mlp.0",
    "masked_lm.norm": "mlm.mlp.2",
    "masked_lm.decoder": "mlm.mlp.3",
    "next_sentence.pooler": "hidden.0",
    "next_sentence.classifier": "nsp.output",
}
_LAYER_NAMES = {
    "attention.out": "attention.W_o",
    "attention_norm": "addnorm1.ln",
    "intermediate": "ffn.dense1",
    "output": "ffn.dense2",
    "output_norm": "addnorm2.ln",
}


def from_d2l(weights: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """d2l's parameters under our names, the rows of its next-sentence output swapped: its 1 is our 0."""
    names = dict(_NAMES)
    for n in range(layers):
        names |= {f"encoder.layers.{n}.{ours}": f"encoder.blks.{n}.{theirs}" for ours, theirs in _LAYER_NAMES.items()}
    state = {
        f"{ours}.{k}": weights[f"{theirs}.{k}"] for ours, theirs in names.items() for k in ("weight", "bias") if f"{theirs}.{k}" in weights
    }
    state["encoder.position_embedding.weight"] = weights["encoder.pos_embedding"][0]
    for n in range(layers):
        for k in ("weight", "bias"):
            parts = [weights[f"encoder.blks.{n}.attention.W_{part}.{k}"] for part in "qkv"]
            state[f"encoder.layers.{n}.attention.qkv.{k}"] = torch.cat(parts)
    for k in ("weight", "bias"):
        state[f"next_sentence.classifier.{k}"] = state[f"next_sentence.classifier.{k}"].flip(0)
    return state


def test_outputs_agree_at_real_positions_and_real_masks() -> None:
    golden = load_file(GOLDEN)
    weights = {name.removeprefix("weights."): value for name, value in golden.items() if name.startswith("weights.")}
    model = BertForPretraining(EncoderShape(40, 2, 16, 2, 32, 0.2, 0.2, 20, "deck")).eval()
    model.load_state_dict(from_d2l(weights, 2))
    lengths, masks = golden["lengths"].tolist(), golden["masks"].tolist()

    def real(name: str, counts: list[int]) -> torch.Tensor:
        return torch.cat([row[:count] for row, count in zip(golden[name], counts, strict=True)])

    starts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
    masked = real("positions", masks) + torch.repeat_interleave(starts, golden["masks"])
    empty = torch.zeros(len(masked), dtype=torch.long)
    batch = Batch.of(
        real("tokens", lengths), real("segments", lengths), golden["lengths"].long(), masked, golden["masks"].long(), empty, empty[:3]
    )
    with torch.no_grad():
        encoded = model.encoder(batch.input_ids, batch.token_type_ids, batch.layout)
        mlm_logits, next_sentence_logits = model.logits(batch)
    torch.testing.assert_close(encoded, real("encoded", lengths), atol=1e-5, rtol=0)
    torch.testing.assert_close(mlm_logits, real("mlm_logits", masks), atol=1e-5, rtol=0)
    torch.testing.assert_close(next_sentence_logits.flip(1), golden["nsp_logits"], atol=1e-5, rtol=0)
