"""The heads of fine-tuning on top of the encoder (Devlin et al. 2018, arXiv 1810.04805, section 4).

In: rows one after another. Out: logits of each row's classes, or of each token as an answer's start and end. The decision
that matters: shapes and names are those that transformers' classes have, so that weights go there as they are; a classifier
starts from the pooler of next-sentence prediction.

Legend: B rows, L the longest row's length, D hidden size, N tokens of all rows, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dropout import Dropout
from .encoder import Encoder, EncoderShape
from .layout import Layout, Reads


@dataclass(frozen=True)
class Rows:
    """Rows one after another, without padding.

    :param input_ids: (N) int64. :param token_type_ids: (N) int64. :param layout: of the rows.
    :param first: reads of each row's first token. :param slots: (N), the place of each token in a B x L grid.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    layout: Layout
    first: Reads
    slots: Tensor
    size: int
    longest: int

    @classmethod
    def of(cls, input_ids: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]], padded: bool | None = None) -> "Rows":
        """Lay rows out, on the CPU; rows of one length are best neighbours.

        :param padded: see `Layout`.
        """
        lengths = torch.tensor([len(row) for row in input_ids])
        layout = Layout.of(lengths, padded)
        nothing = torch.zeros(0, dtype=torch.int64)
        first, _, _ = Reads.of(layout, lengths, nothing, torch.zeros_like(lengths))
        longest = int(lengths.max())
        slots = torch.arange(len(lengths)).repeat_interleave(lengths) * longest + layout.positions
        ids, kinds = (torch.tensor([value for row in rows for value in row]) for rows in (input_ids, token_type_ids))
        return cls(ids, kinds, layout, first, slots, len(lengths), longest)

    def to(self, device: torch.device) -> "Rows":
        """The same on a device."""

        def move(value: Tensor) -> Tensor:
            return value.to(device, non_blocking=True)

        ids, kinds, slots = (move(value) for value in (self.input_ids, self.token_type_ids, self.slots))
        layout, first = self.layout.map(move), self.first.map(move)
        return replace(self, input_ids=ids, token_type_ids=kinds, slots=slots, layout=layout, first=first)


class BertForClassification(nn.Module):
    """The first token's vector, pooled, to logits of K classes; transformers' BertForSequenceClassification."""

    def __init__(self, shape: EncoderShape, classes: int, dropout: float) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.pooler = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.dropout = Dropout(dropout)
        self.classifier = nn.Linear(shape.hidden_size, classes)
        for part in (self.pooler, self.classifier):
            shape.design.initialize(part)

    def forward(self, rows: Rows) -> Tensor:
        """(B, K), in fp32."""
        x_BD = self.encoder(rows.input_ids, rows.token_type_ids, rows.layout, rows.first)
        with torch.autocast(x_BD.device.type, enabled=False):
            logits_BK: Tensor = self.classifier(self.dropout(torch.tanh(self.pooler(x_BD.float()))))
        return logits_BK

    def loss(self, logits_BK: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy. :param labels: (B) int64."""
        return F.cross_entropy(logits_BK, labels)


class BertForQuestionAnswering(nn.Module):
    """Each token's vector to its logits as an answer's first and last token; transformers' class of that name."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.span = nn.Linear(shape.hidden_size, 2)
        shape.design.initialize(self.span)

    def forward(self, rows: Rows) -> Tensor:
        """(B, L, 2), in fp32; minus infinity where a row has no token."""
        x_ND = self.encoder(rows.input_ids, rows.token_type_ids, rows.layout)
        with torch.autocast(x_ND.device.type, enabled=False):
            logits_N2: Tensor = self.span(x_ND.float())
        grid = logits_N2.new_full((rows.size * rows.longest, 2), -torch.inf)
        return torch.index_copy(grid, 0, rows.slots, logits_N2).view(rows.size, rows.longest, 2)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of starts and ends. :param labels: (B, 2) int64, places of the first and last token."""
        return (F.cross_entropy(logits[..., 0], labels[:, 0]) + F.cross_entropy(logits[..., 1], labels[:, 1])) / 2
