"""Fill-mask: what an encoder's masked-language-model head expects where the text has mask tokens.

In: an encoder, and a text in which the vocabulary's mask token stands once or more. Out: the likeliest tokens for each.
The decision that matters: the mask token alone is read as a token; what stands around it is plain text, as in `encode`.

Legend: L length, M masks, D hidden size, V vocabulary.
"""

import torch

from .encoding import Encoder
from .errors import EncodingError


def fill_mask(encoder: Encoder, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """The likeliest tokens for each mask token of a text, with their probabilities, likeliest first.

    :param text: for instance `a [MASK] is flying`, or `a <mask> is flying` at the word level.
    :param top: how many tokens.
    :returns: an entry for each mask token, in their order.
    :raises EncodingError: no mask token, or more tokens than the model takes.
    """
    shape, table = encoder.model.encoder.shape, encoder.table
    mask = table.special_tokens["mask_token"]
    if not isinstance(text, str) or mask not in text:
        raise EncodingError(f"fill-mask: got {text!r:.80}, wanted a text with {mask} where a token is to be filled in")
    if not isinstance(top, int) or not 1 <= top <= shape.vocab_size:
        raise EncodingError(f"fill-mask: got top {top!r}, wanted 1 to {shape.vocab_size}, the size of the vocabulary")
    first, *others = encoder.plain_ids(text.split(mask))
    ids, places = [table.cls_id, *first], []
    for part in others:
        places.append(len(ids))
        ids += [table.mask_id, *part]
    ids.append(table.sep_id)
    if len(ids) > shape.max_position_embeddings:
        limit = shape.max_position_embeddings
        raise EncodingError(f"fill-mask: {len(ids)} tokens with the special ones, wanted at most {limit}, the model's limit; shorten it")
    (vectors_LD,) = encoder.encode_input_ids([ids])
    with torch.inference_mode():
        found = torch.softmax(encoder.model.masked_lm(vectors_LD[places]), -1).topk(top)  # of (M, V)
    rows = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return [[(table.tokens[token], probability) for token, probability in zip(*row, strict=True)] for row in rows]
