"""A server of an operator whose users' JWTs live for seconds, its clients, and the verdict of the chaos on them."""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import nkeys

from integration.campaign.chaos.faults import Fault, History
from integration.campaign.chaos.scenario import STREAMS, Kinds, World, create_streams, verdict
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.kit.judge.background import Background
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.servers.creds import USER, Key, Operator
from integration.kit.servers.nats_server import OwnServer
from jsclient.errors import AuthenticationError
from jsclient.events import ErrorRaised, Reconnected

KINDS = ("exchanged in time", "exchanged late", "another key", "revoked")
LIFETIME = 5.0  # seconds of a JWT, which ends at a full second
BACK = 8.0  # seconds within which every client is back with the new credentials
END = 15.0  # seconds of a run for what comes before and after


class Rotations:
    """Renews the credentials of all clients, each time in another way, and notes when they could be back."""

    def __init__(self, own: OwnServer, operator: Operator, file: Path, chance: Random) -> None:
        self._own, self._operator, self._chance = own, operator, chance
        self._user = Key.make(USER)
        self._revoked: dict[str, int] = {}
        self._ends = 0.0
        self.file = file
        self.history = History()
        self.late: list[str] = []
        self._operator.write(file, self._user)

    def _write(self) -> None:
        self._ends = float(int(time.time() + LIFETIME))
        self._operator.write(self.file, self._user, self._ends)

    async def run(self, world: World, until: float) -> None:
        kinds = ["revoked"]  # at first, as the first credentials do not expire
        while time.monotonic() < until:
            if not kinds:
                kinds = [*KINDS]
                self._chance.shuffle(kinds)
            fault = Fault(kinds.pop(), "the users", time.monotonic())
            self.history.happened.append(fault)
            since = fault.began = await self._do(fault.kind)
            try:
                await eventually(lambda: not away(world, since), BACK, "every client is back")  # noqa: B023
            except AssertionError:
                self.late.append(f"{fault.kind}: {away(world, since)}")
            fault.ended = time.monotonic()
        self._operator.write(self.file, self._user)  # without an end: the verdict takes its time
        self._own.reload(self._operator.config(self._revoked))

    async def _do(self, kind: str) -> float:
        """Return when the new credentials are there, with the moment from which the old ones are no longer taken."""
        ended = self._ends
        moment = time.monotonic() + ended - time.time()
        if kind == "revoked":
            old, self._user = self._user, Key.make(USER)
            self._write()
            self._revoked[old.public] = int(time.time())
            moment = time.monotonic()
            self._own.reload(self._operator.config(self._revoked))
            return moment
        if kind == "exchanged late":
            await asyncio.sleep(ended - time.time() + self._chance.uniform(0.5, 2.5))
            self._write()
            return moment
        await asyncio.sleep(max(ended - time.time() - self._chance.uniform(0.3, 2.0), 0.0))
        if kind == "another key":
            self._user = Key.make(USER)
        self._write()
        await asyncio.sleep(ended - time.time())
        return moment


class Signing:
    """A program that signs itself: callbacks, of which the signature is asked for first, read one file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._jwt = b""

    def signature(self, nonce: str) -> bytes:
        lines = self._file.read_bytes().splitlines()
        self._jwt, seed = (
            lines[lines.index(mark) + 1]
            for mark in (b"-----BEGIN NATS USER JWT-----", b"-----BEGIN USER NKEY SEED-----")
        )
        return base64.b64encode(nkeys.from_seed(bytearray(seed)).sign(nonce.encode()))

    def jwt(self) -> bytes:
        return self._jwt

    @property
    def options(self) -> dict[str, Any]:
        return {"user_credentials": None, "user_jwt_cb": self.jwt, "signature_cb": self.signature}


def away(world: World, since: float) -> list[str]:
    """The clients that have not connected again after a moment, or are not connected."""
    return [
        name
        for name, js in world.connections.items()
        if not (js.is_connected and back(world.events[name], since))
    ]


def back(events: list[tuple[float, Any]], since: float) -> bool:
    return any(isinstance(event, Reconnected) and moment > since for moment, event in events)


async def run(options: Options) -> list[Outcome]:
    kinds = Kinds(replicas=1)
    kinds.links = False  # they want three nodes
    return await rotation(options, kinds)


async def rotation(options: Options, kinds: Kinds) -> list[Outcome]:
    background = Background()
    asyncio.get_running_loop().set_exception_handler(background.handle)
    operator, files = Operator.make(), tempfile.TemporaryDirectory()
    own = OwnServer(config=operator.config())
    await own.start()
    try:
        rotations = Rotations(own, operator, Path(files.name) / "user.creds", Random(options.seed))
        judge = Path(files.name) / "judge.creds"
        operator.write(judge, Key.make(USER))
        async with Oracle(own.url, user_credentials=str(judge)) as oracle:
            await create_streams(oracle, dict.fromkeys(STREAMS, 1))
            world = World("rotation", options.seed, [own.url], user_credentials=str(rotations.file))
            world.others["callbacks"] = Signing(rotations.file).options
            await world.populate(kinds)
            await eventually(lambda: all(one.tally.seqs for one in world.readers), 30, "every reader reads")
            await rotations.run(world, time.monotonic() + max(options.seconds - END, 15.0))
            outcomes = await verdict(world, rotations.history, oracle)
        judge_rotations(rotations, world, outcomes[0])
        outcomes[0].none_of("no error in the background", [e[-300:] for e in background.unexpected])
        return outcomes
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
        await own.stop()
        files.cleanup()


def judge_rotations(rotations: Rotations, world: World, outcome: Outcome) -> None:
    outcome.kind = "the users"
    outcome.none_of(f"every client is back {BACK} s after new credentials are there", rotations.late)
    refusals = [
        name
        for name, events in world.events.items()
        if any(
            isinstance(event, ErrorRaised) and isinstance(event.error, AuthenticationError)
            for _, event in events
        )
    ]
    outcome.check(
        "every client reports that its credentials ended", len(refusals) == len(world.events), len(refusals)
    )
