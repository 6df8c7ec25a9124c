"""WikiText-103, whose digests nobody knows beforehand: the first download's are what later ones are held to."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.names import model_name
from pipeline.data.corpus import fetch_corpus
from pipeline.data.seen import SEEN
from pipeline.data.wikitext import WIKITEXT103
from pipeline.errors import CorpusError, DownloadError
from pipeline.storage import Store, digest
from tests.pipeline.data.corpora import fails, text_of, write_folder, write_zip
from tests.pipeline.data.loopback import dead_url, serve, status, stopping, whole
from tests.pipeline.data.test_mirrors import TEXTS, TOKENS, serve_all

OTHER = {name: text.replace("crane", "heron") for name, text in TOKENS.items()}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serve() as server:
        yield server


@pytest.fixture
def use(monkeypatch):
    return lambda *addresses: monkeypatch.setenv("BERT_WIKITEXT103_MIRRORS", ",".join(addresses))


def zipped(folder: Path, files: dict[str, str]) -> bytes:
    return write_zip(folder / "made.zip", {f"wikitext-103/{name}": text for name, text in files.items()}).read_bytes()


def parquet(text: str, part: int, parts: int) -> bytes:
    lines = [line.strip() for line in text.splitlines()]
    size = -(-len(lines) // parts)
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": lines[part * size : (part + 1) * size]}), buffer)
    return buffer.getvalue()


def parquet_set(parts: int) -> dict[str, bytes]:
    """As the Hugging Face Hub has it: train in two parts, valid and test in one."""
    files = {f"train-{part:05d}-of-{parts:05d}.parquet": parquet(TEXTS["train"], part, parts) for part in range(parts)}
    return files | {
        f"{name}-00000-of-00001.parquet": parquet(TEXTS[split], 0, 1) for split, name in (("valid", "validation"), ("test", "test"))
    }


def test_each_form_of_mirror(server, use, tmp_path):
    server.answers["/wikitext-103-v1.zip"] = whole(zipped(tmp_path, TOKENS))
    for parts in (1, 2):
        serve_all(server, f"/of-{parts}", parquet_set(parts))
    keys = set()
    for path in ("/wikitext-103-v1.zip", "/of-1", "/of-2"):
        use(server.url(path))
        corpus = fetch_corpus(Store(str(tmp_path / path.strip("/"))), "wikitext-103")
        assert (corpus.name, corpus.source) == ("wikitext-103", server.url(path))
        assert model_name("tiny", corpus.name) == "bert-tiny-wikitext-103"
        assert text_of(corpus, "train").decode() == TEXTS["train"]
        keys.add(corpus.output.key)
    assert len(keys) == 1


def test_a_set_that_misses_a_part_is_no_corpus(server, use, store):
    files = parquet_set(2)
    del files["train-00001-of-00002.parquet"]
    serve_all(server, "/half", files)
    use(server.url("/half"))
    with pytest.raises(DownloadError, match=r"/half/train-00001-of-00002.parquet: answered 404"):
        fetch_corpus(store, "wikitext-103")


def test_the_first_download_is_what_later_ones_are_held_to(server, use, store, tmp_path):
    server.answers["/good.zip"] = whole(zipped(tmp_path, TOKENS))
    server.answers["/other.zip"] = whole(zipped(tmp_path, OTHER))
    use(server.url("/good.zip"))
    first = fetch_corpus(store, "wikitext-103")
    assert Path(store.root, SEEN, "wikitext-103.json").exists()
    use(dead_url("/good.zip"))
    found = fetch_corpus(store, "wikitext-103")
    assert (found.output.key, found.output.found, found.source) == (first.output.key, True, first.source)
    store.delete(first.output.address)
    use(server.url("/other.zip"))
    wanted = f"wanted WikiText-103's {digest(TEXTS['train'].encode())} .*recorded in .*seen/wikitext-103.json; delete that"
    with pytest.raises(DownloadError, match=wanted):
        fetch_corpus(store, "wikitext-103")
    use(server.url("/other.zip"), server.url("/good.zip"))
    assert fetch_corpus(store, "wikitext-103").output.key == first.output.key


def test_what_claims_the_name_is_held_to_it(server, use, store, tmp_path):
    server.answers["/good.zip"] = whole(zipped(tmp_path, TOKENS))
    use(server.url("/good.zip"))
    first = fetch_corpus(store, "wikitext-103")
    with pytest.raises(CorpusError, match=r"wanted WikiText-103's .*rename the folder"):
        fetch_corpus(store, str(write_folder(tmp_path / "a" / "wikitext-103-v1", OTHER)))
    for name in ("wikitext-103", "mine"):
        own = fetch_corpus(store, str(write_folder(tmp_path / name, TOKENS)))
        assert (own.name, own.output.key) == ("wikitext-103", first.output.key)


def test_a_copy_of_ones_own_has_all_three_splits_and_is_no_measure(use, store, tmp_path, server):
    fails(
        store, write_folder(tmp_path / "a" / "wikitext-103", {"train.txt": TEXTS["train"]}), "no valid split beside, wanted WikiText-103's"
    )
    assert fetch_corpus(store, str(write_folder(tmp_path / "wikitext-103", OTHER))).name == "wikitext-103"
    server.answers["/good.zip"] = whole(zipped(tmp_path, TOKENS))
    use(server.url("/good.zip"))
    assert text_of(fetch_corpus(store, "wikitext-103"), "train").decode() == TEXTS["train"]


@pytest.mark.parametrize("record", [b"", b"{", b"[1]", b'{"train": "0"}'])
def test_a_record_of_no_use_is_made_again(server, use, store, tmp_path, record):
    path = Path(store.root, SEEN, "wikitext-103.json")
    path.parent.mkdir(parents=True)
    path.write_bytes(record)
    server.answers["/good.zip"] = whole(zipped(tmp_path, TOKENS))
    use(server.url("/good.zip"))
    assert fetch_corpus(store, "wikitext-103").name == "wikitext-103"
    assert digest(TEXTS["train"].encode()) in path.read_text()


def test_after_broken_mirrors_the_error_names_each(server, use, store, tmp_path):
    data = zipped(tmp_path, TOKENS)
    server.answers |= {"/403.zip": status(403), "/half.zip": stopping(data, times=99, ranges=False), "/login.zip": whole(b"<html>")}
    broken = {
        dead_url("/x.zip"): "no answer",
        server.url("/403.zip"): "answered 403",
        server.url("/half.zip"): f"stopped after {len(data) // 2} of {len(data)} bytes",
        server.url("/login.zip"): "not a readable zip",
    }
    use(*broken)
    with pytest.raises(DownloadError, match=r"^WikiText-103: none of 4 mirrors gave it") as caught:
        fetch_corpus(store, "wikitext-103", allow_sample=True)
    for mirror, answer in broken.items():
        assert any(mirror in line and answer in line for line in str(caught.value).splitlines())
    assert [path for path in Path(store.root).rglob("*") if path.is_file()] == []


def test_its_public_mirrors_are_those_of_wikitext_2() -> None:
    assert WIKITEXT103.mirrors() == [
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
        "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/wikitext-103-v1",
    ]
