"""The BERT encoder (Devlin et al. 2018, arXiv 1810.04805), as published or as the deck has it: see `architecture.py`.

In: real tokens of all rows one after another. Out: a vector for each, or for those that are read. The decision that
matters: nothing but attention knows rows; every other layer works on the flat tokens, so that padding costs nothing there.

Legend: B rows, L length, D hidden size, H heads, N real tokens of all rows, Q queries of a row, R tokens that are read
(all N, or in the last layer those that the caller reads).
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .architecture import ARCHITECTURES, Architecture
from .dropout import Dropout
from .layout import Layout, Reads


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder, under transformers' names."""

    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    architecture: str
    type_vocab_size: int = 2

    @property
    def design(self) -> Architecture:
        """What its architecture decides."""
        return ARCHITECTURES[self.architecture]

    def differences(self, wanted: "EncoderShape") -> str:
        """Each size that is not the wanted one, with both values, for a message; empty where weights fit. Dropout may differ."""
        has, asked = asdict(self), asdict(wanted)
        differing = [name for name in asked if has[name] != asked[name] and not name.endswith("dropout_prob")]
        return ", ".join(f"{name} {has[name]} (wanted {asked[name]})" for name in differing)


class SelfAttention(nn.Module):
    """Multi-head attention of each row over its own tokens (Vaswani et al. 2017, arXiv 1706.03762, section 3.2)."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.heads = shape.num_attention_heads
        self.qkv = nn.Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.dropout = Dropout(shape.attention_probs_dropout_prob)

    def forward(self, x_ND: Tensor, x_RD: Tensor, layout: Layout, reads: Reads | None = None) -> Tensor:
        """Queries of the tokens that are read, keys and values of all.

        :param x_RD: x_ND at the reads; without reads x_ND itself. :returns: (R, D).
        """
        D = x_ND.shape[1]
        weight_q, weight_kv = torch.split(self.qkv.weight, [D, 2 * D])
        bias_q, bias_kv = torch.split(self.qkv.bias, [D, 2 * D])
        q_RD, kv = F.linear(x_RD, weight_q, bias_q), F.linear(x_ND, weight_kv, bias_kv)
        if layout.slots is not None:
            grid = sum(rows * length for rows, length in layout.groups)
            kv = kv.new_zeros(grid, 2 * D).index_copy(0, layout.slots, kv)
            q_RD = q_RD if reads else q_RD.new_zeros(grid, D).index_copy(0, layout.slots, q_RD)
        widths = reads.widths if reads else [length for _, length in layout.groups]
        q_parts = torch.split(q_RD, [rows * width for (rows, _), width in zip(layout.groups, widths, strict=True)])
        kv_parts = torch.split(kv, [rows * length for rows, length in layout.groups])
        mixed_RD = torch.cat(
            [
                self._attend(q.view(rows, width, D), kv.view(rows, length, 2 * D), layout.keys)
                for q, kv, (rows, length), width in zip(q_parts, kv_parts, layout.groups, widths, strict=True)
            ]
        )
        if layout.slots is not None and reads is None:
            mixed_RD = mixed_RD.index_select(0, layout.slots)
        y_RD: Tensor = self.out(mixed_RD)
        return y_RD

    def _attend(self, q_BQD: Tensor, kv: Tensor, keys: Tensor | None) -> Tensor:
        """softmax(q k^T / sqrt(D / H)) v in each head: (B, Q, D), (B, L, 2D) -> (B * Q, D)."""
        (B, Q, D), L = q_BQD.shape, kv.shape[1]
        q = q_BQD.view(B, Q, self.heads, D // self.heads).transpose(1, 2)  # (B, H, Q, D / H); k and v are (B, H, L, D / H)
        k, v = kv.view(B, L, 2, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        rate = self.dropout.rate if self.training else 0.0
        if rate and q.device.type == "cpu":  # where torch has no fused kernel with dropout
            scores_BHQL = torch.matmul(q * (D // self.heads) ** -0.5, k.transpose(2, 3))
            if keys is not None:
                scores_BHQL = scores_BHQL.masked_fill(~keys, -torch.inf)
            mixed = torch.matmul(self.dropout(torch.softmax(scores_BHQL, -1, dtype=torch.float32)), v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keys, dropout_p=rate)
        return mixed.transpose(1, 2).reshape(B * Q, D)


class EncoderLayer(nn.Module):
    """Attention and a feed-forward layer, each with dropout, residual and norm after it (post-norm)."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape)
        self.attention_norm = shape.design.norm(shape.hidden_size)
        self.intermediate = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.output = nn.Linear(shape.intermediate_size, shape.hidden_size)
        self.output_norm = shape.design.norm(shape.hidden_size)
        self.activation = shape.design.activation
        self.dropout = Dropout(shape.hidden_dropout_prob)

    def forward(self, x_ND: Tensor, layout: Layout, reads: Reads | None = None) -> Tensor:
        """(N, D) -> (R, D)."""
        x_RD = x_ND.index_select(0, reads.tokens) if reads else x_ND
        x_RD = self.attention_norm(x_RD + self.dropout(self.attention(x_ND, x_RD, layout, reads)))
        fed_RD = self.output(self.activation(self.intermediate(x_RD)))
        y_RD: Tensor = self.output_norm(x_RD + self.dropout(fed_RD))
        return y_RD


class Encoder(nn.Module):
    """Token, segment and position embeddings, where the architecture has it their norm and dropout, then the layers."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.token_type_embedding = nn.Embedding(shape.type_vocab_size, shape.hidden_size)
        self.position_embedding = nn.Embedding(shape.max_position_embeddings, shape.hidden_size)
        normed = shape.design.normed_embeddings
        self.embedding_norm = shape.design.norm(shape.hidden_size) if normed else nn.Identity()
        self.dropout = Dropout(shape.hidden_dropout_prob if normed else 0.0)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.num_hidden_layers))
        shape.design.initialize(self)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, layout: Layout, reads: Reads | None = None) -> Tensor:
        """Encode rows laid one after another.

        :param input_ids: (N). :param token_type_ids: (N).
        :param reads: the tokens whose vectors are wanted, so that the last layer computes no others; None: all.
        :returns: (N, D), with reads (R, D).
        """
        segments, positions = self.token_type_embedding(token_type_ids), self.position_embedding(layout.positions)
        x_ND: Tensor = self.dropout(self.embedding_norm(self.token_embedding(input_ids) + segments + positions))
        *layers, last = self.layers
        for layer in layers:
            x_ND = layer(x_ND, layout)
        y_RD: Tensor = last(x_ND, layout, reads)
        return y_RD
