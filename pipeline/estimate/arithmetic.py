"""What a model costs by its shape: parameters, products, memory.

In: the model's settings, the size of its vocabulary, a batch. Out: numbers. The decision that matters: products are counted
as the model takes them (dense ones on real tokens, attention on a grid, the last layer at the tokens that are read, the
decoder at masks), so that a count by formula is a count by torch.

Legend: B rows, N real tokens, M masked positions, R tokens that are read, D hidden size, I intermediate size, V vocabulary.
"""

from dataclasses import dataclass

from ..settings import ModelSettings

TRAINING = 3  # times the forward products: each has two in the backward pass, one for its input and one for its weight
_FP32, _BF16 = 4, 2  # bytes
_ADAM = 2  # moments of a parameter
_SEGMENTS, _LABELS = 2, 2
_BLOCK_COPIES = 3  # fp32 matrices of a block of logits at a time: of the block before, the logits, their probabilities
_BLOCK, _BLOCK_ON_GPU = 512, 4096  # rows of a block of logits, model/cross_entropy.py


@dataclass(frozen=True)
class Work:
    """A batch, by its sizes; they may be means.

    :param groups: of rows that are one grid, (rows, their length in it, tokens of each that are read).
    """

    rows: float
    tokens: float
    masked: float
    groups: tuple[tuple[float, float, float], ...]

    @classmethod
    def of_rows(cls, rows: float, tokens: float, masked: float, length: float) -> "Work":
        """Rows of a mean size in one grid, as a GPU takes them.

        :param tokens: of a row. :param masked: of a row. :param length: the grid's.
        """
        return cls(rows, rows * tokens, rows * masked, ((rows, length, masked + 1),))

    @property
    def read(self) -> float:
        """Tokens whose last vectors are wanted: masks and the first one of each row."""
        return sum(rows * width for rows, _, width in self.groups)


def parameters(model: ModelSettings, V: int) -> int:
    """How many numbers are trained."""
    D, deck = model.hidden_size, model.architecture == "deck"
    embeddings = (V + _SEGMENTS + model.max_position_embeddings) * D + (0 if deck else 2 * D)
    masked_lm = D * D + D + 2 * D + V + (V * D if deck else 0)
    next_sentence = D * D + D + _LABELS * D + _LABELS
    return embeddings + model.num_hidden_layers * layer_parameters(model) + masked_lm + next_sentence


def layer_parameters(model: ModelSettings) -> int:
    """Those of one layer."""
    D, I = model.hidden_size, model.intermediate_size  # noqa: E741
    return 4 * (D * D + D) + 2 * D * I + I + D + 4 * D


def forward_flop(model: ModelSettings, V: int, work: Work) -> float:
    """Of the matrix products of a forward pass with losses, a multiplication and an addition being two."""
    D, I, N, R = model.hidden_size, model.intermediate_size, work.tokens, work.read  # noqa: E741

    def layer(queries: float, pairs: float) -> float:
        """Queries and the output's product and the feed-forward layer at some tokens, keys and values at all."""
        return queries * (4 * D * D + 4 * D * I) + 4 * N * D * D + 4 * pairs * D

    every = layer(N, sum(rows * length * length for rows, length, _ in work.groups))
    last = layer(R, sum(rows * width * length for rows, length, width in work.groups))
    heads = work.masked * (2 * D * D + 2 * D * V) + work.rows * (2 * D * D + 2 * D * _LABELS)
    return (model.num_hidden_layers - 1) * every + last + heads


def state_bytes(count: float) -> float:
    """Of weights, gradients and Adam's moments, all fp32."""
    return count * _FP32 * (1 + 1 + _ADAM)


def checkpoint_bytes(count: float) -> float:
    """Of weights and Adam's moments, all fp32."""
    return count * _FP32 * (1 + _ADAM)


def activation_bytes(model: ModelSettings, V: int, work: Work, *, on_gpu: bool, bf16: bool) -> float:
    """Of what a forward pass keeps for the backward pass, and of the heads' work at its end.

    A token keeps in each layer, in fp32: the layer's input, its query, key and value, what attention gives (twice on a GPU:
    the kernel keeps its own), the two inputs of the norms and the first one's output; the input and output of the activation
    function. With dropout it keeps masks too; on a CPU also their factors, and attention's probabilities three times.
    """
    D, I, N, R = model.hidden_size, model.intermediate_size, work.tokens, work.read  # noqa: E741
    product = _BF16 if bf16 else _FP32
    copies = 2 * _BF16 if bf16 else 0  # of what fp32 norms give, for the products
    drops = model.hidden_dropout_prob > 0
    masks = 0 if not drops else 2 if on_gpu else 4 * _FP32  # of both sublayers
    own_kernel = not on_gpu and model.attention_probs_dropout_prob > 0
    inner = I * product * (1 if model.architecture == "deck" else 2)
    at_query = D * (4 * _FP32 + copies + product + (1 if own_kernel else 2) * product + masks) + inner
    at_key = D * 2 * product

    def layer(queries: float, pairs: float) -> float:
        probabilities = pairs * model.num_attention_heads * 3 * _FP32 if own_kernel else 0
        return queries * at_query + N * at_key + probabilities

    every = layer(N, sum(rows * length * length for rows, length, _ in work.groups))
    last = layer(R, sum(rows * width * length for rows, length, width in work.groups))
    return (model.num_hidden_layers - 1) * every + last + N * D * _FP32 + _head_bytes(V, D, work.masked, on_gpu=on_gpu)


def _head_bytes(V: int, D: int, masked: float, *, on_gpu: bool) -> float:
    """A block of logits or, after them, the decoder's gradient twice: as it was found and as it is scaled."""
    block = min(masked, _BLOCK_ON_GPU if on_gpu else _BLOCK) * V * _FP32 * _BLOCK_COPIES
    gradient = V * D * _FP32
    return gradient + max(block, gradient)
