"""Aliases of a name: `champion`, `previous`, `challenger`.

In: a version. Out: aliases that lead to it. The decision that matters: `previous` moves before `champion`, so that a kill
between the two loses neither; whoever calls holds the lease `gate` on the name.
"""

from .registry import Version, connect

CHAMPION, PREVIOUS, CHALLENGER = "champion", "previous", "challenger"


def of(name: str) -> dict[str, str]:
    """The numbers of the versions that a name's aliases are on."""
    with connect() as client:
        return {alias: str(number) for alias, number in client.get_registered_model(name).aliases.items()}


def promote(version: Version) -> None:
    """Make a version the champion, and the one that was the previous one."""
    known = of(version.name)
    if known.get(CHAMPION) == version.number:
        return
    with connect() as client:
        if CHAMPION in known:
            client.set_registered_model_alias(version.name, PREVIOUS, known[CHAMPION])
        client.set_registered_model_alias(version.name, CHAMPION, version.number)
        if known.get(CHALLENGER) == version.number:
            client.delete_registered_model_alias(version.name, CHALLENGER)


def challenge(version: Version) -> None:
    """Make a version the challenger."""
    with connect() as client:
        client.set_registered_model_alias(version.name, CHALLENGER, version.number)
