"""WikiText-2 and WikiText-103 (Merity et al. 2016, arXiv 1609.07843; CC BY-SA 3.0): what they are and where they are.

In: digests of canonical text, names. Out: whether they are one of these. The decision that matters: WikiText-2's digests
are known, so its key is known before a byte is read, and no mirror has to be trusted; WikiText-103's are those of the
first download, which the store keeps.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .layout import SPLITS

NAME = "wikitext-2"
MIRRORS_VARIABLE = "BERT_WIKITEXT2_MIRRORS"


@dataclass(frozen=True)
class WikiText:
    """A corpus that is known by name.

    :param name: also of what claims to be it, as is the release's, with `-v1`. :param title: for messages.
    :param variable: of the environment, with mirrors to take instead, separated by commas.
    :param max_bytes: to download or unpack, several times its text.
    :param digests: sha256 of each split's canonical text; None where they are not known beforehand.
    """

    name: str
    title: str
    variable: str
    public_mirrors: tuple[str, ...]
    max_bytes: int
    digests: Mapping[str, str] | None = None

    def mirrors(self) -> list[str]:
        """Addresses to try in turn: those of the environment variable, else the public ones."""
        named = [address.strip() for address in os.environ.get(self.variable, "").split(",")]
        return [address for address in named if address] or list(self.public_mirrors)

    def claimed_by(self, names: Collection[str]) -> bool:
        """Whether one of the names says that this is it."""
        return not {self.name, f"{self.name}-v1"}.isdisjoint(names)

    def difference(self, labels: Mapping[str, str], digests: Mapping[str, str], wanted: Mapping[str, str] | None) -> str | None:
        """How a corpus differs from it, None where it does not.

        :param labels: what to call each split's file. :param digests: sha256 of each split's canonical text.
        :param wanted: what they should be; None where nobody knows, so that all three splits are all that can be asked for.
        """
        for split in SPLITS:
            with_digest = f" with sha256 {wanted[split]}" if wanted else ""
            if split not in digests:
                return f"{', '.join(labels.values())}: no {split} split beside, wanted {self.title}'s{with_digest}"
            if wanted and digests[split] != wanted[split]:
                return f"{labels[split]}: sha256 {digests[split]}, wanted {self.title}'s {wanted[split]}"
        return None


WIKITEXT2 = WikiText(
    NAME,
    "WikiText-2",
    MIRRORS_VARIABLE,
    (
        "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2",
        "https://wikitext.smerity.com/wikitext-2-v1.zip",
        "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/wikitext-2-v1",
    ),
    64 << 20,
    {
        "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
)
WIKITEXT103 = WikiText(
    "wikitext-103",
    "WikiText-103",
    "BERT_WIKITEXT103_MIRRORS",
    (
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
        "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/wikitext-103-v1",
    ),
    3 << 30,
)


def known() -> tuple[WikiText, ...]:
    """All that are known by name."""
    return (WIKITEXT2, WIKITEXT103)


def by_name(address: str | None) -> WikiText | None:
    """The one of a name; without an address it is WikiText-2."""
    return next((one for one in known() if one.name == (address or NAME)), None)
