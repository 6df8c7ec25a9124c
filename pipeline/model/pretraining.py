"""The two pretraining tasks on top of the encoder, and their loss (Devlin et al. 2018, arXiv 1810.04805, section 3.1).

In: a batch. Out: losses as sums and counts, so that accumulation, ranks and a short last batch average over tokens.
The decision that matters: logits over the vocabulary exist at masked positions only.

Legend: B rows, D hidden size, N real tokens, M masked positions of all rows, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cross_entropy import linear_cross_entropy_sum
from .encoder import Encoder, EncoderShape
from .layout import Layout, Reads

NO_PAIR = -100  # what torch's cross-entropy leaves out


@dataclass(frozen=True)
class Batch:
    """Rows one after another, without padding, and what the heads read of them: R vectors.

    :param input_ids: (N) int64. :param token_type_ids: (N) int64. :param layout: of the rows. :param reads: of the rows.
    :param masked: (M) int64, masked tokens among the R that are read. :param labels: (M) int64.
    :param first: (B) int64, each row's first token among the R.
    :param next_sentence_label: (B) int64; 0: B follows A, 1: B is random (or the other order), -100: the row has no pair.
    :param pairs: how many rows have one, counted on the CPU, so that nobody asks the device.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    layout: Layout
    reads: Reads
    masked: Tensor
    labels: Tensor
    first: Tensor
    next_sentence_label: Tensor
    pairs: int

    @classmethod
    def of(
        cls,
        input_ids: Tensor,
        token_type_ids: Tensor,
        lengths: Tensor,
        masked: Tensor,
        mask_counts: Tensor,
        labels: Tensor,
        next_sentence_label: Tensor,
        *,
        padded: bool | None = None,
    ) -> "Batch":
        """Lay rows out, on the CPU; all int64.

        :param lengths: (B), tokens of each row. :param masked: (M), masked tokens among the N, row by row.
        :param mask_counts: (B), masks of each row. :param padded: see `Layout`.
        """
        layout = Layout.of(lengths, padded)
        reads, masked, first = Reads.of(layout, lengths, masked, mask_counts)
        pairs = int((next_sentence_label != NO_PAIR).sum())
        return cls(input_ids, token_type_ids, layout, reads, masked, labels, first, next_sentence_label, pairs)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return self._map(lambda value: value.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The same batch in memory from which a GPU copies by itself."""
        return self._map(Tensor.pin_memory)

    def _map(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        parts: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        tensors: dict[str, Any] = {name: move(part) for name, part in parts.items() if isinstance(part, Tensor)}
        return replace(self, layout=self.layout.map(move), reads=self.reads.map(move), **tensors)


@dataclass(frozen=True)
class Losses:
    """Cross-entropies of a batch, summed in nats, with what they are to be divided by; all are scalars."""

    mlm_sum: Tensor
    mlm_count: Tensor
    next_sentence_sum: Tensor
    next_sentence_count: Tensor

    def mean(self) -> tuple[Tensor, Tensor]:
        """The mean masked-language-model and next-sentence losses; a task without an example counts 0."""
        return self.mlm_sum / self.mlm_count.clamp(min=1), self.next_sentence_sum / self.next_sentence_count.clamp(min=1)


class TiedDecoder(nn.Module):
    """Logits by the token embeddings, with a bias of its own (Press and Wolf 2016, arXiv 1608.05859)."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._embedding = (embedding,)  # in a tuple it is no submodule, so that its weight is the encoder's alone
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    @property
    def weight(self) -> Tensor:
        """(V, D)."""
        return self._embedding[0].weight

    def forward(self, x_MD: Tensor) -> Tensor:
        """(M, D) -> (M, V)."""
        return F.linear(x_MD, self.weight, self.bias)


class MaskedLMHead(nn.Module):
    """Vectors at masked positions -> logits over the vocabulary.

    :param embedding: the token embedding, which the decoder is tied to where the architecture has it so.
    """

    def __init__(self, shape: EncoderShape, embedding: nn.Embedding) -> None:
        super().__init__()
        self.transform = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.norm = shape.design.norm(shape.hidden_size)
        tied = shape.design.tie_word_embeddings
        self.decoder = TiedDecoder(embedding) if tied else nn.Linear(shape.hidden_size, shape.vocab_size)
        self.activation = shape.design.activation
        shape.design.initialize(self)

    def forward(self, x_MD: Tensor) -> Tensor:
        """(M, D) -> (M, V)."""
        logits_MV: Tensor = self.decoder(self._transformed(x_MD))
        return logits_MV

    def loss_sum(self, x_MD: Tensor, labels: Tensor) -> Tensor:
        """The summed cross-entropy of `forward`'s logits, never all of them at once."""
        return linear_cross_entropy_sum(self._transformed(x_MD), self.decoder.weight, self.decoder.bias, labels)

    def _transformed(self, x_MD: Tensor) -> Tensor:
        y_MD: Tensor = self.norm(self.activation(self.transform(x_MD)).float())
        return y_MD


class NextSentenceHead(nn.Module):
    """Vectors of `<cls>` -> logits of (B follows A, B is random)."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.pooler = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.classifier = nn.Linear(shape.hidden_size, 2)
        shape.design.initialize(self)

    def forward(self, x_BD: Tensor) -> Tensor:
        """(B, D) -> (B, 2)."""
        logits_B2: Tensor = self.classifier(torch.tanh(self.pooler(x_BD)))
        return logits_B2


class BertForPretraining(nn.Module):
    """Encoder and both heads."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.masked_lm = MaskedLMHead(shape, self.encoder.token_embedding)
        self.next_sentence = NextSentenceHead(shape)

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits at the masked positions (M, V) and of each row's pair (B, 2).

        The heads' products are fp32 whatever autocast says: of two logits that bf16 makes equal the more frequent word's
        would be taken for the larger.
        """
        masked_MD, first_BD = self._read(batch)
        with torch.autocast(masked_MD.device.type, enabled=False):
            return self.masked_lm(masked_MD.float()), self.next_sentence(first_BD.float())

    def forward(self, batch: Batch) -> Losses:
        """The losses of both tasks."""
        masked_MD, first_BD = self._read(batch)
        return losses(self.masked_lm.loss_sum(masked_MD, batch.labels), self.next_sentence(first_BD).float(), batch)

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The vectors of the masked positions (M, D) and of each row's first token (B, D)."""
        x_RD = self.encoder(batch.input_ids, batch.token_type_ids, batch.layout, batch.reads)
        return x_RD.index_select(0, batch.masked), x_RD.index_select(0, batch.first)


def losses(mlm_sum: Tensor, next_sentence_logits_B2: Tensor, batch: Batch) -> Losses:
    """Both tasks' cross-entropies, each masked position and each pair weighing the same."""
    count = batch.labels.new_full  # by the device itself, so that nothing waits for a copy
    return Losses(
        mlm_sum,
        count((), len(batch.labels)),
        F.cross_entropy(next_sentence_logits_B2, batch.next_sentence_label, ignore_index=NO_PAIR, reduction="sum"),
        count((), batch.pairs),
    )
