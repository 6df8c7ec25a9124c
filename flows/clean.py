"""`pretrain-bert clean`: removes from the store what no registered version and no recent run leads to.

In: since when something counts as recent. Out: a line for each folder that may go, and the folders gone where that was
asked for. The decision that matters: the registry is asked after the store was read and before anything is removed;
one that does not answer, or has never heard of this project, ends it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from pipeline.addresses import without_credentials
from pipeline.clean import Entry, at_work, keys_in, removable, remove, survey
from pipeline.errors import PipelineError, SettingsError
from pipeline.storage import Store

from . import registry
from .places import artifacts, mlflow_database, store, tracking_uri


def clean(since: datetime, *, yes: bool) -> None:
    """Show what may go, and remove it.

    :param since: what was made, or run, after this is kept. :param yes: remove.
    :raises PipelineError: something is being made. :raises RegistryError: the registry cannot say what is in use; nothing is removed then.
    """
    if not store().local_root and tracking_uri() == mlflow_database():
        raise SettingsError(f"MLFLOW_TRACKING_URI: got none, wanted the registry of all that use {store().root}, not that of this machine")
    if yes and (busy := at_work(store())):
        raise PipelineError(f"{store().root}: in use by {', '.join(busy)}; nothing was removed; wait for their end and run it again")
    entries = survey(store(), Store(str(artifacts())))
    if not entries:
        print("nothing to remove")
        return
    versions, runs = registry.tags_in_use(since)
    print(f"kept: what leads to {len(versions)} versions and {len(runs)} runs in {without_credentials(tracking_uri())}")
    found = removable(entries, keys_in([versions, runs]), since)
    if not found:
        print("nothing to remove")
        return
    _show(found)
    total = f"{len(found)} of {len(entries)} folders, {_size(sum(entry.size for entry in found))}"
    if not yes:
        print(f"{total}; nothing was removed: with --yes (make clean-artifacts YES=1) it is")
        return
    for entry in found:
        remove(entry)
    print(f"{total}; removed")


def _show(entries: Sequence[Entry]) -> None:
    now = datetime.now(UTC)
    for entry in entries:
        print(f"{entry.stage + '/' + entry.key:<33}{_size(entry.size):>10}{(now - entry.changed).days:>6} days old")


def _size(count: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"
