"""Masks that are drawn while training, where the shards have none (Liu et al. 2019, arXiv 1907.11692, section 4.1).

In: a run. Out: the masks of some rows in an epoch. The decision that matters: they depend on (seed, epoch, row) alone, so
that a resumed run, another number of ranks and a second evaluation draw the same ones.
"""

import json
from dataclasses import dataclass

import numpy as np

from ..errors import DamagedOutputError
from ..masked_lm import Masks, dynamic_masks
from ..ragged import I64
from ..settings import ShardSettings
from ..shards import IntArray
from ..storage import Store, open_output, verify_digests
from ..tokens import TOKENIZER, TokenTable
from .run import RunSettings


@dataclass(frozen=True)
class DynamicMasking:
    """How masks are drawn.

    :param table: which tokens are special, and which may replace others.
    """

    settings: ShardSettings
    table: TokenTable

    def draw(self, input_ids: IntArray, offsets: IntArray, rows: IntArray, epoch: int) -> Masks:
        """Mask rows that lie one after another: tokens [N], offsets [R + 1], the rows' numbers [R]."""
        ends: I64 = offsets.astype(np.int64)
        return dynamic_masks(input_ids.astype(np.int32), ends, rows.astype(np.int64), self.settings, self.table, epoch)


def read_table(run: RunSettings) -> TokenTable:
    """The tokens of the run's vocabulary.

    :raises DamagedOutputError: its file is not the one that was published, or not a tokenizer's.
    """
    output = open_output(run.vocabulary)
    verify_digests(output)
    try:
        return TokenTable.read(json.loads(Store(run.store).read(output.file(TOKENIZER)) or b"{}"))
    except ValueError as error:
        raise DamagedOutputError(f"{output.file(TOKENIZER)}: not a readable tokenizer ({error}); run the flow again") from error
