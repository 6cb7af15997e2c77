"""The attacks of a stranger, and the statements that must be true after them.

NATS does not check the reply subject of a message: whoever may ask something may have the answer published, with the
rights of the client that answers, on any subject. So each subject that a stranger may publish to is used with each
subject that they must not reach as its reply.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from integration.campaign.report import Outcome
from integration.campaign.strangers.site import VICTIM, Site, Stranger, allowed
from integration.kit.network.wire import subject_matches

INBOX = "_INBOX_stranger"
A1 = "issue 11 A1: in one account NATS cannot prevent it; users of another account cannot do it"

STORED = "nothing is stored by an answer"
CALLS = "no answer is a call of the API"
GOES_ON = "everybody else goes on"


@dataclass
class Case:
    """A set of rights, and a world that it is for.

    Attributes:
        kind: Whose rights.
        permissions: As the library prints them.
        targets: Subjects that the stranger must not reach.
        check: What has to work after the attacks. Raises if it does not.
        trusted: The documentation says to give these rights to trusted users only: what it allows is no defect.
        known: Predicates that are known to fail, each with the issue.
    """

    kind: str
    permissions: dict[str, Any]
    targets: list[str]
    check: Callable[[], Any]
    trusted: bool = False
    known: dict[str, str] = field(default_factory=dict)


Make = Callable[[Site], contextlib.AbstractAsyncContextManager[Case]]


async def attack(site: Site, stranger: Stranger, case: Case, outcome: Outcome) -> None:
    may = allowed(case.permissions, "publish")
    others = [subject for subject in case.targets if not any(subject_matches(one, subject) for one in may)]
    known = case.known.get

    await stranger.listen([">", "$JS.>", *case.targets, "_INBOX.>", "_INBOX_admin.>"])
    before, configs = await site.stored(), await site.configs()
    for subject in others:
        for payload in (b"", b"666", b"{}"):
            await stranger.publish(subject, payload)
            await stranger.publish(subject, payload, reply=f"{INBOX}.x")
    await stranger.settled()
    after = await site.stored()
    outcome.none_of("nothing is stored by publishing where there is no right", added(before, after, may))
    outcome.check("streams and consumers stay, after publishing", await site.configs() == configs)

    data = [subject for subject in others if not subject.startswith("$")]
    tried = await answers_to(stranger, may, case.targets, [*data, f"{INBOX}.y"])
    through = added(after, await site.stored(), may)
    outcome.check(STORED, not through, f"{len(through)}: {subjects_of(through)}", known=known(STORED, ""))
    received = sorted(
        {subject for subject, _ in stranger.heard if not subject.startswith(INBOX)} - hears(case)
    )
    if not site.apart:  # there it hears what it published itself
        outcome.check("the stranger hears no one else", not received, received)
    await judge_others(case, outcome)

    # At last, as it may leave nothing: answers that are calls of the API.
    configs = await site.configs()
    calls = [subject for subject in others if subject.startswith("$")]
    tried += await answers_to(stranger, may, case.targets, calls)
    outcome.ran |= {"direct attacks": 6 * len(others), "reply attacks": tried}
    now = await site.configs()
    changed = [
        f"{one} is {'changed' if one in now else 'deleted'}"
        for one in configs
        if configs[one] != now.get(one)
    ]
    outcome.check(CALLS, not changed, changed, known=known(CALLS, ""))


async def answers_to(stranger: Stranger, may: list[str], targets: list[str], replies: list[str]) -> int:
    """Ask everything that the stranger may ask, with each of these reply subjects."""
    tried = 0
    for pattern in may:
        subject = pattern.replace("*", "x").replace(">", "x")
        for payload in payloads(subject, targets):
            for reply in replies:
                await stranger.publish(subject, payload, reply=reply)
                tried += 1
        await stranger.settled()
    return tried


async def judge_others(case: Case, outcome: Outcome) -> None:
    """Whether all other readers continue."""
    try:
        await case.check()
    except Exception as error:  # noqa: BLE001  whatever it is, it did not go on
        actual = f"{type(error).__name__}: {error}"
        outcome.check(GOES_ON, holds=False, found=actual, known=case.known.get(GOES_ON, ""))
    else:
        outcome.check(GOES_ON, holds=True, known=case.known.get(GOES_ON, ""))


def hears(case: Case) -> set[str]:
    return {one for one in allowed(case.permissions, "subscribe") if "*" not in one and ">" not in one}


def added(before: dict[str, Any], after: dict[str, Any], may: list[str]) -> list[Any]:
    """Messages that are new on subjects that the stranger may not publish to."""
    results = []
    for name, messages in after.items():
        known = {seq for seq, _, _ in before.get(name, [])}
        results += [
            one
            for one in messages
            if one[0] not in known and not any(subject_matches(pattern, one[1]) for pattern in may)
        ]
    return results


def subjects_of(messages: list[Any]) -> str:
    """The subjects of stored messages, with an example of each."""
    results: dict[str, bytes] = {}
    for _, subject, payload in messages:
        results.setdefault(subject, payload[:60])
    return ", ".join(f"{subject} ({payload!r})" for subject, payload in results.items())


def payloads(subject: str, targets: list[str]) -> list[bytes]:
    """Bodies that a service at this subject may take seriously."""
    bodies: list[Any] = [{}]
    if "DIRECT.GET" in subject or "MSG.GET" in subject:
        bodies += [{"seq": 1}, {"batch": 10, "seq": 1}, {"last_by_subj": targets[0]}]
    # a consumer that delivers where the stranger wants it, with and without the filter
    elif "CONSUMER.CREATE" in subject:
        stream, _, remainder = subject.partition("CONSUMER.CREATE.")[2].partition(".")
        config = {"ack_policy": "none", "deliver_subject": targets[-1], "name": "x"}
        filtered = remainder.partition(".")[2]
        bodies += [{"stream_name": stream, "config": {**config, "filter_subject": filtered}}]
    elif "CONSUMER.MSG.NEXT" in subject:
        bodies += [{"batch": 5, "no_wait": True}]
    elif subject.endswith(".live"):
        bodies += [
            {"v": 1, "verb": verb, "order": "int", "codec": "json"} for verb in ("connect", "alive", "leave")
        ]
    return [b"", *(json.dumps(body).encode() for body in bodies)]


ATTACKED = [
    "victim.loot",
    f"$JS.API.STREAM.DELETE.{VICTIM}",
    f"$JS.API.STREAM.PURGE.{VICTIM}",
    "_INBOX_admin.a.1",
]
"""Targets of every case."""

Opened = AsyncIterator[Case]
