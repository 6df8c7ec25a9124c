"""A run that is planned on one machine and trained on another.

In: a run whose shards are published. Out: the stage `plan`, a `run.json` that names no machine, and the same run on whichever
machine opens it. The decision that matters: addresses in it are those within the store, so that each machine may reach the
store by a path of its own.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..storage import Output, Recipe, Store, open_output, verify_digests
from .run import BUCKETS, FILE, RunSettings, read_run

STAGE = "plan"
FORMAT = 1
_ADDRESSES = ("vocabulary", "encoder")


def publish_plan(store: Store, run: RunSettings) -> Output:
    """Publish a run for another machine; its key holds every setting, those of the device too."""
    plan = _with_addresses(run, f"{run.store}/", "")
    plan = replace(plan, store="", work="")
    settings = {name: asdict(section) for name, section in (("shards", run.shards), ("model", run.model), ("training", run.training))}

    def build(folder: Path) -> dict[str, Any]:
        (folder / FILE).write_text(plan.text(), "utf-8")
        return {"run": run.key}

    return store.make(Recipe(STAGE, FORMAT, settings, run.inputs), build, verify=True)


def open_plan(store: Store, key: str, work: Path) -> RunSettings:
    """A planned run, as this machine has it.

    :param work: local folder under which the run gets one of its own.
    :raises PipelineError: there is no such plan. :raises DamagedOutputError: it is not whole.
    """
    output = open_output(store.address(STAGE, key))
    verify_digests(output)
    with store.local(output) as folder:
        plan = read_run(folder / FILE)
    run = _with_addresses(plan, "", f"{store.root}/")
    return replace(run, store=store.root, work=str(work.absolute() / run.key))


def _with_addresses(run: RunSettings, old: str, new: str) -> RunSettings:
    """The run with another beginning of its addresses."""

    def changed(address: str) -> str:
        return f"{new}{address.removeprefix(old)}" if address else ""

    changes: dict[str, Any] = {name: changed(getattr(run, name)) for name in _ADDRESSES}
    changes |= {name: [changed(address) for address in getattr(run, name)] for name in BUCKETS}
    return replace(run, **changes)
