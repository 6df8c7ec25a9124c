"""The MLflow model, from code: an encoder folder behind `predict`.

In: sentences or pairs. Out: for each its tokens and one vector a token, or one vector where `params` name a pooling. The
decisions that matter: the encoding code travels with the model under a package name of its own (`model_config["package"]`),
so that a user's package called `pipeline` is not in its way, and nothing is pickled; what is wrong with an input is
MLflow's INVALID_PARAMETER_VALUE, which its server answers as status 400.
"""

import functools
import importlib
from typing import Any

import pydantic
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

_AT_ONCE = 128  # sentences that go through the model together


class Sentence(pydantic.BaseModel):
    """One input: a sentence, or a pair where `text_pair` is given; an empty string is an empty sentence."""

    model_config = pydantic.ConfigDict(extra="forbid")  # a misspelt text_pair would be left out in silence

    text: str
    text_pair: str | None = None


class Encoding(pydantic.BaseModel):
    """One output: `tokens` (L), `<cls>` first, and `vectors` (L, hidden size), one each; or, pooled, one `vector` (hidden size)."""

    tokens: list[str] | None = None
    vectors: list[list[float]] | None = None
    vector: list[float] | None = None


def takes_strings(model: type[PythonModel]) -> type[PythonModel]:
    """Have `predict` take a string for a sentence too.

    MLflow checks inputs against the type hint before `predict` sees them, and a hint that allows both leaves the signature
    without a type.
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
        self.encoder = importlib.import_module(f"{package}.encoding").Encoder.load(context.artifacts["encoder"])
        self.refusal = importlib.import_module(f"{package}.errors").PipelineError

    def predict(self, context: Any, model_input: list[Sentence], params: dict[str, Any] | None = None) -> list[Encoding]:
        """Encode.

        :param params: `pooling`: tokens, cls or mean. `truncate`: drop the last tokens of what is too long.
        :returns: for each input the fields of `Encoding` as a dictionary, which MLflow's server can write as JSON.
        :raises MlflowException: an input is too long, or there is no such pooling.
        """
        wanted = {"pooling": "tokens", "truncate": False} | (params or {})
        inputs = [entry.text if entry.text_pair is None else (entry.text, entry.text_pair) for entry in model_input]
        try:
            ids, segments = self.encoder.to_ids(inputs, truncate=wanted["truncate"])
            vectors = self.encoder.encode_input_ids(ids, segments, _AT_ONCE, pooling=wanted["pooling"])
        except self.refusal as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        if wanted["pooling"] != "tokens":
            return [{"vector": vector.tolist()} for vector in vectors]  # type: ignore[misc]
        names = self.encoder.table.tokens
        rows = zip(ids, vectors, strict=True)
        return [{"tokens": [names[token] for token in row], "vectors": found.tolist()} for row, found in rows]  # type: ignore[misc]


set_model(EncoderModel())
