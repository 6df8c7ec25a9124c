"""The MLflow model, from code: an encoder folder behind `predict`.

In: sentences or pairs. Out: for each its tokens and one vector a token. The decision that matters: the encoding code
travels with the model under a package name of its own (`model_config["package"]`), so that a user's package called
`pipeline` is not in its way, and nothing is pickled.
"""

import importlib
from typing import Any

import pydantic
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class Sentence(pydantic.BaseModel):
    """One input: a sentence, or a pair where `text_pair` is given."""

    text: str
    text_pair: str | None = None


class Encoding(pydantic.BaseModel):
    """One output: the tokens (L) and a vector for each (L, hidden size); `<cls>` comes first."""

    tokens: list[str]
    vectors: list[list[float]]


class EncoderModel(PythonModel):  # type: ignore[misc]
    """Encodes sentences with the encoder folder among the model's artifacts."""

    def load_context(self, context: Any) -> None:
        """Load the encoder, on the CPU."""
        encoding = importlib.import_module(f"{context.model_config['package']}.encoding")
        self.encoder = encoding.Encoder.load(context.artifacts["encoder"])

    def predict(self, context: Any, model_input: list[Sentence], params: dict[str, Any] | None = None) -> list[Encoding]:
        """Encode.

        :returns: for each input the fields of `Encoding` as a dictionary, which MLflow's server can write as JSON.
        """
        inputs = [entry.text if entry.text_pair is None else (entry.text, entry.text_pair) for entry in model_input]
        vectors = self.encoder.encode_many(inputs)
        tokens = [self.encoder.tokens(entry.text, entry.text_pair) for entry in model_input]
        pairs = zip(tokens, vectors, strict=True)
        return [Encoding(tokens=t, vectors=v.tolist()).model_dump() for t, v in pairs]  # type: ignore[misc]


set_model(EncoderModel())
