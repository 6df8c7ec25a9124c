"""`python -m flows.automations`: what the Prefect server does by itself, brought to the server that PREFECT_API_URL names.

In: nothing but that address. Out: the pools, and automations, made once and changed where their definition here has. The decision that
matters: a run whose heartbeats stop, since its worker was killed or its machine has died, is marked Crashed, by which it
shows as what it is and whoever waits for it goes on. Only runs of deployments: `prefect.yaml` gives them heartbeats often
enough. A run whose cancelling nobody ends, since no process had it yet, is marked Cancelled.
"""

import os
import sys
from datetime import timedelta

from prefect.automations import Automation, ChangeFlowRunState, EventTrigger, Posture
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from pipeline.errors import PipelineError, SettingsError

from . import pools
from .names import POOLS
from .services import START_SECONDS, check_prefect

STALE = "BERT_STALE_SECONDS"
STALE_SECONDS = 90  # three heartbeats
CANCEL_SECONDS = 60
FLOWS = ["pretrain-bert", "pretrain-encoder", "watch-corpus", "finetune-encoder"]
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Crashed", "Cancelled")}
_STALE_MESSAGE = (
    "The run's heartbeats stopped: its worker or its machine has died. "
    "Run the deployment again with the same parameters: it goes on from the last checkpoint. "
    "A run that another one waits for is run again by that one."
)


def main() -> int:
    """Run the command line. Returns the exit status."""
    try:
        if not (address := os.environ.get("PREFECT_API_URL")):
            raise SettingsError("PREFECT_API_URL: got none, wanted the address of the Prefect server to bring automations to")
        wanted = stale_runs(stale_seconds()), endless_cancels(CANCEL_SECONDS)
        check_prefect(address, START_SECONDS)  # one that has only just started may be slow
        for name in POOLS:
            print(f"pool {name}: {'made' if pools.make(name) else 'is there'}")
        for automation in wanted:
            print(f"automation {automation.name!r}: {bring(automation)}")
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def stale_seconds() -> int:
    """How long a run may be silent: BERT_STALE_SECONDS, or the default.

    :raises SettingsError: the environment's is no number, or too small for a run's heartbeats, one each 30 seconds.
    """
    text = os.environ.get(STALE) or str(STALE_SECONDS)
    if not text.isdecimal() or int(text) <= 30:
        raise SettingsError(f"{STALE}: got {text!r}, wanted a whole number above 30, the seconds between heartbeats")
    return int(text)


def stale_runs(seconds: int) -> Automation:
    """Marks a run Crashed whose heartbeats stopped. Prefect looks after `seconds`, at the latest after twice as many."""
    crashed = ChangeFlowRunState(name="Crashed", state=StateType.CRASHED, message=_STALE_MESSAGE, force=False)
    return Automation(
        name="stale runs of pretrain-bert",
        description=f"Marks a run Crashed that has said nothing for {seconds} seconds.",
        trigger=_silence({_HEARTBEAT}, {_HEARTBEAT, *_ENDS}, seconds),
        actions=[crashed],
    )


def endless_cancels(seconds: int) -> Automation:
    """Marks a run Cancelled that is still Cancelling: one that was cancelled before a process had it is ended by nobody."""
    cancelled = ChangeFlowRunState(name="Cancelled", state=StateType.CANCELLED, message="No process had the run.", force=False)
    return Automation(
        name="endless cancels of pretrain-bert",
        description=f"Marks a run Cancelled that has been Cancelling for {seconds} seconds.",
        trigger=_silence({"prefect.flow-run.Cancelling"}, _ENDS, seconds),
        actions=[cancelled],
    )


def _silence(after: set[str], expect: set[str], seconds: int) -> EventTrigger:
    """Fires for a run of a deployment of these flows where one kind of event is not followed by another in time."""
    return EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=[
            {"prefect.resource.role": "flow", "prefect.resource.name": FLOWS},
            {"prefect.resource.role": "deployment"},
        ],
        after=after,
        expect=expect,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=seconds),
    )


def bring(wanted: Automation) -> str:
    """Make an automation, or bring the one of its name into line; switched off it stays off. Returns what was done."""
    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(wanted.name)
    if not found:
        wanted.create()
        return "made"
    known = Automation(**found[0].model_dump())
    wanted = wanted.model_copy(update={"id": known.id, "enabled": known.enabled})
    if _definition(wanted) == _definition(known):
        return "as it is here"
    wanted.update()
    return "changed"


def _definition(automation: Automation) -> dict[str, object]:
    return automation.model_dump(include={"description", "trigger", "actions"})


if __name__ == "__main__":
    sys.exit(main())
