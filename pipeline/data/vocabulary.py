"""The vocabulary stage: a corpus, or a tokenizer that is brought along -> published `tokenizer.json`.

In: the corpus's training text and settings. Out: a file that any `tokenizers` user can load. The decision that matters: a
vocabulary is made from the training split alone, and a file that is brought along is known by its contents, not its address.
"""

import heapq
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from ..addresses import without_credentials
from ..errors import CorpusError, PipelineError, StoreUnavailableError
from ..files import read_file
from ..settings import Preset, TextSettings
from ..storage import Output, Recipe, Store, digest
from ..tokens import TOKENIZER, WORD_LEVEL_TOKENS, TokenTable
from .documents import DocumentReader, digests_of, numbers_of, split_label, wanted_text
from .parallel import map_in_threads
from .sentences import split_sentences
from .tokenizer import Vocabulary, split_words
from .wordpiece import train_wordpiece

FORMAT = 2
STAGE = "vocabulary"
_RARE = "\u2603 \U0001d518 \ufffd"  # characters that hardly a vocabulary has


def build_vocabulary(store: Store, corpus: Output, preset: Preset) -> Output:
    """Make the vocabulary that the settings ask for from the training split, and publish it.

    :raises CorpusError: the text gives no token. :raises PipelineError: a brought tokenizer cannot be used.
    """
    settings, text = preset.vocabulary, preset.text
    if settings.kind == "file":
        return _bring_tokenizer(store, settings.file, whole_word=preset.shards.whole_word)
    reader = DocumentReader.of(corpus, "train", text)

    def build(folder: Path) -> dict[str, Any]:
        if settings.kind == "words":
            vocabulary, facts = _count(reader, corpus, preset)
        else:
            share = min(1.0, settings.megabytes * 1e6 / max(1, reader.size()))
            vocabulary = Vocabulary(train_wordpiece(lambda: _texts(reader, share), settings.size, lowercase=settings.lowercase))
            facts = {"share_of_text": share}
            if not len(vocabulary.table.words):
                raise CorpusError(f"{split_label(corpus, 'train')}: {_why_no_word(reader, settings.megabytes, share, text)}")
        (folder / TOKENIZER).write_text(vocabulary.tokenizer.to_str(), "utf-8")
        return {"size": len(vocabulary), **facts}

    return store.make(_recipe(preset, corpus.key), build, verify=True)


def kept_vocabulary(store: Store, key: str, preset: Preset, corpus_key: str | None = None) -> Output:
    """The vocabulary of an earlier corpus, kept for another.

    :param corpus_key: where the vocabulary is gone, it is made again from this corpus, if that is what it was made from.
    :raises CorpusError: it is not in the store, or was made with other settings.
    """
    output = store.whole(STAGE, key, verify=True)
    if output is None and corpus_key and _recipe(preset, corpus_key).key == key and (corpus := store.whole("corpus", corpus_key)):
        return build_vocabulary(store, corpus, preset)
    if output is None:
        raise CorpusError(f"vocabulary_from: vocabulary {key} is not whole in {store.root}; run where it was made, or have one made anew")
    asked = _recipe(preset, "").settings
    if output.manifest["settings"] != asked:
        found = f"was made with {output.manifest['settings']}, these settings are {asked}"
        raise CorpusError(f"vocabulary_from: vocabulary {key} {found}; give the same settings, or have one made anew")
    return output


def _recipe(preset: Preset, corpus_key: str) -> Recipe:
    return Recipe(STAGE, FORMAT, preset.vocabulary.for_key() | _heeded(preset.vocabulary.kind, preset.text), {"corpus": corpus_key})


def _heeded(kind: str, text: TextSettings) -> dict[str, Any]:
    """What matters of the text's settings: the deck's rule takes the stops between sentences away."""
    return {"documents": text.documents} | ({"deck_sentences": text.sentences == "deck"} if kind == "words" else {})


def _texts(reader: DocumentReader, share: float) -> Iterator[str]:
    """The documents, or a share of them, picked by their digests."""

    def pick(block: bytes) -> list[str]:
        documents = reader.find(block)
        if share < 1:
            documents = documents.filter(pa.array(numbers_of(digests_of(documents))[:, 1] < np.uint64(share * 2**64)))
        picked: list[str] = documents.to_pylist()
        return picked

    for documents in map_in_threads(pick, reader.blocks()):
        yield from documents


def _why_no_word(reader: DocumentReader, megabytes: int, share: float, text: TextSettings) -> str:
    if share == 1:
        return f"no document has a word; {wanted_text(text)}"
    size = math.ceil(reader.size() / 1e6)
    return f"none of few, long documents falls into vocabulary.megabytes, {megabytes} of {size}; raise it, at most to {size}"


def _bring_tokenizer(store: Store, address: str, *, whole_word: bool) -> Output:
    """Check a `tokenizer.json` and publish it.

    :raises PipelineError: it cannot be read, or lacks what pretraining needs.
    """
    shown = f"vocabulary.file: {without_credentials(address)}"
    try:
        contents = read_file(address)
        vocabulary = Vocabulary(Tokenizer.from_str(contents.decode()))
        TokenTable.read(json.loads(contents))  # of tokens that share an id the library forgets all but one
        vocabulary.encode(pa.array([_RARE], pa.large_string()))  # raises where the model's unknown token is none of its tokens
    except StoreUnavailableError:
        raise
    except Exception as error:  # `tokenizers` and fsspec's file systems raise what they like
        raise PipelineError(f"{shown}: not a tokenizer that can be used ({error}); wanted a tokenizer.json of `tokenizers`") from error
    if not len(vocabulary.table.words):
        raise PipelineError(f"{shown}: has special tokens alone; wanted tokens of words")
    kind = json.loads(contents)["model"].get("type")
    if whole_word and kind not in ("WordPiece", "WordLevel"):
        raise PipelineError(
            f"{shown}: the tokens of {kind} do not say which go on with a word; wanted WordPiece, or shards.whole_word false"
        )
    _check_template(vocabulary, shown)

    def build(folder: Path) -> dict[str, Any]:
        (folder / TOKENIZER).write_bytes(contents)
        return {"size": len(vocabulary)}

    recipe = Recipe(STAGE, FORMAT, {"kind": "file"}, {"tokenizer": digest(contents)})
    return store.make(recipe, build, recorded={"source": without_credentials(address)}, verify=True)


def _check_template(vocabulary: Vocabulary, shown: str) -> None:
    """See that the tokenizer puts special tokens where pretraining puts them."""
    table, word = vocabulary.table, vocabulary.table.tokens[vocabulary.table.words[-1]]
    row = vocabulary.tokenizer.encode(word, word)
    inner = len(vocabulary.tokenizer.encode(word, add_special_tokens=False))
    places = [0, inner + 1, 2 * inner + 2]
    wanted = [table.cls_id, table.sep_id, table.sep_id]
    segments = [0] * (inner + 2) + [1] * (inner + 1)
    if len(row) != len(segments) or [row.ids[place] for place in places] != wanted or row.type_ids != segments:
        form = "{cls_token} A {sep_token} B {sep_token}".format(**table.special_tokens)
        raise PipelineError(f"{shown}: makes {' '.join(row.tokens)} of a pair, wanted {form} with segments 0 and 1; set its post_processor")


def _count(reader: DocumentReader, corpus: Output, preset: Preset) -> tuple[Vocabulary, dict[str, Any]]:
    """Count words.

    :raises CorpusError: no word is seen often enough.
    """
    min_count, text = preset.vocabulary.min_count, preset.text
    counts, tokens = _count_words(reader, text)
    vocabulary = Vocabulary.of_words(counts, min_count)
    if not len(vocabulary.table.words):
        raise CorpusError(f"{split_label(corpus, 'train')}: {_why_empty(counts, min_count, text)}")
    known = sum(counts[word] for word in vocabulary.table.tokens if word in counts and word != WORD_LEVEL_TOKENS["unk_token"])
    return vocabulary, {"tokens": tokens, "distinct_words": len(counts), "unknown_tokens": tokens - known}


def _why_empty(counts: Mapping[str, int], min_count: int, text: TextSettings) -> str:
    if not counts:
        return f"no document has a word; {wanted_text(text)}"
    most = heapq.nlargest(3, counts.items(), key=lambda entry: (entry[1], entry[0]))
    seen = ", ".join(f"{word!r} {count} times" for word, count in most)
    return f"no word is seen {min_count} times (most frequent: {seen}); lower vocabulary.min_count or bring more text"


def _count_words(reader: DocumentReader, text: TextSettings) -> tuple[dict[str, int], int]:
    """How often each word is seen, and how many words there are in all."""

    def count(block: bytes) -> tuple[int, dict[str, int]]:
        documents = reader.find(block)
        words, _ = split_words(split_sentences(documents, text).text if text.sentences == "deck" else documents)
        values, seen = pc.value_counts(words).flatten()
        return len(words), dict(zip(values.to_pylist(), seen.to_pylist(), strict=True))

    counts: dict[str, int] = {}
    tokens = 0
    for words, found in map_in_threads(count, reader.blocks()):
        tokens += words
        for word, seen in found.items():
            counts[word] = counts.get(word, 0) + seen
    return counts, tokens
