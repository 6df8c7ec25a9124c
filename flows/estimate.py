"""`pretrain-bert estimate`: what a run takes at a scale, and where it breaks first.

In: a recipe, a corpus's size, machines. Out: a line for each stage, then one for each limit that is passed, with the setting
that moves it. The decision that matters: every assumption stands in what is printed, so that a copied table says what it is of.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from pipeline.errors import SettingsError
from pipeline.estimate.limits import Limit, limits
from pipeline.estimate.quantities import Quantities
from pipeline.estimate.scale import Rates, Scale
from pipeline.estimate.stages import Stage, stages, total
from pipeline.settings import Preset

from .options import read_value

_SCALE = [entry.name for entry in dataclasses.fields(Scale) if entry.name != "devices"]


def add_estimate_options(parser: argparse.ArgumentParser) -> None:
    """An option for each field of a scale, and one for all rates."""
    for entry in dataclasses.fields(Scale):
        required = entry.default is dataclasses.MISSING
        known = "" if required else f" (default: {entry.default:g})"
        several = "; several, as in 1,8,64, are set beside one another" if entry.name == "devices" else ""
        parser.add_argument(
            f"--{entry.name.replace('_', '-')}", metavar="N", required=required, help=entry.metadata["description"] + several + known
        )
    names = ", ".join(entry.name for entry in dataclasses.fields(Rates))
    parser.add_argument("--rate", action="append", default=[], metavar="NAME=N", help=f"another rate than was measured; of {names}")


def runs_of(options: argparse.Namespace, preset: Preset) -> list[Quantities]:
    """What the options ask for, once for each number of devices.

    :raises SettingsError: a number is none, or out of its limits; a rate is unknown.
    """
    given = {name: read_value(text) for name in _SCALE if (text := getattr(options, name)) is not None}
    rates: dict[str, Any] = {}
    for entry in options.rate:
        name, equals, text = entry.partition("=")
        if not equals:
            raise SettingsError(f"--rate: got {entry!r}, wanted NAME=N")
        rates[name] = read_value(text)
    if preset.vocabulary.kind == "file" and not given.get("vocabulary_size"):
        raise SettingsError("estimate.vocabulary_size: got none with vocabulary.kind file, wanted how many tokens the file has")
    numbers = [read_value(number) for number in options.devices.split(",")] if options.devices is not None else [1]
    return [Quantities(preset, Scale.read(given | {"devices": number}), Rates.read(rates)) for number in numbers]


def estimate_lines(runs: Sequence[Quantities]) -> list[str]:
    """The estimate, as it is printed; of limits that one setting moves, the one that is passed by most.

    :param runs: of one recipe and corpus on other numbers of devices.
    """
    return [*_assumptions(runs), "", *_table(runs), "", *_limit_lines(runs)]


def _assumptions(runs: Sequence[Quantities]) -> list[str]:
    run, scale = runs[0], runs[0].scale
    flop = sum(run.part_flop(part) for part in run.parts)
    numbers = ", ".join(str(run.scale.devices) for run in runs)
    several = any(run.scale.devices > 1 for run in runs)
    between = f", {run.preset.training.data_parallel}, {scale.network:g} GB/s from each to the others" if several else ""
    device = f"{scale.device_tflops:g} TFLOP/s at {scale.utilisation:.0%} in {'bf16' if run.bf16 else 'fp32'}, {scale.device_memory:g} GB"
    return [
        f"recipe   {run.preset.name}: {run.parameters / 1e6:,.1f} M parameters with {run.vocabulary_size:,} tokens; {flop:.2g} FLOP in all",
        f"corpus   {scale.corpus_gigabytes:g} GB of text, {100 * scale.held_out:g}% of it held out",
        f"devices  {numbers}, of {device}{between}: assumed, not measured",
    ]


def _table(runs: Sequence[Quantities]) -> list[str]:
    price = runs[0].scale.price
    head = ["stage", "devices", "store", "core time", "time", "memory", "device time", *(["cost"] if price else []), ""]
    found = [stages(run) for run in runs]
    rows = [head]
    for same in zip(*([*of_run, total(of_run)] for of_run in found), strict=True):
        alike = all(stage == same[0] for stage in same)
        for run, stage in list(zip(runs, same, strict=True))[: 1 if alike else None]:
            devices = "" if alike and len(runs) > 1 else str(run.scale.devices)
            rows.append(_cells(stage, devices if stage.device else "", price))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:-1]), row[-1]]).rstrip() for row in rows]


def _cells(stage: Stage, devices: str, price: float) -> list[str]:
    cost = [f"{stage.device / 3600 * price:,.2f}" if stage.device else ""] if price else []
    times = [_time(stage.processor), _time(stage.seconds)]
    return [stage.name, devices, _size(stage.size), *times, _size(stage.memory), _time(stage.device), *cost, stage.note]


def _limit_lines(runs: Sequence[Quantities]) -> list[str]:
    found = [(str(run.scale.devices), limit) for run in runs for limit in limits(run)]
    passed = [(devices, limit) for devices, limit in found if limit.passed]
    if not passed:
        nearest = max((limit for _, limit in found), key=lambda limit: limit.share)
        return ["breaks first: nothing passes its limit; nearest to it", *_limit_text(nearest, "")]
    lines = ["breaks first"]
    for place in dict.fromkeys((limit.stage, limit.knob) for _, limit in passed):
        alike = [(devices, limit) for devices, limit in passed if (limit.stage, limit.knob) == place]
        where = ", ".join(dict.fromkeys(devices for devices, _ in alike))
        worst = max((limit for _, limit in alike), key=lambda limit: limit.share)
        lines += _limit_text(worst, f" on {where}" if len(runs) > 1 and worst.of_devices else "")
    return lines


def _limit_text(limit: Limit, where: str) -> list[str]:
    return [f"  {limit.stage}{where}: {limit.text}", f"    -> {limit.knob}"]


def _size(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= 0.95 * size:
            return f"{count / size:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB" if count else ""


def _time(seconds: float) -> str:
    for unit, size in (("d", 2 * 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / (86400 if unit == 'd' else size):,.1f} {unit}"
    return f"{seconds:.1f} s" if seconds else ""
