"""Topics of epochs in this process, and what tests read from a topic."""

from __future__ import annotations

from jsclient.epochs import Data, FrontierUpdate, memory_epochs


async def records(topic):
    """All that lies in a topic, as it lies there."""
    results, since = [], 0
    while page := (await topic._home.log().history(since, 1000, 10**8)).records:
        results += page
        since = page[-1].seq
    return results


async def events(sub, until):
    """Events up to the first for which that is so, included."""
    got = []
    while not got or not until(got[-1]):
        got.append(await sub.next(30))
    return got


def frontier_is(*times):
    return lambda event: isinstance(event, FrontierUpdate) and set(event.frontier) == set(times)


def items(events):
    return [(event.time, event.items) for event in events if isinstance(event, Data)]


async def all_of(epochs):
    return {epoch.time: [item async for batch in epoch for item in batch] async for epoch in epochs}


class Picky:
    """A codec of text that cannot decode "bad"."""

    name = "picky"

    def encode(self, value):
        return value.encode()

    def decode(self, data):
        if data == b"bad":
            raise ValueError("it is bad")
        return data.decode()


class MemoryTopics:
    """Makes topics in this process."""

    def __init__(self):
        self.count = 0

    def __call__(self, order=None, **options):
        self.count += 1
        return memory_epochs(f"topic.{self.count}", order, **options)
