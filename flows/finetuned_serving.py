"""The MLflow model of a fine-tuned encoder, from code.

In: texts or pairs; of question answering a question and its context. Out: a class with the probability of each, or an answer
and where it stands. The decision that matters: the prediction code travels with the model under a package name of its own
(`model_config["package"]`), as an encoder's does, and nothing is pickled; what is wrong with an input is
MLflow's INVALID_PARAMETER_VALUE, which its server answers as status 400.
"""

import importlib
from typing import Any

import pydantic
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class Input(pydantic.BaseModel):
    """One input: a text, a pair where `text_pair` is given, or a question on a context."""

    model_config = pydantic.ConfigDict(extra="forbid")  # a misspelt text_pair would be left out in silence

    text: str | None = None
    text_pair: str | None = None
    question: str | None = None
    context: str | None = None

    def texts(self, number: int, *, answers: bool) -> tuple[str, str | None]:
        """The first and second text that the model takes.

        :param answers: whether it is a model of question answering.
        :raises MlflowException: they are not what it takes.
        """
        wanted, others = ((self.question, self.context), (self.text, self.text_pair))[:: 1 if answers else -1]
        if wanted[0] is None or any(value is not None for value in others):
            names = "question and context" if answers else "text, of a pair with text_pair"
            got = f"input {number}: got {self.model_dump(exclude_none=True)!r:.120}"
            raise MlflowException.invalid_parameter_value(f"{got}, wanted {names}")
        return wanted[0], wanted[1]


class Output(pydantic.BaseModel):
    """One output: `label` and `probabilities`, or `answer` with `start` and `end` in the context and `probability`."""

    label: str | None = None
    probabilities: dict[str, float] | None = None
    answer: str | None = None
    start: int | None = None
    end: int | None = None
    probability: float | None = None


class FinetunedModel(PythonModel):  # type: ignore[misc]
    """Predicts with the fine-tuned encoder among the model's artifacts."""

    def load_context(self, context: Any) -> None:
        """Load it, on the CPU."""
        package = context.model_config["package"]
        self.model = importlib.import_module(f"{package}.finetuning.prediction").Finetuned.load(context.artifacts["finetuned"])
        self.refusal = importlib.import_module(f"{package}.errors").PipelineError

    def predict(self, context: Any, model_input: list[Input], params: dict[str, Any] | None = None) -> list[Output]:
        """Predict.

        :returns: for each input the fields of `Output` that its task has, as a dictionary, which MLflow's server can write as JSON.
        :raises MlflowException: an input is empty, or is not what the task takes.
        """
        answers = not self.model.head.labels
        inputs = [entry.texts(number, answers=answers) for number, entry in enumerate(model_input)]
        try:
            return list(self.model.predict(inputs))
        except self.refusal as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error


set_model(FinetunedModel())
