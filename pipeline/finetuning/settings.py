"""How an encoder is fine-tuned, and the tasks that there are.

In: what a form, a command or JSON gives. Out: frozen settings that have been checked. The decision that matters: the defaults
are those of Devlin et al. 2018 (arXiv 1810.04805, A.3) for their own sizes; small encoders want a higher learning rate.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..errors import SettingsError
from ..section import Settings, partial, setting
from ..settings import TrainingSettings

CLASSIFICATION, PAIR_CLASSIFICATION, QUESTION_ANSWERING = "classification", "pair_classification", "question_answering"
TASKS = (CLASSIFICATION, PAIR_CLASSIFICATION, QUESTION_ANSWERING)


@dataclass(frozen=True, kw_only=True)
class FinetuningSettings(Settings):
    """How a head is trained together with its encoder."""

    section: ClassVar[str] = "finetuning"
    not_in_key: ClassVar[frozenset[str]] = frozenset(
        {"held_out_share", "device", "checkpoint_every_steps", "checkpoint_every_seconds"}  # the data's digest tells what was kept out
    )
    epochs: int = setting("times that all training rows are gone through", 3, ge=1, le=10_000)
    batch_size: int = setting("rows a step; of question answering, windows", 32, ge=1, le=1_000_000)
    learning_rate: float = setting("peak learning rate; 5e-5 suits base, small encoders want more, such as 3e-4", 5e-5, gt=0)
    warmup_ratio: float = setting("share of the steps over which the learning rate rises; then it falls to 0 in a line", 0.1, ge=0, le=1)
    weight_decay: float = setting("of AdamW, on weights but not on norms and biases", 0.01, ge=0, lt=1)
    max_gradient_norm: float = setting("gradients of a larger norm are scaled down to it; 0: never", 1.0, ge=0)
    dropout: float = setting("of the encoder and before the classifier, while fine-tuning", 0.1, ge=0, lt=1)
    freeze_encoder: bool = setting("whether the encoder's weights stay, so that the head alone learns", False)
    max_length: int = setting("tokens of a row, special ones included; longer ones are cut, contexts go in windows", 128, ge=16, le=65_536)
    doc_stride: int = setting("of question answering: tokens by which neighbouring windows overlap; at most half of a row", 32, ge=0)
    max_answer_length: int = setting("of question answering: most tokens of an answer that is given", 30, ge=1, le=65_536)
    held_out_share: float = setting("share of the rows, by digest, that is held out where no held-out data is given", 0.1, gt=0, lt=1)
    checkpoint_every_steps: int = setting("steps between checkpoints; 0: by seconds alone", 0, ge=0, le=1_000_000_000)
    checkpoint_every_seconds: float = setting("seconds between checkpoints; 0: by steps alone", 60.0, ge=0)
    seed: int = setting("seed of the head's weights, of order and dropout; of a random encoder too", 0, ge=0, lt=2**32)
    device: str = setting("auto (a GPU where there is one), cpu or cuda", "auto", pattern="^(auto|cpu|cuda)$")
    precision: str = setting(
        "of matrix products: auto (bf16 where the device has it in hardware), fp32 or bf16", "auto", pattern="^(auto|fp32|bf16)$"
    )

    def check(self, task: str) -> None:
        """See that a task can be done with them.

        :raises SettingsError: windows overlap so far that no room is left for a question.
        """
        if task == QUESTION_ANSWERING and self.doc_stride > self.max_length // 2:
            wanted = f"at most {self.max_length // 2}, half of finetuning.max_length"
            raise SettingsError(f"finetuning.doc_stride: got {self.doc_stride}, wanted {wanted}")

    def training(self, rows: int) -> TrainingSettings:
        """The same for the optimizer and its schedule.

        :param rows: of the training data.
        """
        return TrainingSettings(
            steps=self.epochs * -(-rows // self.batch_size),
            batch_size=self.batch_size,
            optimizer="adamw",
            learning_rate=self.learning_rate,
            schedule="linear",
            warmup_ratio=self.warmup_ratio,
            weight_decay=self.weight_decay,
            max_gradient_norm=self.max_gradient_norm,
        )


if TYPE_CHECKING:

    class FinetuningOverrides: ...
else:
    FinetuningOverrides = partial(FinetuningSettings)
