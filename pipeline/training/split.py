"""The shards of a split, of which a window at a time is in memory.

In: addresses of published buckets. Out: how many rows each has, by its manifest, and the examples of any of them. The
decision that matters: bytes are compared with the manifest's digest whenever they are read, from the store or from what
this machine keeps of it, so that no step ever takes a damaged row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ..cache import Cache
from ..errors import DamagedOutputError, TrainingError
from ..ragged import offsets_of, spans
from ..shards import SHARD, Examples, IntArray, concatenate, read_shard
from ..storage import MANIFEST, Output, Store, open_output, read_verified
from .distributed import World
from .order import windows_of
from .run import RunSettings

_CACHE = "cache"  # beside the work folders of runs
_GIGABYTE = 1_000_000_000


@dataclass(frozen=True)
class LoadedWindow:
    """Examples in memory.

    :param numbers: [R], of their rows among those of the whole split, which drawn masks depend on.
    """

    examples: Examples
    numbers: IntArray

    @classmethod
    def whole(cls, examples: Examples) -> "LoadedWindow":
        """All rows of a split."""
        return cls(examples, np.arange(len(examples)))


class Split:
    """Published shards of one split, in the order of their buckets. One of few enough rows is read once and stays.

    :raises DamagedOutputError: names the bucket that is not whole.
    """

    def __init__(self, addresses: Sequence[str], run: RunSettings, world: World, cache: Cache | None = None) -> None:
        self._addresses, self._vocabulary_size, self._world = list(addresses), run.vocabulary_size, world
        self._most_rows, self._cache = run.training.shuffle_buffer_rows, cache
        self._outputs: dict[int, Output] = {}
        self._whole: LoadedWindow | None = None
        self.rows: list[int] = self._shared(len(self._addresses), self._own_rows).tolist()
        self._starts = offsets_of(np.asarray(self.rows, np.int64))
        self._stays = len(self) <= self._most_rows
        self._counted: dict[int, Examples] = {}  # of a split that stays, so that nothing is read twice

    def __len__(self) -> int:
        """Rows of all buckets."""
        return sum(self.rows)

    def count(self, length: int, of: Callable[[LoadedWindow], IntArray]) -> IntArray:
        """The sum over all buckets of some counts [length], of which each rank takes its share of the buckets.

        :raises DamagedOutputError: names the shard. :raises TrainingError: a shard was made with another vocabulary.
        """

        def counted(bucket: int) -> IntArray:
            examples = self._read(bucket)
            if self._stays:
                self._counted[bucket] = examples
            return of(LoadedWindow(examples, self._numbers([bucket])))

        return self._shared(length, counted)

    def load(self, buckets: Sequence[int]) -> LoadedWindow:
        """The rows of some buckets, in the order given.

        :raises DamagedOutputError: names the shard.
        """
        if self._stays and self._whole:
            return self._whole
        loaded = LoadedWindow(concatenate(map(self._counted_or_read, buckets)), self._numbers(buckets))
        if self._stays:
            self._whole = loaded
        return loaded

    def windows(self) -> Iterator[LoadedWindow]:
        """All rows, in their order, a window at a time, on all ranks at once."""
        for buckets in windows_of(self.rows, self._most_rows):
            yield self._world.together(partial(self.load, buckets))

    def _shared(self, length: int, of: Callable[[int], IntArray]) -> IntArray:
        """The sum over all buckets of some counts [length], of which each rank takes its share of the buckets."""
        world = self._world

        def own() -> torch.Tensor:
            total = np.zeros(length, np.int64)
            for bucket in range(world.rank, len(self._addresses), world.size):
                total += of(bucket)
            return torch.from_numpy(total)

        counts: IntArray = world.sum(world.together(own).to(world.device)).cpu().numpy()
        return counts

    def _numbers(self, buckets: Sequence[int]) -> IntArray:
        """The numbers of the rows of some buckets."""
        return spans(self._starts[list(buckets)], np.asarray([self.rows[bucket] for bucket in buckets], np.int64))

    def _own_rows(self, bucket: int) -> IntArray:
        """Its rows at its place, 0 elsewhere [buckets]."""
        output = self._output(bucket)
        try:
            rows = int(output.facts["counts"]["rows"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedOutputError(f"{output.address}/{MANIFEST}: it does not say how many rows; the flow makes it again") from error
        return np.where(np.arange(len(self._addresses)) == bucket, rows, 0)

    def _output(self, bucket: int) -> Output:
        if bucket not in self._outputs:
            self._outputs[bucket] = open_output(self._addresses[bucket])
        return self._outputs[bucket]

    def _counted_or_read(self, bucket: int) -> Examples:
        return self._counted.pop(bucket) if bucket in self._counted else self._read(bucket)

    def _read(self, bucket: int) -> Examples:
        output = self._output(bucket)
        sha256 = next((entry["sha256"] for entry in output.manifest["files"] if entry["name"] == SHARD), "")
        data = self._cache.read(sha256, lambda: read_verified(output, SHARD)) if self._cache else read_verified(output, SHARD)
        address = output.file(SHARD)
        examples = read_shard(data, address)
        if len(examples) != self.rows[bucket]:
            raise DamagedOutputError(f"{address}: {len(examples)} rows, its manifest says {self.rows[bucket]}; the flow makes it again")
        if len(examples.input_ids) and int(examples.input_ids.max()) >= self._vocabulary_size:
            raise TrainingError(f"{address}: got token {examples.input_ids.max()}, wanted tokens below {self._vocabulary_size}")
        return examples


def cache_of(run: RunSettings) -> Cache | None:
    """What this machine keeps of a store elsewhere; None where the store is its own."""
    gigabytes = run.training.cache_gigabytes
    if Store(run.store).local_root or not gigabytes:
        return None
    return Cache(Path(run.work).parent / _CACHE, int(gigabytes * _GIGABYTE))
