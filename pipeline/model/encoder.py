"""The deck's BERT encoder (Dive into Deep Learning, "Bidirectional Encoder Representations from Transformers").

In: real tokens of all rows one after another. Out: a vector for each. The decision that matters: nothing but
attention knows rows; every other layer works on the flat tokens, so that padding costs nothing there.

Legend: B rows, L the longest row's length, D hidden size, H heads, N real tokens of all rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder, under transformers' names."""

    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    hidden_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int = 2


@dataclass(frozen=True)
class Layout:
    """Where the flat tokens lie in rows.

    :param positions: (N), the position of each token in its row.
    :param slots: (N), the place of each token in a padded B x L grid.
    :param keys: (B, 1, 1, L), true where a row has a token.
    """

    positions: Tensor
    slots: Tensor
    keys: Tensor

    @classmethod
    def of(cls, offsets: Tensor, tokens: int) -> "Layout":
        """The layout of rows with these offsets (B + 1) and this many tokens in all."""
        lengths = offsets.diff()
        longest = max(int(lengths.max()), 1) if len(lengths) else 1
        rows = torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths, output_size=tokens)
        positions = torch.arange(tokens, device=offsets.device) - offsets[rows]
        # An empty row keeps one key, so that its softmax is finite; nobody reads its result.
        keys = torch.arange(longest, device=offsets.device) < lengths.clamp(min=1)[:, None]
        return cls(positions, rows * longest + positions, keys[:, None, None, :])


class SelfAttention(nn.Module):
    """Multi-head attention of each row over its own tokens (Vaswani et al. 2017, arXiv 1706.03762, section 3.2)."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.heads = shape.num_attention_heads
        self.dropout = shape.hidden_dropout_prob
        self.qkv = nn.Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """(N, D) -> (N, D)."""
        B, L = layout.keys.shape[0], layout.keys.shape[-1]
        qkv = self.qkv(x_ND)
        grid = qkv.new_zeros(B * L, qkv.shape[1]).index_copy(0, layout.slots, qkv)
        q, k, v = grid.view(B, L, 3, self.heads, x_ND.shape[1] // self.heads).permute(2, 0, 3, 1, 4)  # each (B, H, L, D / H)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=layout.keys, dropout_p=self.dropout if self.training else 0.0)
        flat = mixed.transpose(1, 2).reshape(B * L, x_ND.shape[1]).index_select(0, layout.slots)
        y: Tensor = self.out(flat)
        return y


class EncoderLayer(nn.Module):
    """Attention and a feed-forward layer, each with dropout, residual and norm after it (post-norm)."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape)
        self.attention_norm = nn.LayerNorm(shape.hidden_size)
        self.intermediate = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.output = nn.Linear(shape.intermediate_size, shape.hidden_size)
        self.output_norm = nn.LayerNorm(shape.hidden_size)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """(N, D) -> (N, D)."""
        x_ND = self.attention_norm(x_ND + self.dropout(self.attention(x_ND, layout)))
        fed_ND = self.output(F.relu(self.intermediate(x_ND)))
        y: Tensor = self.output_norm(x_ND + self.dropout(fed_ND))
        return y


class Encoder(nn.Module):
    """Token, segment and position embeddings, then the layers. No norm or dropout after the embeddings, as in the deck."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.token_type_embedding = nn.Embedding(shape.type_vocab_size, shape.hidden_size)
        self.position_embedding = nn.Embedding(shape.max_position_embeddings, shape.hidden_size)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.num_hidden_layers))

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, offsets: Tensor) -> Tensor:
        """Encode rows laid one after another.

        :param input_ids: (N). :param token_type_ids: (N). :param offsets: (B + 1), where each row begins and ends.
        :returns: (N, D).
        """
        layout = Layout.of(offsets, len(input_ids))
        segments, positions = self.token_type_embedding(token_type_ids), self.position_embedding(layout.positions)
        x_ND: Tensor = self.token_embedding(input_ids) + segments + positions
        for layer in self.layers:
            x_ND = layer(x_ND, layout)
        return x_ND
