"""Makes the random program of a seed. The same seed gives the same program."""

from __future__ import annotations

from random import Random

from integration.campaign.programs.expected import stored_by
from integration.campaign.programs.program import Fault, Program, Sink, Step, Write

LEAST, MOST = 50, 8000  # rows that a program stores
_STATE = ("window", "distinct")
_SETTINGS = {
    "spark.sql.autoBroadcastJoinThreshold": ("-1", "10485760"),
    "spark.sql.adaptive.enabled": ("true", "false"),
    "spark.sql.shuffle.partitions": ("2", "3", "5"),
    "spark.sql.adaptive.coalescePartitions.enabled": ("true", "false"),
}


def program_of(seed: int) -> Program:
    """The program of a seed. Ones that store hardly a row, or very many, are passed over."""
    dice = Random(f"program {seed}")
    while True:
        program = _Maker(seed, dice).program()
        if LEAST <= sum(map(len, stored_by(program).values())) <= MOST:
            return program


class _Maker:
    def __init__(self, seed: int, dice: Random) -> None:
        self._seed = seed
        self._dice = dice

    def program(self) -> Program:
        dice = self._dice
        reads = dice.choices(["one", "list", "pattern", "union", "queue"], [5, 2, 1, 3, 3])[0]
        streams = 1 if reads in {"one", "queue"} else dice.randint(2, 3)
        steps = self._steps(reads)
        state = any(step.kind in _STATE for step in steps)
        data = dice.choice(["own", "tagged", "key"])
        manual = reads == "queue" and not state and dice.random() < 0.4
        sinks = self._sinks(steps, data, alone=reads == "queue", manual=manual)
        count = dice.randrange(600, 1600) if streams == 1 else dice.randrange(300, 800)
        source, retention = self._source(reads, count if reads == "union" else count * streams, manual=manual)
        return Program(
            seed=self._seed,
            streams=streams,
            reads=reads,
            count=count,
            again=dice.choice([0, 5]),
            data=data,
            steps=steps,
            sinks=sinks,
            fault=self._fault(reads, sinks),
            source=source,
            settings={name: dice.choice(values) for name, values in _SETTINGS.items()},
            retention=retention,
        )

    def _steps(self, reads: str) -> list[Step]:
        """One to four steps. The sinks add one or two more."""
        dice, steps = self._dice, list[Step]()
        kinds = ["filter", "union", "explode", "join", "repartition", "coalesce", "distinct", "window"]
        for _ in range(dice.randint(1, 4)):
            kind = dice.choices(kinds, [2, 3, 3, 4, 3, 1, 1, 2])[0]
            has_state = any(step.kind in _STATE for step in steps)
            # One watermark for several streams in one source would depend on how far each of them is read.
            if kind in _STATE and (has_state or (kind == "window" and reads in {"list", "pattern"})):
                kind = "repartition"
            if kind == "union" and has_state:  # its state would be kept twice
                kind = "explode"
            if kind in {"union", "join", "explode"} and sum(one.kind == kind for one in steps) > 1:
                kind = "filter"
            steps.append(self._step(kind))
        return steps

    def _step(self, kind: str) -> Step:
        dice = self._dice
        marked = dice.random() < 0.7
        if kind == "join":
            return Step(kind, marked=marked, how=dice.choice(["inner", "left"]))
        if kind in {"repartition", "coalesce"}:
            by = dice.choice(["", "k", "n"]) if kind == "repartition" else ""
            return Step(kind, dice.randint(1, 5) if kind == "repartition" else 1, how=by)
        if kind == "window":
            return Step(kind, dice.choice([20, 60, 150]))
        return Step(kind, dice.randint(2, 4), marked=marked)

    def _sinks(self, steps: list[Step], data: str, *, alone: bool, manual: bool) -> list[Sink]:
        dice = self._dice
        count = 1 if alone else dice.choices([1, 2], [2, 1])[0]
        shared = dice.random() < 0.3
        return [
            self._sink(steps, data, "a" if shared else "ab"[number], shared, manual)
            for number in range(count)
        ]

    def _sink(self, steps: list[Step], data: str, label: str, shared: bool, manual: bool) -> Sink:
        dice = self._dice
        state = any(step.kind in _STATE for step in steps)
        kind = "batch" if manual else dice.choice(["direct", "batch"])
        count = dice.randint(1, 3) if kind == "batch" else 1
        writes = [
            Write(
                label if dice.random() < 0.5 else f"{label}{number}",
                dice.choice([None, None, 0, 1]),
                dice.random() < 0.4,
            )
            for number in range(count)
        ]
        options: dict[str, str] = {}
        dedups = ["", "", "", "column"] + (["source"] if not state and not shared else [])
        if dedup := dice.choice(dedups):
            options["dedup"] = dedup
        elif data == "own" and dice.random() < 0.4:
            options["dedupScope"] = "epoch"
        if dice.random() < 0.3:
            options["exactlyOnce"] = "ledger"
        # a ledger has to know the stream
        if "exactlyOnce" in options or dice.random() < 0.3:
            options["expectedStream"] = f"P{self._seed}_OUT"
        inside = manual or (kind == "batch" and not state and dice.random() < 0.4)
        return Sink(kind, writes, options, inside, manual or (kind == "batch" and dice.random() < 0.3))

    def _source(self, reads: str, messages: int, *, manual: bool) -> tuple[dict[str, str], str]:
        """Options that make two to four batches of a source's messages, and the retention of the streams."""
        dice = self._dice
        options = {"maxMessagesPerTrigger": str(messages // dice.randint(2, 4) + dice.randrange(50))}
        if dice.random() < 0.6:
            options["minPartitions"] = str(dice.randint(1, 4))
        if dice.random() < 0.3:
            options["maxMessagesPerPartition"] = str(dice.randrange(60, 400))
        if reads == "queue":
            retention = "workqueue" if dice.random() < 0.6 else "limits"
            ack = "manual" if manual else dice.choice(["", "purge"] if retention == "workqueue" else [""])
            return options | ({"ackOn": ack} if ack else {}), retention
        options["readMode"] = dice.choice(["auto", "consumer", "direct"])
        if dice.random() < 0.3:
            options["failOnDataLoss"] = "false"
        return options, "limits"

    def _fault(self, reads: str, sinks: list[Sink]) -> Fault:
        dice = self._dice
        # In queue mode the messages are acked soon after the end of a batch is recorded: it cannot be forgotten.
        kinds = ["kill", "fail", "server"] + (["forget"] if reads != "queue" else [])
        # A kill costs a start of Spark, and of all its Python processes.
        kind = dice.choices(kinds, [3, 4, 1, 4][: len(kinds)])[0]
        delay = dice.choice([0.0, 0.1, 0.5, 1.5])
        fault = Fault(kind, round(dice.random() ** 1.5, 3), delay)
        if kind == "server" or dice.random() < 0.5:
            return fault
        chosen = dice.sample(sorted(_SETTINGS), dice.randint(1, 3))
        settings = {name: dice.choice(_SETTINGS[name]) for name in chosen}
        source = {"minPartitions": str(dice.randint(1, 4))} if dice.random() < 0.3 else {}
        return Fault(kind, fault.at, delay, settings, source)
