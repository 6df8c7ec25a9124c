"""Aliases of a name: `champion`, `previous`, `challenger`.

In: a version. Out: aliases that lead to it. The decision that matters: a champion's tag `displaced` names the one before
it, and is set before any alias moves; `previous` only follows it. So a kill between two calls loses nobody, `mend` puts
right what it left, and a way back goes on as far as there were champions. Whoever calls what moves an alias holds the lease
`gate` on the name.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from mlflow.exceptions import MlflowException

from pipeline.errors import RegistryError

from .registry import Version, connect

CHAMPION, PREVIOUS, CHALLENGER = "champion", "previous", "challenger"
DECISION, REASON = "gate.decision", "gate.reason"  # tags of a version that was decided on
ROLLED_BACK = "rolled_back"  # a tag: when
_DISPLACED = "displaced"


def of(name: str) -> dict[str, str]:
    """The numbers of the versions that a name's aliases are on.

    :raises RegistryError: there is no such name.
    """
    with connect() as client:
        return {alias: str(number) for alias, number in client.get_registered_model(name).aliases.items()}


def mend(name: str) -> dict[str, str]:
    """What `of` gives, once what a kill or a deletion left is put right.

    Where the champion's version was deleted, and its alias with it, the previous one is champion again. `previous` is on the
    version that the champion displaced; a champion is not one that was rolled back.
    """
    known = of(name)
    champion = known.get(CHAMPION) or known.get(PREVIOUS)
    if champion is None:
        return known
    tags = _tags(name, champion) or {}
    before = tags.get(_DISPLACED)
    if before and _tags(name, before) is None:
        before = None
    with connect() as client:
        if CHAMPION not in known:
            client.set_registered_model_alias(name, CHAMPION, champion)
        if before and before != known.get(PREVIOUS):
            client.set_registered_model_alias(name, PREVIOUS, before)
        if not before and PREVIOUS in known:
            client.delete_registered_model_alias(name, PREVIOUS)
        if ROLLED_BACK in tags:
            client.delete_model_version_tag(name, champion, ROLLED_BACK)
    return of(name)


def promote(version: Version) -> None:
    """Make a version the champion, and the one that was the previous one."""
    name, known = version.name, of(version.name)
    with connect() as client:
        old = known.get(CHAMPION)
        if old != version.number:
            if old:
                client.set_model_version_tag(name, version.number, _DISPLACED, old)
                client.set_registered_model_alias(name, PREVIOUS, old)
            client.set_registered_model_alias(name, CHAMPION, version.number)
        if known.get(CHALLENGER) == version.number:
            client.delete_registered_model_alias(name, CHALLENGER)


def challenge(version: Version) -> None:
    """Make a version the challenger."""
    with connect() as client:
        client.set_registered_model_alias(version.name, CHALLENGER, version.number)


def roll_back(name: str) -> tuple[Version, Version]:
    """Make the champion's predecessor the champion again. Returns the champion that was, and the one that is.

    :raises RegistryError: there is no champion, none before it, or that one is deleted.
    """
    number = mend(name).get(CHAMPION)
    if number is None:
        raise RegistryError(f"{name}: has no champion; wanted one to go back from")
    before = _see(name, number).get(_DISPLACED)
    if before is None:
        raise RegistryError(f"models:/{name}/{number}: displaced no other champion; name the version to go back to by --to NUMBER")
    _see(name, before)
    _go_back(name, [number], before)
    return Version(name, number, ""), Version(name, before, "")


def make_champion(name: str, number: str) -> tuple[Version | None, Version]:
    """Make a version the champion whatever the gate says. Returns the champion that was, and the one that is.

    One that was champion before the present one is gone back to, so that no way back goes round in a circle.

    :raises RegistryError: there is no such version.
    """
    _see(name, number)
    old = mend(name).get(CHAMPION)
    champions = list(_champions(name, old)) if old else []
    if number in champions[1:]:
        _go_back(name, champions[: champions.index(number)], number)
    else:
        promote(Version(name, number, ""))
        with connect() as client:  # so that a run may build on it
            client.set_model_version_tag(name, number, REASON, "it was made so by hand")
            client.set_model_version_tag(name, number, DECISION, CHAMPION)
        mend(name)  # it may have been rolled back once
    return Version(name, old, "") if old else None, Version(name, number, "")


def _go_back(name: str, left: Sequence[str], number: str) -> None:
    """Make an earlier champion the champion. Its alias moves last, so that a call after a kill goes no further back.

    :param left: the champions after it.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    before = _see(name, number).get(_DISPLACED)
    with connect() as client:
        for each in left:
            client.set_model_version_tag(name, each, ROLLED_BACK, now)
        if before and _tags(name, before) is not None:
            client.set_registered_model_alias(name, PREVIOUS, before)
        client.set_registered_model_alias(name, CHAMPION, number)
    mend(name)


def _champions(name: str, number: str) -> Iterator[str]:
    """A champion and those before it, as far as they are there."""
    known = set[str]()
    while number not in known and (tags := _tags(name, number)) is not None:
        known.add(number)
        yield number
        number = tags.get(_DISPLACED, number)


def _tags(name: str, number: str) -> Mapping[str, str] | None:
    """The tags of a version; None: there is no such version."""
    with connect() as client:
        try:
            return dict(client.get_model_version(name, number).tags)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None


def _see(name: str, number: str) -> Mapping[str, str]:
    """The tags of a version that is to be there.

    :raises RegistryError: it is not.
    """
    tags = _tags(name, number)
    if tags is None:
        raise RegistryError(f"models:/{name}/{number}: no such version; --to NUMBER takes one that there is")
    return tags
