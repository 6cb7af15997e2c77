"""Share live prices with a notifier: a feed publishes every change, and a board shows the newest at its own pace.

python examples/08_price_board.py [url]
"""

import asyncio
import contextlib
import json
import random
import sys

import jsclient
from jsclient.server import NatsServer

CHANGES, DRAWING = 2000, 0.05  # number of price changes; seconds that the board takes to draw one


async def feed(prices: jsclient.Producer) -> None:
    """Publish price changes, without waiting for boards."""
    randomness, price = random.Random(7), 100.0
    for number in range(1, CHANGES + 1):
        price = round(price + randomness.uniform(-1, 1), 2)
        stored = prices.update_state({"change": number, "price": price})
        if number % 100 == 0:
            await stored  # this change, and all changes before it, are stored
            await asyncio.sleep(0.02)
    await prices.finish({"changes": CHANGES, "close": price})


async def board(js: jsclient.JetStream, descriptor: str) -> None:
    """Show the newest price each time the board is redrawn; intermediate prices are skipped."""
    prices, shown = aiter(js.make_notifier(json.loads(descriptor))), []
    async for quote in prices:
        shown.append(quote["change"])
        print(f"gold {quote['price']:7.2f}  (change {quote['change']})", flush=True)
        await asyncio.sleep(DRAWING)
    print(f"shown: {len(shown)} of {CHANGES} changes, in order: {shown == sorted(set(shown))}")
    print(f"closed at {prices.completion['close']:.2f} after {prices.completion['changes']} changes")


async def main(url: str | None = None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = url or (await stack.enter_async_context(NatsServer())).url
        exchange = await stack.enter_async_context(jsclient.connect(url))
        elsewhere = await stack.enter_async_context(jsclient.connect(url))
        opening = {"change": 0, "price": 100.0}
        updater, notifier = await exchange.notifier_kit("price.gold", stream="PRICES", initial=opening)
        stack.push_async_callback(exchange.delete_stream, "PRICES")
        descriptor = json.dumps(await notifier.get_sharable_notifier_internals())  # for any process
        await asyncio.gather(feed(updater), board(elsewhere, descriptor))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
