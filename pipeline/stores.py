"""Which stores may hold outputs.

In: the address of a store. Out: nothing, or an error that says why not. The decision that matters: two machines stay out of each
other's way by files that only one of them can create, so a store is taken where that is known to hold, taken with a warning where
its client says so and nobody tried, and refused anywhere else.
"""

import functools
import logging

from .addresses import protocol_of, refuse_credentials, without_credentials
from .errors import SettingsError

TRIED = frozenset({"file", "local", "memory", "s3", "s3a", "sftp", "ssh"})
UNTRIED = frozenset({"gs", "gcs", "az", "abfs", "abfss"})  # gcsfs sends ifGenerationMatch=0, adlfs If-None-Match
_MEMORY = "memory"

logger = logging.getLogger(__name__)


def check(name: str, address: str) -> None:
    """See that a store creates a file only if it is absent, and that its address holds no credentials.

    :param name: of the setting that holds the address.
    :raises SettingsError: it does not, or nobody knows.
    """
    refuse_credentials(name, address)
    protocol = protocol_of(address)
    if protocol in UNTRIED:
        _warn(protocol)
    elif protocol not in TRIED:
        raise SettingsError(
            f"{name}: got {without_credentials(address)}, whose protocol {protocol} is not known to create a file only if it is absent, "
            "by which two machines stay out of each other's way; wanted a folder, s3:// or sftp://; a corpus may lie there all the same"
        )


def check_shared(name: str, address: str) -> None:
    """See besides that other processes have it too, since training is one of its own.

    :raises SettingsError: it is in this process's memory.
    """
    check(name, address)
    if protocol_of(address) == _MEMORY:
        raise SettingsError(f"{name}: got {address}, which no other process sees, and training is one; wanted a folder, s3:// or sftp://")


@functools.cache
def _warn(protocol: str) -> None:
    logger.warning(
        "stores at %s:// are untried: by its client's code it creates files only if absent, but nobody has run it here", protocol
    )
