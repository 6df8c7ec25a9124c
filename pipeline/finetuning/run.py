"""What a fine-tuning needs, by value: the `run.json` that the flow writes and `python -m pipeline.finetuning` reads.

In: published outputs, an encoder and labelled data, and settings. Out: the recipe of the stage `finetuned`, and the file. The
decision that matters: the key is that of the encoder's output, the data's and the settings, so that the same command finds
its work done; a kill leaves nothing, since whoever launched it publishes what it wrote.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from ..errors import TrainingError
from ..storage import Recipe
from .settings import FinetuningSettings

FORMAT = 1
STAGE = "finetuned"
FILE, METRICS, FACTS = "run.json", "metrics.jsonl", "facts.json"


@dataclass(frozen=True)
class FinetuningRun:
    """A fine-tuning.

    :param store: root of the store. :param work: local folder for live metrics and the log.
    :param encoder: address of the encoder's output. :param labelled: that of the data.
    :param inputs: keys of both. :param random_encoder: start from random weights of the encoder's shape, as a baseline.
    """

    store: str
    work: str
    encoder: str
    labelled: str
    inputs: dict[str, str]
    task: str
    random_encoder: bool
    settings: FinetuningSettings

    @property
    def recipe(self) -> Recipe:
        settings = {"task": self.task, "random_encoder": self.random_encoder, **self.settings.for_key()}
        return Recipe(STAGE, FORMAT, settings, self.inputs)

    @property
    def key(self) -> str:
        return self.recipe.key

    def at(self, work: Path) -> Self:
        """The same with a folder of its own under a local one."""
        return replace(self, work=str(work.absolute() / self.key))

    def save(self) -> Path:
        """Write `run.json` into the work folder. Returns its path."""
        path = Path(self.work) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1), "utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """:raises TrainingError: the file is missing or not a run; SettingsError: a setting in it is invalid."""
        try:
            values: dict[str, Any] = json.loads(path.read_text("utf-8"))
            return cls(**values | {"settings": FinetuningSettings.read(values["settings"])})
        except FileNotFoundError:
            raise TrainingError(f"{path}: no such file; wanted the {FILE} that the flow writes") from None
        except (ValueError, TypeError, KeyError) as error:
            raise TrainingError(f"{path}: {error}; wanted the {FILE} that the flow writes") from error
