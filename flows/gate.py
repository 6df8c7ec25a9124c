"""The gate: whether a new version becomes the champion of its name.

In: a registered candidate and what it was evaluated on. Out: a decision, as aliases, tags and a report. The decisions that
matter: a version is decided once, so that a run that is run again, or one that was rolled back, changes nothing; the tag
`gate.decision` comes last, so that what a kill left undone is done on the next call. Whoever calls holds the lease `gate`
on the name, so that of two candidates at once the second meets the first's result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pipeline.comparison import BITS, Comparison, compare
from pipeline.encoding import Encoder
from pipeline.errors import EncodingError, RegistryError, RegistryUnavailableError
from pipeline.settings import Preset
from pipeline.storage import Output, Store

from . import aliases, models, versions
from .aliases import CHALLENGER, CHAMPION
from .registry import Version, connect

_DECISION, _REASON = "gate.decision", "gate.reason"
_M = TypeVar("_M")


@dataclass(frozen=True)
class Decision:
    """What became of a candidate.

    :param alias: `champion` or `challenger`. :param reason: in one line. :param comparison: None: there was nobody to compare it with.
    :param known: whether it was decided before.
    """

    version: Version
    alias: str
    reason: str
    comparison: Comparison | None = None
    known: bool = False

    def __str__(self) -> str:
        return f"{self.version.uri} is {self.alias}: {self.reason}"


def decide(store: Store, candidate: Version, encoder: Output, corpus: Output, held_out: Output, preset: Preset) -> Decision:
    """Compare an encoder with the champion of its name, and move the aliases.

    :param encoder: the candidate's. :param corpus: that it was trained on. :param held_out: its held-out shards.
    :raises RegistryError: the registry refuses, or is away.
    """

    def against(champion: Encoder) -> Comparison:
        with store.local(encoder) as folder:
            return compare(store, Encoder.load(folder), champion, corpus, held_out, preset)

    return settle(candidate, lambda champion: Encoder.load(models.download(champion.uri)), against, preset.gate.margin)


def settle(candidate: Version, load: Callable[[Version], _M], against: Callable[[_M], Comparison], margin: float) -> Decision:
    """Decide on a candidate once, and move the aliases.

    A champion whose files cannot be read is replaced, since nobody can load it.

    :param load: loads the champion. :param against: compares the candidate with it.
    :param margin: how much worse the candidate may be, as a share of the champion's figure.
    """
    tags = versions.at(candidate.uri).tags
    if _DECISION in tags:
        return Decision(candidate, tags[_DECISION], tags.get(_REASON, ""), known=True)
    number = aliases.of(candidate.name).get(CHAMPION)
    if number is None:
        return _promote(Decision(candidate, CHAMPION, f"the first of {candidate.name}"))
    if number == candidate.number:  # a kill came between its alias and its tag
        return _promote(Decision(candidate, CHAMPION, tags.get(_REASON, "it was made so by hand")))
    champion = Version(candidate.name, number, "")
    try:
        theirs = load(champion)
    except (RegistryError, EncodingError, OSError) as error:
        if isinstance(error, RegistryUnavailableError):
            raise
        return _promote(Decision(candidate, CHAMPION, f"{champion.uri}, champion until now, cannot be read ({error})"))
    comparison = against(theirs)
    better = comparison.accepts(margin)
    decision = Decision(candidate, CHAMPION if better else CHALLENGER, _reason(comparison, champion, margin), comparison)
    return _promote(decision, champion) if better else _challenge(decision, champion)


def _reason(comparison: Comparison, champion: Version, margin: float) -> str:
    figures = f"{comparison.rule} {comparison.candidate:.4f}, that of {champion.uri} {comparison.champion:.4f}"
    worse = comparison.candidate / comparison.champion - 1 if comparison.champion else 0.0
    how = f"{worse:.1%} worse" if worse > 0 else f"{-worse:.1%} better" if worse < 0 else "as good"
    what = "sentences" if comparison.rule == BITS else "examples"
    return f"{figures} on the same {comparison.examples:,} {what}: {how}, margin {margin:.1%}"


def _promote(decision: Decision, champion: Version | None = None) -> Decision:
    _note(decision, champion)
    aliases.promote(decision.version)
    return _close(decision)


def _challenge(decision: Decision, champion: Version) -> Decision:
    _note(decision, champion)
    aliases.challenge(decision.version)
    return _close(decision)


def _note(decision: Decision, champion: Version | None) -> None:
    """Tag the version with the numbers."""
    tags: dict[str, str] = {_REASON: decision.reason}
    if champion and decision.comparison:
        compared = decision.comparison
        tags |= {
            "gate.against": champion.number,
            "gate.rule": compared.rule,
            "gate.examples": str(compared.examples),
            "gate.candidate": f"{compared.candidate:.6f}",
            "gate.champion": f"{compared.champion:.6f}",
        }
    _tag(decision.version, tags)


def _close(decision: Decision) -> Decision:
    _tag(decision.version, {_DECISION: decision.alias})
    return decision


def _tag(version: Version, tags: Mapping[str, str]) -> None:
    with connect() as client:
        for name, value in tags.items():
            client.set_model_version_tag(version.name, version.number, name, value)
