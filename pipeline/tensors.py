"""Tensors -> a safetensors file."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from .errors import PipelineError


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, from any device.

    :raises PipelineError: the file cannot be written, as on a full disk.
    """
    try:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise PipelineError(f"{path}: cannot be written ({error}); free some space or set BERT_STORE to another place") from error
