"""Aliases of a name: `champion`, `previous`, `challenger`.

In: a version. Out: aliases that lead to it. The decision that matters: a champion's tag `displaced` names the one before
it, and is set before any alias moves; so a kill between two calls loses nobody, and a way back goes on as far as there were
champions. Whoever calls holds the lease `gate` on the name.
"""

from datetime import UTC, datetime

from mlflow.exceptions import MlflowException

from pipeline.errors import RegistryError

from .registry import Version, connect

CHAMPION, PREVIOUS, CHALLENGER = "champion", "previous", "challenger"
_DISPLACED, _ROLLED_BACK = "displaced", "rolled_back"


def of(name: str) -> dict[str, str]:
    """The numbers of the versions that a name's aliases are on.

    :raises RegistryError: there is no such name.
    """
    with connect() as client:
        return {alias: str(number) for alias, number in client.get_registered_model(name).aliases.items()}


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
    number = of(name).get(CHAMPION)
    if number is None:
        raise RegistryError(f"{name}: has no champion; wanted one to go back from")
    before = _displaced_by(name, number)
    if before is None:
        raise RegistryError(f"models:/{name}/{number}: displaced no other champion; name the version to go back to by --to NUMBER")
    _see(name, before)
    with connect() as client:
        client.set_model_version_tag(name, number, _ROLLED_BACK, datetime.now(UTC).isoformat(timespec="seconds"))
        client.set_registered_model_alias(name, CHAMPION, before)
        if earlier := _displaced_by(name, before):
            client.set_registered_model_alias(name, PREVIOUS, earlier)
        else:
            client.delete_registered_model_alias(name, PREVIOUS)
    return Version(name, number, ""), Version(name, before, "")


def make_champion(name: str, number: str) -> tuple[Version | None, Version]:
    """Make a version the champion whatever the gate says. Returns the champion that was, and the one that is.

    :raises RegistryError: there is no such version.
    """
    _see(name, number)
    old = of(name).get(CHAMPION)
    promote(Version(name, number, ""))
    return Version(name, old, "") if old else None, Version(name, number, "")


def _displaced_by(name: str, number: str) -> str | None:
    """The champion before one, by its tag."""
    with connect() as client:
        found = client.get_model_version(name, number).tags.get(_DISPLACED)
    return str(found) if found else None


def _see(name: str, number: str) -> None:
    """See that a version is there.

    :raises RegistryError: it is not.
    """
    with connect() as client:
        try:
            client.get_model_version(name, number)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise RegistryError(f"models:/{name}/{number}: no such version; --to NUMBER takes one that there is") from None
