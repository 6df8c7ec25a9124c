"""Work pools: by them a run goes to a worker that suits it.

In: a name. Out: a pool of that name on the Prefect server. The decision that matters: a pool that is there stays as it is,
since its limit and its variables are the team's to set.
"""

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker


def make(name: str) -> bool:
    """Make a pool of processes, where there is none of the name. Returns whether it was made."""
    wanted = WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=ProcessWorker.get_default_base_job_template())
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            try:
                client.create_work_pool(wanted)
            except ObjectAlreadyExists:  # another was faster
                return False
            return True
    return False
