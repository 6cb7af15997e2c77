"""Writes patterns-map.md: the statements of the four pattern systems, and which tests show them.

    python docs/patterns_map.py            writes docs/patterns-map.md
    python docs/patterns_map.py --check    exit code 1 where it is not up to date

The tests are found by their ``covers`` marks.
"""

# ruff: noqa: E501, RUF001  the statements as they are

import sys

from marked import ROOT, marked

PAGE = ROOT / "docs" / "patterns-map.md"

INTRODUCTION = """\
# From the pattern systems to their tests

<!-- Written by docs/patterns_map.py. -->

What the four systems that stand on topics are held to, by number, and the files with the tests that show it. A test names
what it shows: `@pytest.mark.covers("T31")`. Files in `integration/` run against a real nats-server, and run the suites of
`tests/patterns/` there once more.
"""

# (id, statement), headings within a system, and ("#", system, its modules).
ROWS = [
    (
        "#",
        "Notifiers and subscriptions (seed 000)",
        "`patterns.iteration`, `patterns.memory`, `patterns.observing`, `patterns.sharing`; on a server `patterns.streamed` and its neighbours",
    ),
    "Iteration",
    ("A1", "Clients are told of state changes without the originator keeping a list of them"),
    ("A2", "An async iteration is zero or more non-final values, fully ordered, revealed over time"),
    ("A3", "All consumers see the whole sequence or a subset, in the same order"),
    ("A4", "It may go on for ever, or end once"),
    ("A5", "*finish*, with any value as completion"),
    ("A6", "*fail*, with a reason: an error, or any value"),
    ("A7", "`make_notifier_kit()` gives `{updater, notifier}`"),
    ("A8", "`make_subscription_kit()` gives `{publication, subscription}`"),
    ("A9", "Notifiers are lossy: a consumer asks only for the current value"),
    ("A10", "Subscriptions are lossless"),
    ("A11", "Values are communicated at the rate they are consumed; what is never asked for is never sent"),
    ("A12", "`notifier` and `subscription` are async iterables"),
    ("A13", "`updater` and `publication` are iteration observers (`update_state`, `finish`, `fail`)"),
    ("A14", "The observer facet only produces"),
    ("A15", "The iterable facet only consumes; neither can be reached from the other"),
    "Sampling subset (notifier)",
    ("A16", "Any non-final value may be missing"),
    ("A17", "Every non-final value in it was produced"),
    ("A18", "In producer order"),
    ("A19", "Same termination as the producer's"),
    ("A20", "Different consumers may see different subsets"),
    ("A21", "When a value appears, it or a later one promptly becomes available"),
    ("A22", "A value followed by nothing is distributed promptly"),
    "Suffix subset (subscription)",
    ("A23", "Subscribers see each value from where they subscribe"),
    ("A24", "A suffix is set by its starting point, a non-final value **or the termination"),
    (
        "A25",
        "It has exactly the members from there to and including the termination (`{2 5 9 13 Fail}` from 9 → `{9 13 Fail}`; from Fail → `{Fail}`)",
    ),
    ("A26", "A new value promptly becomes available to every suffix starting at or before it"),
    ("A27", "And to none starting after it"),
    ("A28", "A subscription gives any number of iterators, independent of each other"),
    ("A29", "These iterators have `subscribe()`"),
    ("A30", "Which gives a subscription starting at the iterator's current position"),
    ("A31", "Each value goes to all subscribers"),
    ("A32", "The kit's own subscription gives the entire iteration, also to those who come later"),
    "Methods",
    (
        "A33",
        "`update_state(state)` sends the new state and resolves every active `get_update_since` to the next record",
    ),
    ("A34", "`finish(final_state)` closes and gives the final value"),
    ("A35", "`fail(reason)` closes without a next state; waiting promises are rejected with the reason"),
    ("A36", "Updater and publication have the same three"),
    ("A37", "Only the notifier has `get_update_since(previous_update_count=None)`"),
    ("A38", "It gives an awaitable of a record `{value, update_count}`"),
    ("A39", "Without argument → the current state at once"),
    ("A40", "With any count other than the most recent → the current state at once"),
    ("A41", "With the most recent count → waits for the next record"),
    ("A42", "After finish: `value` is the final state and `update_count` is None"),
    ("A43", "After fail: rejected; no further values"),
    ("A44", "Before any state: waits for the first"),
    (
        "A45",
        "After finish, with any argument including an old or the last count → the same final record, again and again",
    ),
    ("A46", "After fail, with any argument → rejected with the same reason"),
    ("A47", "An optional initial state; `None` as a state differs from no state"),
    ("A48", "Several waiters get the identical record"),
    ("A49", "With an old count after several updates → only the latest"),
    ("A50", "`update_state`, `finish`, `fail` after termination are refused with an error"),
    "Notifiers on objects (Zoe)",
    (
        "A51",
        "An object can hand out one long-lived notifier of its state by `get_notifier()`, from its inner and from its outer (user) view",
    ),
    ("A52", "It offers no `get_subscription()` and no `get_updater()`"),
    ("A53", "Each change of allocation updates it"),
    ("A54", "Exit is its final value (`update_count` None)"),
    ("A55", "The value shown is what would be paid if nothing changed further"),
    "Consuming",
    ("A56", "Paula/Alice: `async for` sees `a`, `b`, then ends; not the completion value"),
    ("A57", "On fail the loop raises the reason"),
    ("A58", "Paula/Bob: `observe_iteration(subscription, observer)` reports `a`, `b`, finished `done`"),
    ("A59", "Swap in a notifier kit: same code works, non-final values may be missing, termination is not"),
    ("A60", "`fail(reason)` reaches the observer's `fail`"),
    ("A61", "The iterable API itself can be used directly (`__anext__`)"),
    ("A62", "Observer methods are optional"),
    (
        "A63",
        "An exception thrown synchronously by an observer stops the observation and propagates; a rejected awaitable returned by it does not",
    ),
    ("A64", "`observe_iterator(iterator, observer)` exists for iterators"),
    "Distributed",
    ("A65", "One producing site, any number of consuming sites (multicast)"),
    ("A66", "Consumers cannot make the kit malfunction or stop the producer"),
    ("A67", "Consumers cannot make each other hang or miss values"),
    (
        "A68",
        "All three kinds of value must be passable; a value that is not is refused at the producer and nothing is published",
    ),
    ("A69", "The kit is made at the producer's site; its iterable can be passed to another site"),
    (
        "A70",
        "`observe_iteration` takes a local iterable, a remote reference, or a local or remote promise (awaitable) of one",
    ),
    (
        "A71",
        "`get_sharable_subscription_internals()` + `make_subscription(internals)` give an equivalent local iterable that talks to the source directly (no relay through the first holder)",
    ),
    ("A72", "`get_sharable_notifier_internals()` + `make_notifier(internals)` the same"),
    ("A73", "The internals may be given as a promise; the local result can be shared on again"),
    ("A74", "`async for` needs a local iterable: on an awaitable it raises `TypeError`"),
    (
        "A75",
        "Generic mirror: new local subscription kit + `observe_iteration(remote, its publication)` works for any iterable",
    ),
    ("A76", "With a notifier kit it works lossily"),
    ("A77", "The publisher need not know the consumers; consumers choose how to process"),
    (
        "#",
        "Relationships between peers (seed 001)",
        "`protocol.channel`, `protocol.relationship`, `protocol.peering`; `jsclient.peers` drives them",
    ),
    "Channels",
    ("P1", "A channel has an ECI, tags and policies (event policy, query policy)"),
    ("P2", "A relationship has, from each side, an Rx (receives events and queries) and a Tx (sends them)"),
    ("P3", "There are only two channels: A's Tx is B's Rx and the reverse"),
    ("P4", "Possible between any two peers that can communicate: same engine, or across hosts"),
    ("P5", "Both need the subscription capability installed; a peer without it cannot take part"),
    ("P6", "Established by a request from A and an acceptance by B. **wellKnown_Rx** —"),
    "wellKnown_Rx",
    ("P7", "Made when the capability is installed (every peer has it)"),
    ("P8", "Receives subscription requests"),
    ("P9", "Its policy allows only the events for that"),
    ("P10", "It refuses other events"),
    ("P11", "It refuses queries for other information, so its ECI can be public"),
    ("P12", "Any other channel whose policy does not block the subscription events works too (parent/child)"),
    ("P13", "Its tags are `wellKnown_Rx` and `Tx_Rx`"),
    ("P14", "The query `wellKnown_Rx()` returns it"),
    ("P15", "It is made once, not again on restart"),
    "Requesting",
    ("P16", "`wrangler:subscription` raised in A starts it"),
    ("P17", "Attributes describe it; any further attributes are seen by B"),
    ("P18", "If all goes well B gets `wrangler:inbound_pending_subscription_added`"),
    "Accepting, declining",
    ("P19", "That event carries the type of the relationship and all attributes of the request"),
    ("P20", "B accepts by raising `wrangler:pending_subscription_approval` with the `Id` **or** the `Rx`"),
    ("P21", "Both are already in the event's attributes, so re-raising with them works as it is"),
    ("P22", "B may decline"),
    ("P23", "`wrangler:subscription_added` with all attributes on both sides; its handler can send at once"),
    "Deleting",
    ("P24", "`wrangler:subscription_cancellation` with what names the relationship: `Id`, `Rx` or `Tx`"),
    ("P25", "→ `wrangler:subscription_removed`, to which one can react"),
    "Messages",
    ("P26", "`established()` lists all relationships as maps with all needed information"),
    ("P27", "Its `Tx` can be used to send events valid for the channel and to query"),
    ("P28", "One can keep one's own record from `subscription_added` instead"),
    ("P29", "An API event sends to one relationship by `Id`"),
    ("P30", "To all with a `Tx_role`"),
    ("P31", "To all with an `Rx_role`"),
    ("P32", "To a mixture of the three"),
    "Attributes",
    ("P33", "`Id`: by default globally unique, may be set in the request, the same on both sides"),
    ("P34", "`Tx`: ECI of the other's Rx"),
    ("P35", "`Rx`: recorded as Tx on the other side"),
    ("P36", "`Tx_role`: the other's role"),
    ("P37", "`Rx_role`: own role"),
    ("P38", "`Tx_host`: where the other's engine is; null = same engine"),
    ("P39", "Roles and host may be null"),
    ("P40", "Sending by hand must look at `Tx_host`; the send action does so itself"),
    "Types",
    ("P41", "Directional: request with `Rx_role`, `Tx_role`; A's Rx_role is B's Tx_role"),
    ("P42", "Cross-engine: `Tx_host` is B's engine URL including the protocol"),
    "Creation flow",
    (
        "P43",
        "A gets `wrangler:subscription` with `wellKnown_Tx`, creates its channel (Rx), raises `wrangler:subscription_request_needed`",
    ),
    ("P44", "A sends `wrangler:new_subscription_request` with all attributes, updated"),
    ("P45", "B creates its Rx and stores it with Tx, `Tx_verify_key`, `Tx_public_key` in *inbound"),
    ("P46", "B raises `inbound_pending_subscription_added`, A raises `outbound_pending_subscription_added`"),
    ("P47", "Then both are static: A's record is in *outbound*, B's in *inbound"),
    (
        "P48",
        "B's approval stores it in *established*, then (a) sends `outbound_pending_subscription_approved` to A on Tx, (b) raises `subscription_added`",
    ),
    ("P49", "A adds Tx, stores in *established*, raises `subscription_added`"),
    ("P50", "The pending record is gone on both sides"),
    "Rejecting",
    (
        "P51",
        "B raises `wrangler:inbound_rejection` with `Rx`: sends `wrangler:outbound_removal` to A on Tx, A raises `outbound_subscription_cancelled`",
    ),
    ("P52", "B raises `inbound_removal`, then `inbound_subscription_cancelled`"),
    "Revoking",
    (
        "P53",
        "A raises `wrangler:outbound_cancellation` with `Rx`: sends `wrangler:inbound_removal` to B on its wellKnown_Rx, B raises `inbound_subscription_cancelled`",
    ),
    ("P54", "A raises `outbound_removal`, then `outbound_subscription_cancelled`"),
    "Deletion flow",
    ("P55", "Either side may cancel; it mirrors"),
    ("P56", "It raises `wrangler:established_removal` in itself and sends one to the other over Tx"),
    ("P57", "On it the channel is deleted and the record leaves *established"),
    ("P58", "`subscription_removed` is raised with the relevant information, on both sides"),
    "From the code",
    ("P59", "No `wellKnown_Tx` → `wellKnown_Tx_format_failure`"),
    ("P60", "Request without `Tx` → `no_Tx_failure`"),
    ("P61", "`established`, `inbound`, `outbound` take (key, value) filters"),
    ("P62", "A relationship is found by Id, else Rx, else Tx, else the channel the event came on"),
    (
        "P63",
        "Sending with nothing to send to, or no domain or type → `failed_to_send_event_to_sub` saying which",
    ),
    ("P64", "Reject and revoke delete the channels too"),
    ("P65", "A repeated protocol event changes nothing"),
    ("P66", "Auto-accept rules by attribute pattern"),
    ("P67", "Removing a peer cancels all three kinds"),
    (
        "#",
        "Epochs (seed 002)",
        "`protocol.frontier`, `protocol.capabilities`, `protocol.epochs`; `patterns.epochs` drives them",
    ),
    "Goals",
    (
        "S1",
        "Publishers are mostly stateless: with no subscriber connected, messages are dropped, not buffered",
    ),
    ("S2", "A subscriber may connect at any time and can reason about the current state"),
    ("S3", "It is told which times it can still observe and which have passed"),
    ("S4", "Atomicity of epochs*: of the tuples of one time it sees all or none"),
    "States",
    ("S5", "A stream is (T, D) tuples; T is partially ordered"),
    ("S6", "An epoch is in exactly one of latent, active, completed, as the publisher sees it"),
    ("S7", "Latent: never observed"),
    ("S8", "Latent → active at its first tuple"),
    ("S9", "Active → completed after its last tuple"),
    ("S10", "Latent → completed when skipped (capability released without a tuple)"),
    ("S11", "T strictly smaller than some S of the frontier → completed"),
    ("S12", "Completion is told outright; the start is implied by the first tuple"),
    "Design",
    ("S13", "A subscriber gets only tuples that were latent when it began to listen"),
    (
        "S14",
        "The example: completed {0,1,2}, active {3,5} → it sees 6, 7, 8 …, and neither 3, 5, nor 4 (no hole)",
    ),
    ("S15", "The filter is the antichain of maximal elements (one element in a total order)"),
    ("S16", "The lower frontier is the antichain of minimal elements"),
    ("S17", "The upper frontier is the antichain of maximal elements"),
    ("S18", "A snapshot of the upper frontier at subscription is the filter"),
    ("S19", "Once the current lower frontier dominates that snapshot the filter is disabled"),
    "Implementation",
    ("S20", "The publisher keeps both frontiers; the lower from progress"),
    ("S21", "The upper from the times of arriving data"),
    ("S22", "Filtering happens at the subscriber"),
    ("S23", "The publisher makes and sends the initial snapshot"),
    ("S24", "Then all data, unfiltered, to all"),
    ("S25", "And the updates of the lower frontier"),
    ("S26", "A subscriber may apply a coarser filter"),
    ("S27", "Or none (then without atomicity)"),
    ("S28", "It can keep the current lower frontier to derive its capabilities downstream"),
    "Messages",
    ("S29", "`InitialFrontierSnapshot{lower, upper}`, once and first"),
    ("S30", "`LowerFrontierUpdate{updates}` of (T, −1) / (T, +1)"),
    ("S31", "`DataMessage{time, data}`, a batch of one time"),
    ("S32", "After the first only the other two"),
    ("S33", "Time and data are separate parts: a filtered message is dropped without decoding the data"),
    "Publisher",
    (
        "S34",
        "One upstream partition; one queue of outgoing messages per connected subscriber, empty at first",
    ),
    ("S35", "Starts with empty upper and lower = {bottom}"),
    ("S36", "Progress: update lower, broadcast the resulting changes (none → nothing)"),
    ("S37", "Data: update upper, broadcast"),
    ("S38", "Connect: snapshot, send it, then add to the list"),
    ("S39", "Disconnect: remove"),
    "Subscriber",
    ("S40", "Finds the publisher through the catalog, connects, waits for the snapshot"),
    ("S41", "Data with T ≤ some element of the snapshot's upper → dropped; else decoded and yielded"),
    ("S42", "Lower update: local lower updated"),
    ("S43", "Exposed to the consumer"),
    ("S44", "Elements S < T removed from the filter"),
    ("S45", "Several partitions: waits for all snapshots, merges uppers to a maximal antichain"),
    ("S46", "Atomicity holds across all partitions"),
    ("S47", "Lowers merge to a minimal antichain"),
    "From the code",
    ("S48", "Partition topics are `name.<n>`; a group is subscribed by prefix and partition numbers"),
    ("S49", "Events are `Data(time, items)` and `FrontierUpdate`; `frontier()` gives the current lower"),
    ("S50", "Time and data types are checked against the topic's schema: mismatch → error"),
    (
        "S51",
        "A blocking subscribe waits for the topic; a non-blocking one errors when it is not there; publishing an existing name errors",
    ),
    ("S52", "An empty frontier ends the topic after connected subscribers are drained"),
    ("S53", "A subscriber's error never stops the publisher"),
    ("S54", "A first message that is not a snapshot, or a second snapshot, is a protocol error"),
    (
        "#",
        "Push and pull: events with a history (seed 003)",
        "`protocol.reader` and its parts; `reader`, `patterns.history`",
    ),
    "Problem",
    ("T1", "Events sent while a subscriber is away are not lost to it"),
    ("T2", "After recovery it knows what to do to catch up, and whether it missed anything"),
    ("T3", "The publisher need not decide how long to retry"),
    ("T4", "No race between reading a resource and subscribing to it"),
    "Approach",
    ("T5", "Every event is time-stamped"),
    ("T6", "So is the content of the resource"),
    ("T7", "Each event names the event directly before it"),
    ("T8", "Or a monotonic sequence number is used"),
    ("T9", "The publisher stores the history"),
    ("T10", "It may be cut to a window up to the present"),
    ("T11", "A query with `since`"),
    ("T12", "Strictly after that time"),
    ("T13", "In sequence"),
    ("T14", "Subscribing gives callback address, time stamp and subscription id"),
    ("T15", "Sending is an optimisation: an event that cannot be conveyed is not lost data"),
    "Race",
    ("T16", "The reader finds T0 with the resource"),
    ("T17", "Later it subscribes with callback, T0 and a unique (may be random) id"),
    ("T18", "The publisher at once emits what came after T0, in sequence, before going on"),
    ("T19", "So nothing between T0 and the subscription is missed"),
    ("T20", "Each event sent carries the subscription id"),
    "Unavailability",
    ("T21", "The publisher may go on trying or stop at once"),
    ("T22", "Re-appearing, the subscriber queries since the last event it had"),
    ("T23", "Processes the result"),
    ("T24", "Re-subscribes from the last one it now has"),
    ("T25", "With a different id"),
    ("T26", "Cancels the old subscription"),
    ("T27", "And rejects every event that still comes with the old id"),
    "Subscriber",
    ("T28", "Events come only through one queue, handled in order"),
    ("T29", "The queue keeps the stamp of the last event it added"),
    ("T30", "It adds a new event only if it directly follows that one"),
    ("T31", "Otherwise discards it (covers repeats **and** gaps)"),
    ("T32", "A timer counts from the last event added; its length is the application's and may adapt"),
    ("T33", "On timeout the publisher is queried with the last stamp"),
    ("T34", "Nothing found → nothing happens"),
    ("T35", "Something found → the subscription has failed: the found events go into the own queue"),
    ("T36", "The subscription is cancelled"),
    ("T37", "A new one is made from the last event inserted"),
    "Observations",
    ("T38", "The publisher keeps no state per subscriber"),
    ("T39", "Push and poll subscribers both work"),
    ("T40", "A subscriber keeps one stamp as state"),
    ("T41", "It may poll or be pushed, and change between them at run time without loss"),
    ("T42", "A publisher need never push; then it is polling"),
    ("T43", "Works where pushing is blocked"),
]


def page() -> str:
    """The text of patterns-map.md."""
    tests = marked("covers")
    lines = [INTRODUCTION]
    for row in ROWS:
        if isinstance(row, str):
            lines += ["", f"### {row}", "", "| id | statement | tests |", "|---|---|---|"]
        elif row[0] == "#":
            lines += ["", f"## {row[1]}", "", f"{row[2]}."]
        else:
            lines.append(f"| {row[0]} | {row[1]} | {_shown(tests.get(row[0], []))} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _shown(tests: list[str]) -> str:
    files = sorted({test.partition("::")[0] for test in tests})
    return ", ".join(f"`{file}`" for file in files) if files else "none yet"


if __name__ == "__main__":
    fresh = page()
    if sys.argv[1:] == ["--check"]:
        sys.exit(
            0
            if PAGE.exists() and PAGE.read_text(encoding="utf-8") == fresh
            else f"{PAGE.name} is out of date: run {__file__}"
        )
    PAGE.write_text(fresh, encoding="utf-8")
