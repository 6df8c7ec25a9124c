"""`python -m flows.pools`: the work pools, made on the server that PREFECT_API_URL names where they are missing.

In: nothing but that address. Out: the pools that `prefect.yaml` names. The decision that matters: a pool that is there
stays as it is, since its limit and its variables are the team's to set.
"""

import os
import sys

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker

from pipeline.errors import PipelineError, SettingsError

from .servers import POOLS
from .services import check_prefect


def main() -> int:
    """Run the command line. Returns the exit status."""
    try:
        if not (address := os.environ.get("PREFECT_API_URL")):
            raise SettingsError("PREFECT_API_URL: got none, wanted the address of the Prefect server to make pools on")
        check_prefect(address)
        for name in POOLS:
            print(f"pool {name}: {'made' if make(name) else 'is there'}")
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def make(name: str) -> bool:
    """Make a pool of processes, where there is none of the name. Returns whether it was made."""
    wanted = WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=ProcessWorker.get_default_base_job_template())
    with get_client(sync_client=True) as client:
        try:
            client.create_work_pool(wanted)
        except ObjectAlreadyExists:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
