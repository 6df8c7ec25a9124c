"""Addresses: what of them may be shown and recorded.

In: a path, or an fsspec address such as `s3://bucket/bert`. Out: the same without what nobody else may read, or an error. The
decision that matters: credentials come by the ecosystem's own means (environment, profiles, agents), so that an address that
carries some is refused wherever it would be recorded; a corpus's alone is taken apart.
"""

import re

from .errors import SettingsError

_LOCAL = r"(?:[^:]|:[^:/]|:/[^:/])*:?"
_HOST = r"(?:\[[\da-fA-F:]*\]|[^/@?#:]*)(?::\d*)?"
_LOGIN = r"s(?:ftp|sh)://[^/@:?#]+@"  # a user's name alone is no secret
_PATH = r"(?:/(?:[^?#:]|:[^?#:])*:?)?"
_LINK = rf"(?:file://.*|{_LOCAL}|(?:[a-zA-Z][\w+.-]*://|{_LOGIN}){_HOST}{_PATH})"
PLAIN = rf"^{_LINK}(?:::{_LINK})*$"
"""What an address without credentials matches; without looking ahead, which the regular expressions of pydantic cannot."""


def protocol_of(address: str) -> str:
    """How the file is reached: `s3`, `sftp` and so on; of addresses that are chained by `::`, the first; `file` for a path."""
    scheme, mark, _ = address.partition("::")[0].partition("://")
    return scheme.lower() if mark else "file" if "::" not in address else address.partition("::")[0]


def without_credentials(address: str) -> str:
    """An address as it may be shown and recorded: without user, password, query (signatures stand there) or fragment."""
    parts = []
    for link in address.split("::"):  # fsspec chains addresses
        scheme, mark, rest = link.partition("://")
        if mark and scheme != "file":
            host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
            link = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
        parts.append(link)
    return "::".join(parts)


def refuse_credentials(name: str, address: str) -> None:
    """Refuse an address with a password or a signature in it.

    :param name: of the setting that holds it.
    :raises SettingsError: says what to use instead, without them.
    """
    if not re.fullmatch(PLAIN, address, re.DOTALL):
        raise SettingsError(
            f"{name}: got {without_credentials(address)} with a user, a password or a query, wanted it without, since it is recorded; "
            "give credentials by the store's own means: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile, ssh's agent or "
            "~/.ssh/config; or give a local copy"
        )
