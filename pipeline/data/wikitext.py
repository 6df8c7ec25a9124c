"""WikiText-2 (Merity et al. 2016, arXiv 1609.07843; CC BY-SA 3.0): what it is and where it is.

In: digests of canonical text, names. Out: whether they are WikiText-2's. The decision that matters: its digests are
known, so its key is known before a byte is read, and no mirror has to be trusted.
"""

import os
from collections.abc import Collection, Mapping

NAME = "wikitext-2"
NAMES = frozenset({NAME, "wikitext-2-v1"})  # whatever is called so must be it
MIRRORS_VARIABLE = "BERT_WIKITEXT2_MIRRORS"
MIRRORS = (
    "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2",
    "https://wikitext.smerity.com/wikitext-2-v1.zip",
    "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/wikitext-2-v1",
)
MAX_BYTES = 64 << 20  # about five times its text
DIGESTS: Mapping[str, str] = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}


def mirrors() -> list[str]:
    """Addresses to try in turn: those of the environment variable, separated by commas, else the public ones."""
    named = [address.strip() for address in os.environ.get(MIRRORS_VARIABLE, "").split(",")]
    return [address for address in named if address] or list(MIRRORS)


def difference(labels: Mapping[str, str], digests: Mapping[str, str]) -> str | None:
    """How a corpus differs from WikiText-2, None where it does not.

    :param labels: what to call each split's file.
    :param digests: sha256 of each split's canonical text.
    """
    for split, wanted in DIGESTS.items():
        if split not in digests:
            return f"{', '.join(labels.values())}: no {split} split beside, wanted WikiText-2's with sha256 {wanted}"
        if digests[split] != wanted:
            return f"{labels[split]}: sha256 {digests[split]}, wanted WikiText-2's {wanted}"
    return None


def claims(names: Collection[str]) -> bool:
    """Whether one of the names says that this is WikiText-2."""
    return not NAMES.isdisjoint(names)
