"""The MLflow model, from code: an encoder folder behind `predict`.

In: sentences or pairs. Out: for each its tokens and one vector a token, or one vector for all of it. The decision that
matters: the encoding code travels with the model under a package name of its own (`model_config["package"]`), so that a
user's package called `pipeline` is not in its way, and nothing is pickled.
"""

import functools
import importlib
from typing import Any

import pydantic
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class Sentence(pydantic.BaseModel):
    """One input: a sentence, or a pair where `text_pair` is given; an empty string is an empty sentence."""

    model_config = pydantic.ConfigDict(extra="forbid")  # a misspelt text_pair would be left out in silence

    text: str
    text_pair: str | None = None


class Encoding(pydantic.BaseModel):
    """One output: with pooling `tokens` the tokens (L), `<cls>` first, and a vector for each (L, D), else one vector (D)."""

    tokens: list[str] | None = None
    vectors: list[list[float]] | None = None
    vector: list[float] | None = None


def takes_strings(model: type[PythonModel]) -> type[PythonModel]:
    """Have `predict` take a string for a sentence too.

    MLflow checks inputs against the type hint before `predict` sees them, and one that allows strings as well would leave
    the signature without a type.
    """
    checked = model.predict

    @functools.wraps(checked)
    def predict(self: PythonModel, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        if isinstance(model_input, list):
            model_input = [{"text": entry} if isinstance(entry, str) else entry for entry in model_input]
        return checked(self, context, model_input, params)

    model.predict = predict
    return model


@takes_strings
class EncoderModel(PythonModel):  # type: ignore[misc]
    """Encodes sentences with the encoder folder among the model's artifacts."""

    def load_context(self, context: Any) -> None:
        """Load the encoder, on the CPU."""
        package = context.model_config["package"]
        encoding, errors, pooling = (importlib.import_module(f"{package}.{name}") for name in ("encoding", "errors", "pooling"))
        self.encoder = encoding.Encoder.load(context.artifacts["encoder"])
        self.poolings, self.refused = pooling.POOLINGS, errors.PipelineError

    def predict(self, context: Any, model_input: list[Sentence], params: dict[str, Any] | None = None) -> list[Encoding]:
        """Encode.

        :param params: `pooling`: tokens, cls or mean; `truncate`: whether to drop the tokens that are more than the model takes.
        :returns: for each input the fields of `Encoding` as a dictionary, which MLflow's server can write as JSON.
        :raises MlflowException: an input or a parameter that the encoder cannot take.
        """
        options = {"pooling": "tokens", "truncate": False} | (params or {})
        pooling, truncate = options["pooling"], options["truncate"]
        if pooling not in self.poolings:
            raise MlflowException.invalid_parameter_value(f"pooling: got {pooling!r}, wanted {', '.join(self.poolings)}")
        if not isinstance(truncate, bool):
            raise MlflowException.invalid_parameter_value(f"truncate: got {truncate!r}, wanted true or false")
        inputs = [entry.text if entry.text_pair is None else (entry.text, entry.text_pair) for entry in model_input]
        try:
            found = [vectors.tolist() for vectors in self.encoder.encode_many(inputs, pooling=pooling, truncate=truncate)]
        except self.refused as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        if pooling != "tokens":
            return [{"vector": vector} for vector in found]  # type: ignore[misc]
        tokens = [self.encoder.tokens(entry.text, entry.text_pair, truncate=truncate) for entry in model_input]
        return [{"tokens": t, "vectors": v} for t, v in zip(tokens, found, strict=True)]  # type: ignore[misc]


set_model(EncoderModel())
