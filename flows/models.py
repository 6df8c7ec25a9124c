"""Registered models: an encoder, or an encoder with a head, as plain files behind `predict`.

In: a folder of plain files. Out: a version of a name. The decisions that matter: a version is found by the key of what it
holds, so that registering again makes no second one; the code that a model needs travels with it under a package name of
its own, and nothing is pickled.
"""

import atexit
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import mlflow
from matplotlib.figure import Figure
from mlflow.exceptions import MlflowException
from mlflow.utils.logging_utils import disable_logging

import pipeline
from pipeline.errors import ModelGoneError, RegistryError, RegistryUnavailableError, SettingsError

from .names import is_version_address
from .places import tracking_uri
from .registry import Version, connect
from .versions import HEAD_TAG, PREVIOUS

_A = {"encoder": "an encoder", "finetuned": "an encoder with a head"}
_COMPLETE = "complete"  # a version's last tag


@dataclass(frozen=True)
class Kind:
    """What is registered.

    :param name: of the folder among the model's artifacts. :param code: the model-from-code beside this module.
    :param shipped: what it needs of the package `pipeline`. :param key_tag: the tag that finds a version again.
    :param example: an input that MLflow's page shows; with parameters as a pair (input, parameters), which gives their types.
    """

    name: str
    code: str
    shipped: Sequence[str]
    key_tag: str
    example: Any = None
    requirements: Sequence[str] = ("mlflow", "numpy", "pydantic", "safetensors", "tokenizers", "torch")


_ENCODING = ("__init__.py", "errors.py", "encoder_format.py", "encoding.py", "pooling.py", "tokens.py", "model")
_SENTENCES = [{"text": "a crane is flying"}, {"text": "a crane driver came", "text_pair": "he just left"}]
ENCODER = Kind("encoder", "serving.py", _ENCODING, "encoder_key", (_SENTENCES, {"pooling": "tokens", "truncate": False}))
_PREDICTION = tuple(f"finetuning/{name}.py" for name in ("__init__", "features", "head_format", "prediction"))
_SHARED = ("__init__.py", "errors.py", "encoder_format.py", "tokens.py", "model")
FINETUNED = Kind("finetuned", "finetuned_serving.py", (*_SHARED, *_PREDICTION), HEAD_TAG)


def find_version(name: str, key: str, kind: Kind = ENCODER) -> Version | None:
    """The version of a name that holds what has a key."""
    with connect() as client:
        every = client.search_model_versions(f"name = '{name}' and tags.{kind.key_tag} = '{key}'")
        found = [entry for entry in every if (HEAD_TAG in entry.tags) == (kind is FINETUNED)]
        return Version(name, str(found[0].version), str(found[0].run_id), dict(found[0].tags)) if found else None


def register(
    name: str,
    run_id: str,
    source: Path,
    *,
    tags: Mapping[str, str],
    description: Callable[[Version], str],
    tables: Mapping[str, Mapping[str, Sequence[Any]]],
    figures: Mapping[str, Figure],
    kind: Kind = ENCODER,
) -> Version:
    """Log a folder with its tables and pictures, and register it.

    :param description: of the version, made once its number is known.
    :param tags: of the version; the kind's `key_tag` among them finds it again.
    :param tables: columns of tables of the run, by their files' names. :param figures: pictures of the run, by theirs.
    """
    with connect() as client:
        for file, figure in figures.items():
            client.log_figure(run_id, figure, file)
        for file, table in tables.items():
            client.log_table(run_id, dict(table), file)
        with tempfile.TemporaryDirectory() as folder, mlflow.start_run(run_id=run_id):
            shutil.copytree(source, Path(folder) / kind.name)
            package = _ship_package(Path(folder), kind.shipped)
            with _importable(folder):
                model = mlflow.pyfunc.log_model(
                    name=kind.name,
                    python_model=str(Path(__file__).with_name(kind.code)),
                    artifacts={kind.name: str(Path(folder) / kind.name)},
                    code_paths=[str(package)],
                    model_config={"package": package.name},
                    input_example=kind.example,
                    pip_requirements=[f"{name}=={installed(name).split('+')[0]}" for name in kind.requirements],
                )
        disable_logging()  # log_model turned it on again
        made = mlflow.register_model(model.model_uri, name, tags=dict(tags))
    version = Version(name, str(made.version), run_id, dict(tags))
    complete(version, description(version))
    return version


def complete(version: Version, description: str) -> None:
    """Describe a version, once; what a kill left undone is done on the next call."""
    with connect() as client:
        if _COMPLETE in client.get_model_version(version.name, version.number).tags:
            return
        client.update_model_version(version.name, version.number, description)
        client.set_model_version_tag(version.name, version.number, _COMPLETE, "true")


def describe_name(name: str, description: str) -> None:
    """Describe a registered name that has no description; one that somebody wrote stays."""
    with connect() as client:
        if not client.get_registered_model(name).description:
            client.update_registered_model(name, description)


def _ship_package(folder: Path, shipped: Sequence[str]) -> Path:
    """Copy what a model needs of `pipeline` under a name that no other version and no user's package has."""
    source, copy = Path(pipeline.__file__).parent, folder / "package"
    copy.mkdir()
    for name in shipped:
        if (source / name).is_dir():
            shutil.copytree(source / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (copy / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, copy / name)
    hasher = hashlib.sha256()
    for path in sorted(copy.rglob("*.py")):
        hasher.update(str(path.relative_to(copy)).encode() + path.read_bytes())
    return copy.rename(folder / f"bert_encoder_{hasher.hexdigest()[:12]}")


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Have the shipped package found, since MLflow tries the example while it logs a model, and warns where that fails."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def download(model_uri: str, kind: Kind = ENCODER) -> Path:
    """Fetch a version's folder as plain files; no code of the registry is run. What a server sends is there until this process ends.

    :raises RegistryError: it is of another kind, or the registry refuses. :raises SettingsError: not a version's address.
    :raises ModelGoneError: there is no such version, or its files are gone.
    :raises RegistryUnavailableError: its files are there, as far as is known, and cannot be fetched now.
    """
    check_version(model_uri)
    try:
        with connect():
            root = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri, dst_path=_place())) / "artifacts"
    except RegistryError as error:
        if isinstance(error.__cause__, MlflowException) and error.__cause__.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise ModelGoneError(f"{model_uri}: there is no such version, or its files are gone from the registry ({error})") from error
        raise
    except FileNotFoundError as error:
        raise ModelGoneError(f"{model_uri}: its files are gone from the registry ({error})") from error
    except OSError as error:  # of the network too
        raise RegistryUnavailableError(
            f"{model_uri}: its files cannot be fetched ({error}); check that what keeps them can be reached"
        ) from error
    if (root / kind.name).is_dir():
        return root / kind.name
    if other := next((other for other in (ENCODER, FINETUNED) if other is not kind and (root / other.name).is_dir()), None):
        raise RegistryError(f"{model_uri}: holds {_A[other.name]}; wanted {_A[kind.name]}")
    raise ModelGoneError(f"{model_uri}: holds no {kind.name} folder; wanted one that this project registered")


def check_version(model_uri: str) -> None:
    """:raises SettingsError: it is not a version's address."""
    if model_uri == PREVIOUS or not is_version_address(model_uri):
        raise SettingsError(f"{model_uri}: not a version; wanted models:/NAME/NUMBER or models:/NAME@ALIAS")


def _place() -> str | None:
    """Where a server's files go; None: files of this machine stay where they are."""
    if not tracking_uri().startswith("http"):
        return None
    folder = tempfile.mkdtemp(prefix="bert-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
