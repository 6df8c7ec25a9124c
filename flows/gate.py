"""The gate: whether a new version becomes the champion of its name.

In: a registered candidate and what it was evaluated on. Out: a decision, as aliases, tags and a report. The decisions that
matter: a version is decided once, so that a run that is run again, or one that was rolled back, changes nothing; the tag
`gate.decision` comes last, so that what a kill left undone is done on the next call. Whoever calls holds the lease `gate`
on the name, so that of two candidates at once the second meets the first's result.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pipeline.comparison import BITS, Champion, Comparison, compare
from pipeline.encoding import Encoder
from pipeline.errors import EncodingError, ModelGoneError
from pipeline.settings import Preset
from pipeline.storage import Output, Store

from . import aliases, models, versions
from .aliases import CHALLENGER, CHAMPION, DECISION, REASON, ROLLED_BACK
from .registry import Version, connect

_M = TypeVar("_M")


@dataclass(frozen=True)
class Decision:
    """What became of a candidate.

    :param alias: `champion` or `challenger`, as decided. :param reason: in one line. :param comparison: None: it was decided before.
    :param state: what it is now, where that differs, as after a rollback.
    """

    version: Version
    alias: str
    reason: str
    comparison: Comparison | None = None
    known: bool = False
    state: str = ""

    def __str__(self) -> str:
        return f"{self.version.uri} {self.state or f'is {self.alias}'}: {self.reason}"


def decide(store: Store, candidate: Version, encoder: Output, corpus: Output, held_out: Output, preset: Preset) -> Decision:
    """Compare an encoder with the champion of its name, and move the aliases.

    :param encoder: the candidate's. :param corpus: that it was trained on. :param held_out: its held-out shards.
    :raises RegistryError: the registry refuses, or is away.
    """

    def load(champion: Version) -> Champion:
        return Champion(Encoder.load(models.download(champion.uri)), versions.params_of(champion).get("shards.pairs", ""))

    def against(champion: Champion | None) -> Comparison:
        with store.local(encoder) as folder:
            return compare(store, Encoder.load(folder), champion, corpus, held_out, preset)

    return judge(candidate, load, against, preset.gate.margin)


def judge(candidate: Version, load: Callable[[Version], _M], against: Callable[[_M | None], Comparison], margin: float) -> Decision:
    """Decide on a candidate once, and move the aliases.

    A champion whose files are gone or damaged is replaced, since nobody can load it; one that cannot be fetched now is not.

    :param load: loads the champion. :param against: compares the candidate with it, or evaluates it alone.
    :param margin: how much worse the candidate may be, as a share of the champion's figure.
    """
    tags, known = versions.at(candidate.uri).tags, aliases.mend(candidate.name)
    number = known.get(CHAMPION)
    if DECISION in tags:
        return Decision(candidate, tags[DECISION], tags.get(REASON, ""), known=True, state=_state(candidate, tags, known))
    if ROLLED_BACK in tags:
        return _conclude(Decision(candidate, CHALLENGER, f"it was rolled back, {tags[ROLLED_BACK]}"))
    if number == candidate.number:  # a kill came between its alias and its tag
        return _conclude(Decision(candidate, CHAMPION, tags.get(REASON, "it was made so by hand")))
    if number is None:
        none = f"the first of {candidate.name}" if candidate.number == "1" else f"{candidate.name} had no champion"
        return _alone(candidate, against(None), none)
    champion = Version(candidate.name, number, "")
    try:
        theirs = load(champion)
    except (ModelGoneError, EncodingError) as error:
        return _alone(candidate, against(None), f"{champion.uri}, champion until now, cannot be read ({error})")
    comparison = against(theirs)
    alias = CHAMPION if comparison.accepts(margin) else CHALLENGER
    return _conclude(Decision(candidate, alias, _reason(comparison, champion, margin), comparison), champion)


def _state(version: Version, tags: Mapping[str, str], known: Mapping[str, str]) -> str:
    """What a version is that was decided before."""
    champion, decided = known.get(CHAMPION), tags[DECISION]
    if champion == version.number:
        return f"is {CHAMPION}"
    if champion is None:
        return f"was decided to be {tags[DECISION]}; {version.name} has no {CHAMPION} now, `rollback {version.name} --to NUMBER` names one"
    now = f"now models:/{version.name}/{champion} is {CHAMPION}"
    if ROLLED_BACK in tags:
        return f"was {CHAMPION} and was rolled back, {now}"
    return f"was {CHAMPION}, {now}" if decided == CHAMPION else f"is {decided}"


def _alone(candidate: Version, comparison: Comparison, why: str) -> Decision:
    """Decide on a version that there is nobody to compare with; a figure that is not finite never wins."""
    alias = CHAMPION if comparison.accepts(0.0) else CHALLENGER
    figure = f"{comparison.rule} {comparison.candidate:.4f} on {comparison.examples:,} {_counted(comparison)}"
    return _conclude(Decision(candidate, alias, f"{why}; {figure}{'' if alias == CHAMPION else ', not finite'}", comparison))


def _reason(comparison: Comparison, champion: Version, margin: float) -> str:
    figures = f"{comparison.rule} {comparison.candidate:.4f}, that of {champion.uri} {comparison.champion:.4f}"
    return f"{figures} on the same {comparison.examples:,} {_counted(comparison)}: {_difference(comparison)}, margin {margin:.1%}"


def _difference(comparison: Comparison) -> str:
    theirs = comparison.champion or 0.0
    if not (math.isfinite(comparison.candidate) and math.isfinite(theirs)):
        return "not finite"
    worse = comparison.candidate / theirs - 1 if theirs else comparison.candidate
    return f"{worse:.1%} worse" if worse > 0 else f"{-worse:.1%} better" if worse < 0 else "as good"


def _counted(comparison: Comparison) -> str:
    return "sentences" if comparison.rule == BITS else "examples"


def _conclude(decision: Decision, champion: Version | None = None) -> Decision:
    """Tag the version with the numbers, move the alias, and last tag it as decided."""
    tags: dict[str, str] = {REASON: decision.reason}
    if compared := decision.comparison:
        figures = {"gate.candidate": compared.candidate, "gate.champion": compared.champion}
        tags |= {"gate.rule": compared.rule, "gate.examples": str(compared.examples)}
        tags |= {name: f"{figure:.6f}" for name, figure in figures.items() if figure is not None}
    if champion:
        tags["gate.against"] = champion.number
    _tag(decision.version, tags)
    (aliases.promote if decision.alias == CHAMPION else aliases.challenge)(decision.version)
    return _close(decision)


def _close(decision: Decision) -> Decision:
    _tag(decision.version, {DECISION: decision.alias})
    return decision


def _tag(version: Version, tags: Mapping[str, str]) -> None:
    with connect() as client:
        for name, value in tags.items():
            client.set_model_version_tag(version.name, version.number, name, value)
