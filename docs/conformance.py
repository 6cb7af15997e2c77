"""Writes conformance.md: what the tests of other clients hold a JetStream client to, and which tests here show it.

    python docs/conformance.py            writes docs/conformance.md
    python docs/conformance.py --check    exit code 1 where it is not up to date

The behaviours stand in the table below; the tests are found by their ``row`` marks.
"""

from marked import ROOT, marked, write

PAGE = ROOT / "docs" / "conformance.md"

INTRODUCTION = """\
# Conformance, row by row

<!-- Written by docs/conformance.py. -->

What the test suites of the Go, Rust, Java and JavaScript clients hold a JetStream client to, in our words, and the
tests that show it here. *Differs* says where jsclient does something else, and what. Rows 1 to 33, the subscribe
workflow of ADR-15, are part of {doc}`spec-map`. Where a behaviour is a race, its test runs it at least 200 times.

A test names what it shows: `@pytest.mark.row(64)`.
"""

# (number, behaviour), and headings.
ROWS = [
    "Statuses, heartbeats, flow control, gaps",
    (34, "Heartbeats and flow control never reach the user; every message comes; what waits keeps its limit"),
    (35, "Large messages through a slow callback under flow control: no stall"),
    (36, "An iteration under flow control does not stall"),
    (37, "A lost request or answer of flow control is made good from the stalled heartbeat"),
    (38, "An ordered reader under flow control is not a slow consumer, however slow it is"),
    (
        39,
        "One answer for each flow control subject; what must not be published to is told. *Differs*: a request is "
        "answered without flow control in the configuration too; pull readers answer none",
    ),
    (
        40,
        "The alarm comes after three heartbeats or as configured, anything that arrives puts it off, one a period",
    ),
    (41, "The alarm comes for readers that ask, have a callback or are ordered, when the consumer is gone"),
    (42, "The alarm is told and reading goes on"),
    (43, "The same for a push stream; its flow control is answered"),
    (44, "A pull that is idle with heartbeats raises no alarm; one whose consumer was deleted does"),
    (
        45,
        "404, 408 and Batch Completed are silent; Exceeded MaxWaiting is told; a deleted or push consumer and a bad "
        "request are errors. *Differs*: limits that asking again cannot change (batch, expires, bytes) end a "
        "continuous reader with an error",
    ),
    (46, "A bound in bytes: nothing fits, all but the last, filled to the byte"),
    (47, "A limit of the consumer is raised by name, from a fetch and from a continuous reader"),
    (48, "Warnings are raised: a fetch raises them, a continuous reader tells them as events"),
    (49, "Descriptions of statuses are read without regard to case"),
    (50, "The watch over heartbeats does not depend on `expires`"),
    "Pull: fetch, next, messages",
    (51, "A fetch brings what it asked for and ends"),
    (52, "Consumer or stream deleted in the middle: what came is kept, the error beside it"),
    (53, "Without waiting: at once, with nothing or a part, no error"),
    (
        54,
        "Empty when the time is over, no error; times that cannot be are refused. *Differs*: less than a second is "
        "taken, as servers take it",
    ),
    (55, "A consumer that does not exist is an error at once (before server 2.12, by its heartbeats)"),
    (56, "A fetch by bytes: exact, the last does not fit, one is too large, not filled in time"),
    (57, "Fetches at the same time: each message once"),
    (58, "The expiry of one request never ends another"),
    (59, "Cancelled in the middle: nothing that came is lost"),
    (60, "A batch under one is refused; pulls that expired, or were left, do not count as waiting"),
    (
        61,
        "Too many waiting pulls are named; nothing can be asked after the end; `no_wait` takes what is there",
    ),
    (
        62,
        "A connection lost under a fetch is an error. *Differs*: only where it is not back in 0.8 s; else the rest is "
        "asked for again",
    ),
    (63, "Refills keep a continuous reader between its threshold and its maximum"),
    (64, "No threshold makes it stand still"),
    (65, "A consumer that is removed ends it with an error, behind what had come"),
    (
        66,
        "Stop after n messages: exactly n. *Differs*: no option for it; whoever leaves the loop gives the rest back, "
        "and `fetch` asks for no more than n",
    ),
    (
        67,
        "Stop is idempotent, beside a drain too; nothing comes after it; a new reader goes on, with all that waited",
    ),
    (68, "A restart of the server needs no step of the user"),
    (69, "Drain: what had come is handed over, then the end, which can be seen"),
    (70, "409 Batch Completed is followed by the next request"),
    (71, "A bound in messages and one in bytes hold together"),
    (72, "Heartbeats that stop: told, what was owed is forgotten, asked for again"),
    (73, "Two readers of one consumer share its messages"),
    (74, "A connection that is closed for good ends every reader"),
    (75, "Ending a reader where its events are told is safe"),
    (76, "What is asked for, from what waits and what is owed: a table"),
    (
        77,
        "The consumer deleted under a waiting call is an error at once; a timeout of one call ends no reader",
    ),
    (78, "Nothing is asked for before the first read"),
    (79, "Many reconnects: every message acked, no repeat that is not announced"),
    (80, "Messages and bytes are counted right"),
    (81, "Nothing is left: no subscription, listener or task"),
    (
        82,
        "A stream or consumer that is not there: told, asked again. *Differs*: after 5 s the server is asked, and if "
        "it says so the reader ends; `fetch` and `next` raise at once",
    ),
    (83, "Refusals slow the reader down: no hot loop"),
    (84, "A maximum of one message keeps flowing"),
    (
        85,
        "A reader of an empty stream can end. *Differs*: `no_wait` does not go with `expires`; it returns at once",
    ),
    "Priority groups, pause, reset",
    (86, "Overflow: nothing below the threshold, messages above it; the group is required"),
    (87, "Pinned: one client receives; a wrong group is refused; another takes over; 423 clears the id"),
    (88, "Unpin moves the pin; an unknown consumer or group is an error"),
    (89, "Prioritized: the lower number first, the next when it leaves"),
    (90, "Paused: nothing is delivered and the rest of the time is shown; resumed: it goes on"),
    (91, "Reset: to the ack floor or a sequence; what may not be is refused; needs the server's version"),
    "Ordered consumers (push form)",
    (
        92,
        "1 MiB comes intact (SHA-256) with one, a tenth, the first or the last delivery lost; asked for and with a "
        "callback; with a start time",
    ),
    (93, "Durable, queue, ack policy, `max_deliver` and deliver subject are refused"),
    (94, "A reader that takes ten has ten, over any number of resets. *Differs*: no option for it"),
    (95, "A consumer lost in a restart is made again, at the same position"),
    (96, "Stream deleted: an error. Consumer deleted: made again"),
    (97, "A reset before the first message keeps the start policy"),
    (98, "Every start policy is kept; later resets go by the sequence"),
    (99, "No hole after a deletion, a restart, heartbeats that stopped"),
    (
        100,
        "A reader with a callback hands its messages to nobody else. *Differs*: several may ask one reader at once; "
        "each gets another message",
    ),
    (101, "What was to come is counted over resets. *Differs*: as row 94"),
    (102, "Drained, or ended in the middle of a reset: no hang, nothing that lives on"),
    (103, "An error, a timeout or a cancelled call does not lose the position"),
    (104, "In order; the configuration of ADR-17. *Differs*: the server names its consumers"),
    (105, "Nobody asks during a restart: it goes on all the same"),
    (106, "Nobody asks for longer than the alarm: what waits is kept, and there is no false alarm"),
    (107, "A start past deleted messages is no gap"),
    (108, "A queue that is full: read again, complete"),
    (109, "Injected gaps, repeats and reconnects in the middle"),
    (
        110,
        "The first consumer cannot be made: an error at once. *Differs*: a later one is tried for ever, with pauses, "
        "and told; only a stream that stays away for 5 s is the end",
    ),
    "Acks",
    (111, "Each kind of ack has its payload"),
    (112, "One terminal ack goes out; in progress may be repeated before it"),
    (113, "It comes again after the delay, and after each time of its backoff"),
    (114, "The automatic ack is for callbacks; not with ack policy none, nor where it is switched off"),
    (115, "With ack policy none nothing is sent"),
    (116, "What the server counts as pending, after each kind of ack"),
    (117, "No automatic ack behind one of the handler's own"),
    (118, "What can ack works when the message is gone"),
    "Ends",
    (119, "What was created is deleted, ephemeral or durable; what was found is kept"),
    (
        120,
        "Closing a nats-py connection of the user's own deletes nothing; closing jsclient deletes ephemeral consumers, "
        "never durable ones",
    ),
    (121, "The error of a deletion is raised, and the subscription closed all the same"),
    (122, "In a drain that error is an event"),
    (123, "Four subscriptions drained under load: every ack succeeds"),
    (
        124,
        "What a reader had asked for can be taken after its drain; then it is closed. *Differs*: the end of the whole "
        "pull subscription gives back what nobody took",
    ),
    (125, "Cancelling the scope unsubscribes and deletes"),
    (126, "Ends are idempotent; one can subscribe again; a queue group shares"),
    (127, "A durable push consumer is read on after the connection dropped"),
    "Publishing",
    (128, "Each expectation: success, the number of a mismatch, zero as a value"),
    (129, "Publishing at once: nothing pending after a disconnect, failures, timeouts, retries"),
    (130, "A full window waits, then is an error; it recovers after a restart"),
    (131, "The end takes the reply subscription along and fails what is pending"),
    (132, "Time to live, and the headers of markers"),
    (133, "Scheduled messages: headers and delivery"),
    (134, "Atomic batches and fast ingest"),
    (135, "A full window: error or waiting"),
    "Management",
    (136, "Streams and consumers: created, changed, listed page by page, names checked"),
    (137, "Subjects past 100,000; the list of deleted messages"),
    (138, "Purging: by sequence, by number, by subject"),
    (139, "Direct gets: by sequence, last, next, not found, headers intact"),
    (140, "Every field that is sent comes back"),
]


def page() -> str:
    """The text of conformance.md."""
    tests = marked("row")
    lines = [INTRODUCTION]
    for row in ROWS:
        if isinstance(row, str):
            lines += ["", f"## {row}", "", "| row | behaviour | tests |", "|---|---|---|"]
        else:
            number, behaviour = row
            lines.append(f"| {number} | {behaviour} | {_shown(tests.get(str(number), []))} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _shown(tests: list[str]) -> str:
    return "<br>".join(f"`{test}`" for test in tests) if tests else "none yet"


if __name__ == "__main__":
    write(PAGE, page())
