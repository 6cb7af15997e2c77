"""Runs the targets in turn for a time, or for a number of inputs, and counts what came of them."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from integration.campaign.fuzz.grammar import Mutator, inflated
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from jsclient.errors import JetStreamError

SLOW = 0.05  # seconds of CPU for an input of up to 20 kB
SLICE = 500  # number of inputs of a target before the next target has its turn
INFLATED = 0.002  # of the inputs


@dataclass
class Target:
    """A parser or tracker under test.

    Attributes:
        name: What it reads.
        make: Called with a generator. Returns the function that takes an input. A tracker keeps its state for a slice.
        samples: What a real peer sends.
        grammar: How samples are damaged.
        total: It never raises, not even a documented error.
        known: The issue that lists its defects as open.
    """

    name: str
    make: Callable[[Random], Callable[[bytes], object]]
    samples: Sequence[bytes]
    grammar: Sequence[Mutator]
    total: bool = False
    known: str = ""


@dataclass
class Tally:
    inputs: int = 0
    large: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    undocumented: dict[str, str] = field(default_factory=dict)
    """What was raised and where, with the first input."""
    different: dict[str, str] = field(default_factory=dict)
    """Which two implementations disagree, with the first input."""
    slow: list[str] = field(default_factory=list)


class DifferenceError(AssertionError):
    """Two implementations do not agree, or an invariant is violated."""


def same(one: object, other: object, what: str) -> None:
    """Raises `DifferenceError` unless both are equal."""
    if one == other:
        return
    while isinstance(one, msgspec.Struct) and type(one) is type(other):  # the field that differs says more
        fields = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
        what = f"{what}: {fields[0]}"
        one, other = getattr(one, fields[0]), getattr(other, fields[0])
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        one, other = next((a, b) for a, b in zip(one, other, strict=True) if a != b)
    raise DifferenceError(f"{what}: {one!r:.150} is not {other!r:.150}")


def fuzz(target: Target, chance: Random, count: int, tally: Tally) -> None:
    """Feed ``count`` inputs to a new instance of the target."""
    take = target.make(chance)
    started = time.perf_counter()
    for number in range(count):
        sample = target.samples[number % len(target.samples)]
        large = chance.random() < INFLATED
        data = inflated(chance, sample) if large else chance.choice(target.grammar)(chance, sample)
        tally.inputs += 1
        tally.large += large
        before = time.thread_time()
        judge(target, take, data, tally)
        spent = time.thread_time() - before
        # The machine may have been busy: only an input that is slow again counts. Large inputs may take long.
        if spent > SLOW and len(data) <= 21_000:
            spent = min(spent, again(target, chance, data))
            if spent > SLOW:
                tally.slow.append(f"{spent * 1000:.0f} ms for {len(data)} bytes: {data[:80]!r}")
        tally.slowest = max(tally.slowest, spent)
    tally.seconds += time.perf_counter() - started


def judge(target: Target, take: Callable[[bytes], object], data: bytes, tally: Tally) -> None:
    try:
        take(data)
    except DifferenceError as error:
        what = str(error).partition(":")[0]
        tally.different.setdefault(what, f"{error} for {data[:300]!r}")
    except JetStreamError as error:
        tally.refused += 1
        if target.total:
            tally.undocumented.setdefault(place(error), f"{error!r:.150} for {data[:300]!r}")
    except Exception as error:  # noqa: BLE001  that is what is looked for
        tally.undocumented.setdefault(place(error), f"{error!r:.150} for {data[:300]!r}")


def place(error: BaseException) -> str:
    """The class of an error, and the line of the library that raised it."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "jsclient" in one.filename]
    if not frames:
        frames = list(traceback.extract_tb(error.__traceback__))[-1:]
    return f"{type(error).__name__} in {Path(frames[-1].filename).name}:{frames[-1].name}"


def again(target: Target, chance: Random, data: bytes) -> float:
    """The least CPU time of three more tries, on new instances: a collection or a busy machine is no slow parser."""
    spent = []
    for _ in range(3):
        take = target.make(chance)
        gc.collect()
        before = time.thread_time()
        judge(target, take, data, Tally())
        spent.append(time.thread_time() - before)
    return min(spent)


def fuzz_all(targets: Sequence[Target], options: Options, *, inputs: int | None = None) -> list[Outcome]:
    """All targets in turn, for ``options.seconds``, or ``inputs`` for each, which gives the same run every time."""
    tallies = {target.name: Tally() for target in targets}
    chances = {target.name: Random(f"{options.seed} {target.name}") for target in targets}
    end = time.monotonic() + options.seconds
    while time.monotonic() < end if inputs is None else tallies[targets[-1].name].inputs < inputs:
        for target in targets:
            fuzz(target, chances[target.name], min(SLICE, inputs or SLICE), tallies[target.name])
    outcomes = [outcome(options.seed, target, tallies[target.name]) for target in targets]
    total = Outcome("fuzz", "all", options.seed)
    count, seconds = (sum(getattr(t, name) for t in tallies.values()) for name in ("inputs", "seconds"))
    total.ran = {"targets": len(targets), "inputs": count, "inputs/s": int(count / max(seconds, 1e-9))}
    total.check("every target had input", all(t.inputs for t in tallies.values()))
    return [*outcomes, total]


def outcome(seed: int, target: Target, tally: Tally) -> Outcome:
    actual = Outcome("fuzz", target.name, seed)
    actual.ran = {
        "inputs": tally.inputs,
        "of 20 kB": tally.large,
        "refused": tally.refused,
        "inputs/s": int(tally.inputs / max(tally.seconds, 1e-9)),
        "slowest": f"{tally.slowest * 1000:.1f} ms",
    }
    actual.none_of(
        "no undocumented exception", [f"{k}: {v}" for k, v in tally.undocumented.items()], known=target.known
    )
    actual.none_of("implementations agree", tally.different.values(), known=target.known)
    actual.none_of("no input takes over 50 ms", tally.slow)
    return actual
