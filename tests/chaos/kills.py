"""When to kill: moments drawn on the timeline of an undisturbed run, and what became of each.

The decision that matters: which stage a kill hit is read from the store, the first one that is not finished; what the
command prints only says how far an attempt has come.
"""

import bisect
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .command import END, REGISTRATION, STAGES, START, TICK, TRAINING, TRAINING_BEGINS, Attempt, FaultError, Flow, Progress

_SHARES = (2, 2, 2, 2, 2, 12, 2, 6, 0)  # how many of 30 kills are drawn in each stage


@dataclass(frozen=True)
class Moment:
    """So many seconds after an attempt has come so far, or the end of a stage, whichever is first."""

    stage: str
    progress: Progress
    seconds: float

    def wait(self, attempt: Attempt) -> bool:
        """Wait for the moment. Returns whether the command still runs then."""
        reached = None
        while attempt.running():
            progress = attempt.progress()
            if reached is None and progress >= self.progress:
                reached = time.monotonic()
            passed = attempt.flow.finished(self.stage) or progress[0] > self.progress[0]
            if passed or (reached is not None and time.monotonic() - reached >= self.seconds):
                return True
            time.sleep(TICK)
        return False


class Timeline:
    """When an undisturbed run came how far."""

    def __init__(self, attempt: Attempt) -> None:
        self._marks: list[tuple[float, Progress]] = [(0.0, (-1, 0))]
        while attempt.running():
            if (progress := attempt.progress()) > self._marks[-1][1]:
                self._marks.append((attempt.seconds, progress))
            time.sleep(TICK)
        attempt.check()
        self.seconds = attempt.seconds

    def span(self, stage: str) -> tuple[float, float]:
        """When a stage began and when it ended, in seconds."""
        number = STAGES.index(stage) - 1
        begin, end = (next((at for at, progress in self._marks if progress >= (tasks, 0)), self.seconds) for tasks in (number, number + 1))
        return begin, end

    def draw(self, stage: str, rng: random.Random, *, early: bool = False) -> float:
        """A time in a stage; `early`: before the first step of training."""
        begin, end = self.span(stage)
        if stage == TRAINING:
            first = next(at for at, progress in self._marks if progress > (TRAINING_BEGINS, 0))
            begin, end = (begin, first) if early else (first, end)
        return rng.uniform(begin, end)

    def plan(self, kills: int, rng: random.Random) -> list[float]:
        """Times of kills, in order, spread over the stages; a quarter of those in training before its first step."""
        times, drawn = [], 0
        for number, stage in enumerate(STAGES):
            wanted = kills * sum(_SHARES[: number + 1]) // sum(_SHARES)
            times += [self.draw(stage, rng, early=place % 4 == 0) for place in range(wanted - drawn)]
            drawn = wanted
        return sorted(times)

    def moment(self, at: float) -> Moment:
        """The moment at which an attempt has come as far as the undisturbed run had at a time."""
        mark, progress = self._marks[bisect.bisect_right([at for at, _ in self._marks], at) - 1]
        return Moment(STAGES[progress[0] + 1], progress, at - mark)


@dataclass
class Report:
    """What became of the attempts."""

    hits: list[str] = field(default_factory=list)
    attempts: int = 0
    went_on_from: list[int] = field(default_factory=list)

    def note(self, attempt: Attempt) -> None:
        """Check an attempt that has ended and count it."""
        self.attempts += 1
        if (step := attempt.check()) is not None:
            self.went_on_from.append(step)


def kill_at(flow: Flow, moment: Moment, said: Path, report: Report) -> bool:
    """Start an attempt and kill it at a moment. Returns whether it came to that."""
    with flow.start(said) as attempt:
        struck = moment.wait(attempt) and attempt.kill()
    report.note(attempt)
    if struck:
        begun = attempt.progress() >= (0, 0)
        hit = next((stage for stage in STAGES[1:-1] if not flow.finished(stage)), END) if begun else START
        report.hits.append(hit)
        told = f"kill {len(report.hits):>3} aimed at {moment}, hit {hit}, checkpoint {flow.newest_checkpoint()}"
        print(told, file=sys.stderr, flush=True)
    return struck


def finish(flow: Flow, said: Path, report: Report) -> None:
    """Let an attempt run to its end."""
    with flow.start(said) as attempt:
        attempt.finish()
    report.note(attempt)


def kill_often(flow: Flow, timeline: Timeline, kills: int, rng: random.Random, folder: Path) -> Report:
    """Kill attempt after attempt, then let one finish. A kill whose stage is done by then moves on to a later stage."""
    report, times = Report(), timeline.plan(kills, rng)
    while len(report.hits) < kills:
        if report.attempts > 3 * kills:
            raise FaultError(f"only {len(report.hits)} of {report.attempts} attempts could be killed")
        moment = timeline.moment(times.pop(0)) if times else None
        if moment is None or flow.finished(moment.stage):
            later = next(stage for stage in (TRAINING, REGISTRATION, END) if not flow.finished(stage))
            bisect.insort(times, timeline.draw(later, rng))
            continue
        kill_at(flow, moment, folder / f"attempt-{report.attempts:03}.log", report)
    finish(flow, folder / "last.log", report)
    return report
