"""Own corpora: every form, one key; names; what is held out."""

from pathlib import Path

import fsspec
import pytest

from pipeline.data import wikitext
from pipeline.data.corpus import fetch_corpus
from pipeline.errors import CorpusError
from pipeline.storage import MANIFEST, digest
from tests.pipeline.data.corpora import TEST, TRAIN, VALID, fails, text_of, write_folder, write_parquet, write_zip
from tests.pipeline.data.loopback import serve, status, whole


def in_every_form(folder: Path) -> dict[str, str]:
    tokens = {"wiki.train.tokens": TRAIN, "wiki.valid.tokens": VALID, "wiki.test.tokens": TEST}
    texts = {"train.txt": TRAIN, "valid.txt": VALID, "test.txt": TEST}
    write_folder(folder / "tokens", tokens)
    write_folder(folder / "texts", texts | {"README": "not ours"})
    for name, rows in (
        ("stripped", lambda text: [line.strip() for line in text.splitlines()]),
        ("raw", lambda text: text.splitlines(True)),
    ):
        (folder / name).mkdir()
        for split, text in (("train", TRAIN), ("validation", VALID), ("test", TEST)):
            write_parquet(folder / name / f"{split}-00000-of-00001.parquet", rows(text))
    write_zip(folder / "flat.zip", tokens)
    write_zip(folder / "deep.zip", {f"a/b/{name}": text for name, text in texts.items()})
    write_zip(folder / "parquet.zip", {f"data/{path.name}": path.read_bytes() for path in (folder / "raw").iterdir()})
    memory = fsspec.filesystem("memory")
    for name, text in tokens.items():
        memory.pipe_file(f"/corpora/mine/{name}", text.encode())
    memory.pipe_file("/corpora/mine.zip", (folder / "flat.zip").read_bytes())
    local = {name: str(folder / name) for name in ("tokens", "texts", "stripped", "raw", "flat.zip", "deep.zip", "parquet.zip")}
    return local | {"remote folder": "memory://corpora/mine", "remote zip": "memory://corpora/mine.zip"}


def test_one_text_in_every_form_is_one_corpus(store, tmp_path):
    found = {name: fetch_corpus(store, address) for name, address in in_every_form(tmp_path).items()}
    assert {corpus.output.key for corpus in found.values()} == {found["tokens"].output.key}
    assert [text_of(found["raw"], split).decode() for split in ("train", "valid", "test")] == [TRAIN, VALID, TEST]
    assert [found[name].name for name in ("tokens", "flat.zip", "remote zip")] == ["tokens", "flat", "mine"]
    facts = found["tokens"].output.facts
    assert facts["train"] == {"bytes": len(TRAIN.encode()), "lines": 5, "paragraphs": 3, "sha256": digest(TRAIN.encode())}
    assert facts["valid_held_out"] is False


def test_over_http_as_zip_and_below_a_base_address(store, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    forms = in_every_form(tmp_path)
    with serve() as server:
        server.answers["/a/My%20Text.zip"] = whole(Path(forms["flat.zip"]).read_bytes())
        for name in ("tokens", "texts", "raw"):
            for path in Path(forms[name]).iterdir():
                server.answers[f"/{name}/{path.name}"] = whole(path.read_bytes())
        zipped = fetch_corpus(store, server.url("/a/My Text.zip?signature=secret").replace("//", "//me:secret@"))
        bases = [fetch_corpus(store, server.url(f"/{name}/")) for name in ("tokens", "texts", "raw")]
        server.answers["/texts/valid.txt"] = status(403)
        with pytest.raises(CorpusError, match=r"/texts/valid.txt: answered 403"):
            fetch_corpus(store, server.url("/texts"))
        with pytest.raises(CorpusError, match=r"/none: no train split there; it answered 404 for wiki.train.tokens, 404 for train.txt"):
            fetch_corpus(store, server.url("/none"))
    assert {zipped.output.key, *(corpus.output.key for corpus in bases)} == {zipped.output.key}
    assert zipped.name == "my-text"
    assert zipped.source.endswith("/a/My Text.zip")
    assert "secret" not in zipped.source + zipped.note + str(zipped.output.manifest)


def test_several_parquet_files_of_a_split_are_one_text_in_order(store, tmp_path):
    (tmp_path / "mine").mkdir()
    write_parquet(tmp_path / "mine" / "train-00001-of-00002.parquet", ["c . d .", None])
    write_parquet(tmp_path / "mine" / "train-00000-of-00002.parquet", ["a . b .", "", "one . \n two ."])
    write_parquet(tmp_path / "mine" / "validation-00000-of-00001.parquet", ["e . f ."])
    corpus = fetch_corpus(store, str(tmp_path / "mine"))
    assert text_of(corpus, "train") == b"a . b .\n\none .\ntwo .\n\nc . d .\n"
    write_parquet(tmp_path / "mine" / "train-00000-of-00002.parquet", [" = T = ", "", "one . \n two ."])
    assert text_of(fetch_corpus(store, str(tmp_path / "mine")), "train") == b" = T = \n \n one . \n two . \n c . d . \n \n"


def test_crlf_and_a_mark_change_nothing(store, tmp_path):
    plain = fetch_corpus(store, str(write_folder(tmp_path / "a", {"train.txt": TRAIN, "valid.txt": VALID})))
    texts = {"train.txt": "\ufeff" + TRAIN.replace("\n", "\r\n"), "valid.txt": VALID.rstrip("\n")}
    assert fetch_corpus(store, str(write_folder(tmp_path / "b", texts))).output.key == plain.output.key


@pytest.mark.parametrize(("between", "by"), [("\n\n", "document"), ("\n", "paragraph")])
def test_without_valid_one_in_ten_is_held_out(store, tmp_path, between, by):
    """Documents are parted by blank lines; a text without any is one document, so its paragraphs are held out."""
    lines = [f"paragraph {number} . of many ." for number in range(2000)] + ["twice . over ."] * 2
    corpus = fetch_corpus(store, str(write_folder(tmp_path / "mine", {"train.txt": f" {between.join(lines)}\n"})))
    train, valid = (text_of(corpus, split).decode() for split in ("train", "valid"))
    kept, held = ([line for line in text.splitlines() if line] for text in (train, valid))
    assert 150 < len(held) < 250
    assert sorted(kept + held) == sorted(lines)
    assert not set(kept) & set(held)
    assert (train, valid) == (between.join(kept) + "\n", between.join(held) + "\n")
    assert (corpus.output.facts["valid_held_out"], corpus.output.facts["held_out_by"]) == (True, by)
    assert corpus.output.facts["valid"]["sha256"] == digest(text_of(corpus, "valid"))
    assert f"one {by} in 10 of train is held out" in corpus.note
    names = {path.name for path in Path(corpus.output.address).iterdir()}
    assert names == {"train.tokens", "valid.tokens", MANIFEST}


def test_too_little_to_hold_out(store, tmp_path):
    fails(store, write_folder(tmp_path / "mine", {"train.txt": "a . b .\n"}), r"mine: no valid split, and train has 1 paragraphs")


def test_an_own_corpus_is_never_called_sample(store, tmp_path):
    folder = write_folder(tmp_path / "Sample", {"train.txt": TRAIN, "valid.txt": VALID})
    assert fetch_corpus(store, str(folder)).name == "own-sample"


def test_names_are_safe_and_links_are_followed(store, tmp_path, monkeypatch):
    texts = write_folder(tmp_path / "texts", {"a": TRAIN, "b": VALID})
    folder = write_folder(tmp_path / "My Corpus (v2)!", {})
    (folder / "train.txt").symlink_to(texts / "a")
    (folder / "valid.txt").symlink_to(texts / "b")
    monkeypatch.chdir(folder)
    corpus = fetch_corpus(store, ".")
    assert (corpus.name, corpus.source) == ("my-corpus-v2", str(folder))


def test_what_is_called_wikitext_must_be_it(store, tmp_path):
    texts = {"train.txt": TRAIN, "valid.txt": VALID, "test.txt": TEST}
    wanted = rf"train.txt: sha256 {digest(TRAIN.encode())}, wanted WikiText-2's {wikitext.WIKITEXT2.digests['train']}.*rename"
    fails(store, write_folder(tmp_path / "WikiText_2", texts), wanted)
    fails(store, write_zip(tmp_path / "wikitext-2-v1.zip", texts), wanted)
    fails(store, write_zip(tmp_path / "mine.zip", {f"wikitext-2/{name}": text for name, text in texts.items()}), wanted)
