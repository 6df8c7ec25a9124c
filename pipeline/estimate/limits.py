"""Where a run breaks first, and which setting moves it.

In: quantities. Out: limits that it passes, in the order of the flow. The decision that matters: each names the setting
that moves it, and the value to set where there is one, so that a line is something to type.
"""

import math
from dataclasses import dataclass

from ..data.build import GOOD_BUCKET
from ..settings import MOST_BUCKETS
from . import arithmetic
from .quantities import Part, Quantities
from .stages import Stage, amount, curve_seconds, network_seconds, stages, training_seconds

_UNREAD = 2  # times as many rows as training reads
_EVALUATION, _CHECKPOINTS, _NETWORK = 0.1, 0.02, 0.5  # shares of training


@dataclass(frozen=True)
class Limit:
    """Something that is too large.

    :param found: beside :param allowed: in one unit; it is passed where found is more. :param text: what it is, with both.
    :param knob: what moves it. :param of_devices: whether it hangs on how many there are.
    """

    stage: str
    found: float
    allowed: float
    text: str
    knob: str
    of_devices: bool = True

    @property
    def passed(self) -> bool:
        return self.found > self.allowed

    @property
    def share(self) -> float:
        """How much of what is allowed is taken."""
        return self.found / self.allowed


def limits(run: Quantities) -> list[Limit]:
    """Everything that can be too large, in the order of the flow."""
    found = {stage.name: stage for stage in stages(run)}
    return [
        _builder(run, "train", "shards.buckets", run.preset.shards.buckets),
        _builder(run, "valid", "shards.held_out_buckets", run.preset.shards.held_out_buckets),
        *(_unread(run, part) for part in run.parts),
        _building(run, sum(stage.seconds for name, stage in found.items() if name.startswith("shards"))),
        _window(run),
        *(_device(run, found[part.name]) for part in run.parts),
        _network(run),
        _days(run),
        _curve(run),
        _evaluation(run, found["evaluation"]),
        _checkpoints(run, found["checkpoints"]),
    ]


def _builder(run: Quantities, split: str, setting: str, buckets: int) -> Limit:
    takes, text = run.builder_bytes(split), run.bucket_text(split)
    knob = _more_buckets(setting, buckets, text * buckets)
    if split == "train" and run.preset.shards.dupe_factor > 1:
        knob += "; shards.dupe_factor=1 with shards.masking=dynamic takes less too"
    what = "train" if split == "train" else "held out"
    said = f"{what}, a bucket of {text / 1e6:,.0f} MB of text takes a builder {takes / 1e9:,.1f} GB of {run.scale.builder_memory:g}"
    return Limit("shards", takes, run.scale.builder_memory * 1e9, said, knob, of_devices=False)


def _more_buckets(setting: str, buckets: int, text: float) -> str:
    good = math.ceil(text / (GOOD_BUCKET << 20))
    if good <= buckets:
        return "builders of more memory"
    if good <= MOST_BUCKETS:
        return f"{setting}={good}"
    if buckets < MOST_BUCKETS:
        return f"{setting}={MOST_BUCKETS}, its most, makes buckets of {text / MOST_BUCKETS / 1e6:,.0f} MB"
    return f"less text, or builders of more memory: {setting} is at its most, {MOST_BUCKETS:,}"


def _unread(run: Quantities, part: Part) -> Limit:
    read = part.steps * run.preset.training.batch_size
    said = f"{amount(part.rows)} rows of {part.length} tokens are made, training reads {amount(read)}"
    knob = "shards.dupe_factor=1 with shards.masking=dynamic" if run.preset.shards.dupe_factor > 1 else "less text, or training.steps"
    return Limit("shards", part.rows, _UNREAD * read, said, knob, of_devices=False)


def _building(run: Quantities, seconds: float) -> Limit:
    training = training_seconds(run)
    said = f"{run.cores} builders take {seconds / 3600:,.1f} h, training {training / 3600:,.1f} h"
    return Limit("shards", seconds, training, said, "builders.workers (estimate: --cores), shards.dupe_factor")


def _window(run: Quantities) -> Limit:
    processes = min(run.scale.devices, run.scale.machine_devices)
    takes = processes * max(run.window_bytes(part) for part in run.parts)
    said = f"a machine with {processes} devices holds {takes / 1e9:,.1f} GB of rows, of {run.scale.machine_memory:g}"
    return Limit(
        "training",
        takes,
        run.scale.machine_memory * 1e9,
        said,
        "training.shuffle_buffer_rows, and shards.buckets: a window is whole buckets",
    )


def _device(run: Quantities, stage: Stage) -> Limit:
    training, memory = run.preset.training, run.scale.device_memory
    said = f"a device takes {stage.memory / 1e9:,.1f} GB of {memory:g}, {run.state_bytes / 1e9:,.1f} of them weights, gradients and moments"
    if run.state_bytes > memory * 1e9:
        several = " and more devices" if training.data_parallel == "fsdp" or run.scale.devices == 1 else ""
        return Limit(stage.name, stage.memory, memory * 1e9, said, f"training.data_parallel=fsdp{several}")
    return Limit(stage.name, stage.memory, memory * 1e9, said, f"training.micro_batch_size below {run.micro_rows}")


def _network(run: Quantities) -> Limit:
    whole = training_seconds(run)
    share = run.preset.training.steps * network_seconds(run) / whole
    said = f"sums over devices take {share:.0%} of the time: {run.device_rows} rows a device, {run.network_bytes / 1e9:,.2f} GB a step each"
    return Limit("training", share, _NETWORK, said, "training.batch_size (larger, with fewer training.steps), or fewer devices")


def _days(run: Quantities) -> Limit:
    days = training_seconds(run) / 86400
    said = f"{days:,.1f} days of {run.scale.days:g}"
    return Limit("training", days, run.scale.days, said, "training.steps, or more devices with a larger training.batch_size")


def _curve(run: Quantities) -> Limit:
    curve, training = curve_seconds(run), training_seconds(run)
    said = f"MLflow takes {curve / 3600:,.1f} h for {run.preset.training.steps:,} steps of the curve, training {training / 3600:,.1f} h"
    return Limit("training", curve, training, said, "the registry's database: PostgreSQL for SQLite")


def _evaluation(run: Quantities, stage: Stage) -> Limit:
    share = stage.seconds / training_seconds(run)
    said = f"{stage.note}, {share:.0%} of training"
    return Limit("evaluation", share, _EVALUATION, said, "training.evaluate_every, or a corpus with a smaller valid split of its own")


def _checkpoints(run: Quantities, stage: Stage) -> Limit:
    share = stage.seconds / training_seconds(run)
    said = f"{share:.1%} of training, {arithmetic.checkpoint_bytes(run.parameters) / 1e9:,.2f} GB each"
    return Limit("checkpoints", share, _CHECKPOINTS, said, "training.checkpoint_every_seconds")
