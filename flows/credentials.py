"""Passwords of the team's servers, made once and kept in two files that only their owner can read.

In: a folder. Out: what clients need (`team.env`, for a shell to source) and what the servers alone need (`servers.env`).
The decision that matters: these two files and the environments of the processes that need them are the only places where a
password stands; a command line, which `ps` shows, a log and a state file hold none.
"""

import os
import secrets
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .services import ServiceError

TEAM, SERVERS = "team.env", "servers.env"
USER = "admin"
_LENGTH = 32  # bytes of randomness


@dataclass(frozen=True)
class Credentials:
    """Variables of the environment, by name.

    :param team: what a client shows: PREFECT_API_AUTH_STRING, MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD.
    :param servers: passwords of the database's roles, and the key by which MLflow signs its pages' forms.
    """

    team: Mapping[str, str]
    servers: Mapping[str, str]


def keep_credentials(folder: Path, addresses: Mapping[str, str], *, data: Path) -> Credentials:
    """Read both files, or make them where there are none, and note for clients where the servers are.

    :param data: the database's folder; where it is there, its passwords have to be there too.
    :raises ServiceError: a file is gone or lacks a variable, while the database knows what stood there.
    """
    wanted = {
        TEAM: {"PREFECT_API_AUTH_STRING": f"{USER}:{_secret()}", "MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": _secret()},
        SERVERS: {
            "POSTGRES_PASSWORD": _secret(),
            "PREFECT_DATABASE_PASSWORD": _secret(),
            "MLFLOW_DATABASE_PASSWORD": _secret(),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": _secret(),
        },
    }
    known = {name: read_variables(folder / name) for name in wanted}
    for name, made in wanted.items():
        missing = [variable for variable in made if not known[name].get(variable)]
        if missing and data.exists():
            todo = f"bring the file back from a backup, or move {data} away to begin anew"
            raise ServiceError(f"{folder / name}: got no {', '.join(missing)}, wanted the passwords that {data} was made with; {todo}")
    team = wanted[TEAM] | {name: value for name, value in known[TEAM].items() if value} | dict(addresses)
    servers = wanted[SERVERS] | {name: value for name, value in known[SERVERS].items() if value}
    for name, values in ((TEAM, team), (SERVERS, servers)):
        if values != known[name]:
            _write_variables(folder / name, values)
    return Credentials(team, servers)


def read_variables(path: Path) -> dict[str, str]:
    """Variables of a file of `export NAME=value` lines; none where there is no file.

    :raises ServiceError: a line has another form.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    found = {}
    for number, line in enumerate(lines, 1):
        if not (words := shlex.split(line, comments=True)):
            continue
        name, equals, value = words[-1].partition("=")
        if not equals or words[:-1] not in ([], ["export"]):
            raise ServiceError(f"{path}: line {number}: got no variable, wanted export NAME=value")  # the line may hold a password
        found[name] = value
    return found


def _write_variables(path: Path, values: Mapping[str, str]) -> None:
    """Write a file whole that nobody else could read at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # its mode is 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
        file.flush()
        os.fsync(file.fileno())
    Path(name).replace(path)


def _secret() -> str:
    return secrets.token_urlsafe(_LENGTH)
