"""A seat in a contract: its holder watches what would be paid, and cannot change it.

python examples/12_seat.py [url]
"""

import asyncio
import contextlib
import sys

import jsclient
from jsclient.server import NatsServer


class UserSeat:
    """The holder's view of a seat: to watch, and nothing else."""

    def __init__(self, notifier):
        self.get_notifier = lambda: notifier


class Seat:
    """A contract's view of a seat, with what is allocated to it: what is paid if nothing changes any more."""

    def __init__(self, allocation, kit=None):
        self._allocation = dict(allocation)
        self._updater, notifier = kit or jsclient.make_notifier_kit(dict(allocation))
        self.get_notifier = lambda: notifier
        self.user = UserSeat(notifier)

    def trade(self, **changes):
        changed = {what: self._allocation.get(what, 0) + by for what, by in changes.items()}
        if short := [what for what, amount in changed.items() if amount < 0]:
            raise ValueError(f"not enough of {short}")
        self._allocation |= changed
        self._updater.update_state(dict(self._allocation))

    def exit(self):
        """Pay out what was allocated last."""
        self._updater.finish(dict(self._allocation))
        return self._allocation

    def kick_out(self, reason):
        self._updater.fail(reason)


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        js = await stack.enter_async_context(jsclient.connect(url))
        stack.push_async_callback(js.delete_stream, "SEATS")
        await js.create_stream("SEATS", subjects=["seats.*"], max_msgs_per_subject=1, allow_direct=True)
        seat = Seat({"money": 10}, await js.notifier_kit("seats.7", initial={"money": 10}))
        record = await seat.user.get_notifier().get_update_since()
        seat.trade(money=-4, tickets=1)
        print("allocated:", (await seat.user.get_notifier().get_update_since(record.update_count)).value)
        print("paid out:", seat.exit() == await seat.user.get_notifier().completion())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
