"""PostgreSQL on this machine, for the team's servers.

In: Debian's binaries, a folder, a port, passwords. Out: a database server on loopback, with a role and a database for each
server that keeps its data there. The decision that matters: a password alone lets anybody in, also on this machine; it
travels by the environment and by standard input, and is in no command line and no log.
"""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .services import HOST, ServiceError, as_user

INSTALL = "apt-get install postgresql"
USER = "postgres"
"""Whom Debian's package makes; the database's own superuser has this name too."""
_DEBIAN = Path("/usr/lib/postgresql")
_NEEDED = ("initdb", "postgres", "pg_isready", "psql")
_NAME = re.compile(r"[a-z_]+")


@dataclass(frozen=True)
class Postgres:
    """A database server.

    :param folder: of its data, made by `initialise`. :param password: its superuser's.
    :param binaries: folder of its programs. :param user: whom it runs as; None: as whoever starts it.
    """

    folder: Path
    port: int
    password: str
    binaries: Path
    user: str | None

    @property
    def command(self) -> list[str]:
        """It listens on loopback alone; without a socket's file no path can be too long for one."""
        options = ["-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="]
        return [str(self.binaries / "postgres"), "-D", str(self.folder), "-p", str(self.port), *options]

    def initialise(self) -> None:
        """Make the data's folder whole or not at all, unless it is there.

        :raises ServiceError: it cannot be made.
        """
        if self.folder.exists():
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix="postgres-") as name:
            staging = Path(name)
            if self.user:
                shutil.chown(staging, self.user)
                self._check_way(staging)
            secret = staging / "password"
            secret.touch(0o600)
            secret.write_text(self.password, "utf-8")
            if self.user:
                shutil.chown(secret, self.user)
            options = ["--username", USER, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8"]
            self._run("initdb", [*options, "--pwfile", str(secret), "--pgdata", str(staging / "data")], user=self.user)
            (staging / "data").rename(self.folder)

    def accepts(self) -> bool:
        """Whether it lets clients in yet."""
        asked = [str(self.binaries / "pg_isready"), "-q", "-h", HOST, "-p", str(self.port), "-U", USER]
        return subprocess.run(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def make_database(self, name: str, password: str) -> None:
        """Make a role and its database of the same name, where they are missing; the role's password is the given one.

        :raises ServiceError: the server refuses.
        """
        assert _NAME.fullmatch(name), name
        assert re.fullmatch(r"[\w-]+", password, re.ASCII), "a password that wants quoting"
        statements = f"""
SET log_min_error_statement = panic;
SELECT 'CREATE ROLE {name} LOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') \\gexec
ALTER ROLE {name} PASSWORD '{password}';
SELECT 'CREATE DATABASE {name} OWNER {name}' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{name}') \\gexec
REVOKE ALL ON DATABASE {name} FROM PUBLIC;
"""  # noqa: S608  both are checked above; the first line keeps the password out of the log where a statement fails
        where = ["-h", HOST, "-p", str(self.port), "-U", USER, "-d", "postgres"]
        self._run("psql", ["-X", "-q", "-v", "ON_ERROR_STOP=1", *where], said=statements, environment={"PGPASSWORD": self.password})

    def _run(
        self, program: str, options: list[str], *, said: str = "", environment: Mapping[str, str] | None = None, user: str | None = None
    ) -> None:
        command = [str(self.binaries / program), *options]
        settings = os.environ | dict(environment or {})
        done = subprocess.run(command, input=said, capture_output=True, text=True, env=settings, cwd="/", **as_user(user))
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ServiceError(f"{program} for {self.folder}: {lines[-1]}")

    def _check_way(self, folder: Path) -> None:
        """:raises ServiceError: the user whom it runs as cannot come to a folder."""
        done = subprocess.run(["/usr/bin/test", "-w", str(folder)], cwd="/", **as_user(self.user))
        if done.returncode:
            todo = "let it pass there (chmod o+x), set POSTGRES_DATA to a folder elsewhere, or run make up as another user than root"
            raise ServiceError(f"{self.folder}: as root, PostgreSQL runs as the user {self.user}, who cannot enter that path; {todo}")


def find_postgres(folder: Path, port: int, password: str) -> Postgres:
    """The server of a data folder, by binaries of the release that made it, else the newest.

    :raises ServiceError: it is not installed, or root has nobody to run it as.
    """
    user = _user_for_root() if os.geteuid() == 0 else None
    return Postgres(folder, port, password, _find_binaries(folder), user)


def _find_binaries(folder: Path) -> Path:
    found = {entry.parent.name: entry for entry in _DEBIAN.glob("*/bin") if _has_programs(entry)}
    made_by = folder / "PG_VERSION"
    try:
        release = made_by.read_text("utf-8").strip()
    except FileNotFoundError:
        release = max(found, key=_as_number, default="")
    except PermissionError as error:
        raise ServiceError(f"{folder}: got data of another user, wanted your own; run make up as the user who made it") from error
    if binaries := found.get(release) or _on_path():
        return binaries
    if found:
        there = f"programs of PostgreSQL {', '.join(sorted(found))}"
        raise ServiceError(f"{folder}: got {there}, wanted those of {release}, which made this data; apt-get install postgresql-{release}")
    raise ServiceError(f"PostgreSQL: got no {', '.join(_NEEDED)} in {_DEBIAN}/*/bin or on PATH; {INSTALL}")


def _as_number(release: str) -> int:
    return int(release) if release.isdecimal() else 0


def _on_path() -> Path | None:
    program = shutil.which("postgres")
    return folder if program and _has_programs(folder := Path(program).resolve().parent) else None


def _has_programs(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _NEEDED)


def _user_for_root() -> str:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        raise ServiceError(f"PostgreSQL: runs for nobody as root, and there is no user {USER} to run it as; {INSTALL}") from None
    return USER
