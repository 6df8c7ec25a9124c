"""Keys and contents of each stage on a fixed corpus.

When a test here fails, the code has changed what a stage writes. If that is meant, raise the stage's FORMAT, so that no
store mixes old outputs with new ones, and put the new values in. Contents are digested without regard to the versions of
pyarrow and `tokenizers` that wrote them; of weights, whose last bits are a processor's own, names, shapes and a loss stand.
"""

from pathlib import Path

from safetensors import safe_open

from pipeline.data.build import build_shards
from pipeline.data.corpus import fetch_corpus
from pipeline.data.tokenizer import Vocabulary
from pipeline.data.vocabulary import build_vocabulary
from pipeline.export import export_encoder
from pipeline.storage import Store, digest
from pipeline.training.run import plan_run, read_metrics

LINES = [f" crane {i} is flying over w{i % 7} . he left x{i % 5} and came . they saw y{i % 3} \n" for i in range(60)]


def tensors(path: Path) -> str:
    """A digest of the names and shapes in a file of tensors."""
    with safe_open(path, "numpy") as file:
        return digest(repr([(name, file.get_slice(name).get_shape()) for name in sorted(file.keys())]).encode())[:16]


def test_keys_and_contents(tmp_path: Path, small_preset, train) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wiki.train.tokens").write_text("".join(LINES), "utf-8")
    store = Store(str(tmp_path / "store"))
    corpus = fetch_corpus(store, str(tmp_path / "own")).output
    vocabulary = build_vocabulary(store, corpus, small_preset)
    shards = {split: build_shards(store, corpus, vocabulary, split, small_preset) for split in ("train", "valid")}
    settings = plan_run(store, small_preset.override(training={"steps": 2}), shards["train"], shards["valid"], tmp_path / "work").save()
    done = train(settings)
    assert done.returncode == 0, done.stderr
    run = store.find("run", settings.key)
    assert run is not None
    encoder = export_encoder(store, run, vocabulary, corpus)
    last = read_metrics(run)[-2]
    texts = b"".join((Path(encoder.address) / name).read_bytes() for name in ("config.json", "tokenizer_config.json"))
    found = {
        "corpus": (corpus.key, corpus.facts["train"]["sha256"][:16]),
        "vocabulary": (vocabulary.key, digest("\n".join(Vocabulary.open(vocabulary).table.tokens).encode())[:16]),
        **{split: (output.key, output.facts["contents"][:16]) for split, output in shards.items()},
        "run": (
            run.key,
            tensors(Path(run.address) / "model.safetensors"),
            digest(repr(sorted(last)).encode())[:16],
            round(last["mlm_loss"], 3),
        ),
        "encoder": (encoder.key, tensors(Path(encoder.address) / "model.safetensors"), digest(texts)[:16]),
    }
    assert found == {
        "corpus": ("56be8873936c6942a0d4", "a014e97c080c8696"),
        "vocabulary": ("9012197f32340add7938", "552e536556ff196a"),
        "train": ("34cb3d99bb96dadc01d3", "f84d75f3b41269e3"),
        "valid": ("ff80c029990b7cab1d4b", "1a12a6921df9f9b6"),
        "run": ("f076fb938d82f4d6bdc2", "6dc9204e4469f3a8", "f106607c26facd08", 3.649),
        "encoder": ("4a6405db8989360cc34c", "0e772050e48c2f5c", "5a0793e68a323293"),
    }
