"""What each stage of a run takes: bytes, processor time, time, memory, device time.

In: quantities. Out: a line for each stage, in the order of the flow. The decision that matters: nothing is taken to overlap
(products and the sum over devices, training and checkpoints), so that a time is an upper one for its rates.
"""

from dataclasses import dataclass

from . import arithmetic
from .quantities import Part, Quantities

_COPIES = 4  # of the weights: the run, the encoder, MLflow's, and that which sample encodings are made with


@dataclass(frozen=True)
class Stage:
    """What a stage takes.

    :param size: bytes that stay in the store. :param processor: seconds of one core. :param seconds: by the clock.
    :param memory: bytes of the process that takes most, or of a device. :param device: seconds of all devices together.
    """

    name: str
    size: float = 0.0
    processor: float = 0.0
    seconds: float = 0.0
    memory: float = 0.0
    device: float = 0.0
    note: str = ""


def stages(run: Quantities) -> list[Stage]:
    """The stages of a run, in their order."""
    return [
        _corpus(run),
        _vocabulary(run),
        *(_shards(run, part) for part in run.parts),
        *(_training(run, part) for part in run.parts),
        _evaluation(run),
        _checkpoints(run),
        _registration(run),
    ]


def amount(count: float) -> str:
    """A number of rows, as a person says it."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f}"


def _corpus(run: Quantities) -> Stage:
    text = run.train_text + run.held_out_text
    seconds = text / run.rates.fetch
    return Stage("corpus", text, seconds, seconds, run.rates.stage_memory, note="one core")


def _vocabulary(run: Quantities) -> Stage:
    text, settings, rates = run.train_text, run.preset.vocabulary, run.rates
    if settings.kind == "file":
        return Stage("vocabulary", note="brought along")
    if run.of_words:
        processor = text / rates.count_words
        return Stage("vocabulary", 0.0, processor, processor / run.cores, rates.stage_memory, note="words counted")
    taught = min(text, settings.megabytes * 1e6)
    picking, training = text / rates.pick, taught / rates.train_wordpiece
    seconds = picking / run.cores + training
    memory = rates.wordpiece_memory
    return Stage("vocabulary", 0.0, picking + training, seconds, memory, note=f"of {taught / 1e6:,.0f} MB of text, one core")


def _shards(run: Quantities, part: Part) -> Stage:
    rates, text = run.rates, run.train_text + run.held_out_text
    sort = rates.sort_words if run.of_words else rates.sort
    processor = text / sort + (part.rows + part.held_out) * part.row / rates.go_through
    memory = max(run.builder_bytes(split) for split in ("train", "valid"))
    note = f"{amount(part.rows)} rows of {part.row:.0f} tokens, {run.cores} builders"
    return Stage(part.name.replace("training", "shards"), part.shard_bytes, processor, processor / run.cores, memory, note=note)


def compute_seconds(run: Quantities, part: Part) -> float:
    """Of a step, on the device with most rows."""
    return run.step_flop(part) / run.flop_rate


def network_seconds(run: Quantities) -> float:
    """Of a step's sums over devices."""
    return run.network_bytes / (run.scale.network * 1e9)


def _training(run: Quantities, part: Part) -> Stage:
    seconds = part.steps * (compute_seconds(run, part) + network_seconds(run))
    at_a_time = f" in {run.micro_batches}" if run.micro_batches > 1 else ""
    sums = f", {network_seconds(run) * part.steps / seconds:.0%} of it sums" if run.scale.devices > 1 else ""
    note = f"{part.steps:,} steps of {run.device_rows} rows a device{at_a_time}{sums}"
    return Stage(part.name, 0.0, 0.0, seconds, run.device_bytes(part), seconds * run.scale.devices, note)


def total(found: list[Stage]) -> Stage:
    """Of all stages, one after another."""
    size, processor, seconds, device = (sum(getattr(stage, name) for stage in found) for name in ("size", "processor", "seconds", "device"))
    return Stage("total", size, processor, seconds, 0.0, device)


def training_seconds(run: Quantities) -> float:
    """Of all steps."""
    return sum(_training(run, part).seconds for part in run.parts)


def _evaluation(run: Quantities) -> Stage:
    seconds = sum(run.evaluation_flop(part) for part in run.parts) / (run.flop_rate * run.scale.devices)
    times = sum(part.evaluations for part in run.parts)
    note = f"{times} x {amount(run.parts[0].held_out)} rows"
    return Stage("evaluation", 0.0, 0.0, seconds, 0.0, seconds * run.scale.devices, note)


def _checkpoints(run: Quantities) -> Stage:
    settings = run.preset.training
    by_time = training_seconds(run) / settings.checkpoint_every_seconds if settings.checkpoint_every_seconds else 0
    by_steps = settings.steps / settings.checkpoint_every_steps if settings.checkpoint_every_steps else 0
    times = int(max(by_time, by_steps))
    state, log = arithmetic.checkpoint_bytes(run.parameters), run.rates.log_line * settings.steps
    seconds = times * (state + log / 2) / run.rates.write
    size = min(times, settings.keep_checkpoints) * (state + log)
    return Stage(
        "checkpoints",
        size,
        seconds,
        seconds,
        0.0,
        seconds * run.scale.devices,
        f"{times:,} of {state / 1e9:,.2f} GB" if times else "none: training is shorter than their interval",
    )


def curve_seconds(run: Quantities) -> float:
    """That MLflow takes for the curve, while training runs."""
    return run.preset.training.steps / run.rates.log_curve


def _registration(run: Quantities) -> Stage:
    weights = 4.0 * run.parameters
    seconds = _COPIES * weights / run.rates.write
    return Stage("registration", (_COPIES - 1) * weights, seconds, seconds, _COPIES * weights, note="run, encoder, MLflow's copy")
