"""Names and addresses in the model registry, and the names of the work pools."""

import re
from collections.abc import Mapping
from typing import Any

from pipeline.addresses import refuse_credentials, without_credentials
from pipeline.errors import SettingsError

VERSION_PATTERN = r"^(previous|models:/[^/@]+(/\d+|@[^/@]+))$"
POOLS = ("cpu", "gpu")
PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
RANDOM = "-random"  # ends the name of what started from random weights, as a baseline
_MOST, _MOST_OF_DATA = 200, 60  # characters


def model_name(preset: str, corpus: str) -> str:
    """`bert-<preset>` for WikiText-2, else with the corpus's name."""
    return f"bert-{preset}" if corpus == "wikitext-2" else f"bert-{preset}-{corpus}"


def finetuned_name(encoder: str, train: str, task: str) -> str:
    """`<encoder's name>-<data's name>`: that of the file, of a file `train…` that of its folder; without either, the task's.

    There is room for `RANDOM` behind it.
    """
    *folders, last = without_credentials(train).rstrip("/").split("/")
    stem = last.partition(".")[0].lower()
    data = (folders[-1] if folders else "") if stem.startswith("train") else stem
    data = re.sub("[^a-z0-9]+", "-", data.lower())[:_MOST_OF_DATA].strip("-") or task.replace("_", "-")
    name = re.sub("[^A-Za-z0-9._-]+", "-", encoder).lstrip("._-") or "encoder"
    return f"{name[: _MOST - len(data) - len(RANDOM) - 1]}-{data}"


def training_name(parameters: Mapping[str, Any]) -> str:
    """Of a flow run that trains a plan."""
    return f"{parameters['model_name']}, plan {parameters['plan']}"


def check_model_name(name: str | None) -> None:
    """Refuse a name that the registry would refuse after all the work.

    :raises SettingsError: it holds other characters than letters, digits, `.`, `_` and `-`, or is too long.
    """
    if name is not None and not re.fullmatch(PATTERN, name):
        raise SettingsError(f"model name: got {name!r}, wanted letters, digits, `.`, `_` and `-`, at most 200, a letter or digit first")


def is_version_address(address: str | None) -> bool:
    """Whether it names a version of a model, or is `previous`."""
    return address is not None and re.fullmatch(VERSION_PATTERN, address) is not None


def check_version_address(setting: str, address: str | None, *, or_folder: bool = False) -> None:
    """Refuse what names no version of a model.

    :param or_folder: the address of a checkpoint's folder will do as well.
    :raises SettingsError: it is neither `previous` nor an address, or holds credentials.
    """
    if address is None or is_version_address(address):
        return
    if or_folder and not address.startswith("models:"):
        refuse_credentials(setting, address)
        return
    folder = ", or the folder of a BERT checkpoint" if or_folder else ""
    raise SettingsError(f"{setting}: got {address!r}, wanted previous, models:/NAME/NUMBER or models:/NAME@ALIAS{folder}")
