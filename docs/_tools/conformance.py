"""Writes conformance.md: the behaviours that the tests of other clients require, and the tests that verify them here.

    python docs/_tools/conformance.py            writes docs/conformance.md
    python docs/_tools/conformance.py --check    exit code 1 if it is out of date

The behaviours are in the table below; the tests are found by their ``row`` marks.
"""

from marked import ROOT, marked, write

PAGE = ROOT / "docs" / "conformance.md"

INTRODUCTION = """\
# Conformance, row by row

<!-- Written by docs/_tools/conformance.py. -->

The behaviours that the test suites of the Go, Rust, Java and JavaScript clients require of a JetStream client, in our
own words, and the tests that verify them here. *Differs* marks a behaviour of jsclient that is different, and describes
it. Rows 1 to 33, the subscribe workflow of ADR-15, are part of {doc}`spec-map`. If a behaviour depends on a race, its
test runs it at least 200 times.

A test names the row that it verifies: `@pytest.mark.row(64)`.
"""

# (number, behaviour), and headings.
ROWS = [
    "Statuses, heartbeats, flow control, gaps",
    (
        34,
        "Heartbeats and flow control never reach the user; every message arrives; the queue stays within its limit",
    ),
    (35, "Large messages through a slow callback under flow control do not stall"),
    (36, "An iteration under flow control does not stall"),
    (37, "A lost flow control request or answer is recovered from the stalled heartbeat"),
    (38, "An ordered reader under flow control is never a slow consumer"),
    (
        39,
        "Each flow control subject is answered once; a forbidden subject is reported. *Differs*: a request is also "
        "answered without flow control in the configuration; pull readers answer none",
    ),
    (
        40,
        "The alarm fires after three heartbeats or as configured, once per period; anything that arrives postpones it",
    ),
    (41, "The alarm fires when the consumer is gone, for `next`, callbacks and ordered readers"),
    (42, "The alarm is reported and reading continues"),
    (43, "The same for a push stream; its flow control is answered"),
    (44, "An idle pull with heartbeats raises no alarm; one whose consumer was deleted does"),
    (
        45,
        "404, 408 and Batch Completed are silent; Exceeded MaxWaiting is reported; a deleted consumer, a push "
        "consumer and a bad request are errors. *Differs*: limits that repeating the request cannot change (batch, "
        "expires, bytes) end a continuous reader with an error",
    ),
    (46, "A limit in bytes: no message fits, all but the last fit, filled to the byte"),
    (47, "Exceeding a limit of the consumer raises a named error, from a fetch and from a continuous reader"),
    (48, "A fetch raises warnings; a continuous reader reports them as events"),
    (49, "Status descriptions are compared case-insensitively"),
    (50, "Heartbeat monitoring does not depend on `expires`"),
    "Pull: fetch, next, messages",
    (51, "A fetch returns the requested messages and ends"),
    (
        52,
        "Consumer or stream deleted during a fetch: the messages that arrived are kept, next to the error",
    ),
    (53, "Without waiting: returns at once, with no messages or some, and no error"),
    (
        54,
        "Empty after the timeout, without error; invalid timeouts are refused. *Differs*: less than a second is "
        "accepted, as servers accept it",
    ),
    (55, "A consumer that does not exist is an error at once (before server 2.12, through its heartbeats)"),
    (
        56,
        "A fetch by bytes: exact, the last does not fit, one is too large, not filled before the timeout",
    ),
    (57, "Concurrent fetches: each message once"),
    (58, "The expiry of one request never ends another"),
    (59, "Cancelled during a fetch: no message that arrived is lost"),
    (60, "A batch below one is refused; expired or abandoned pulls do not count as waiting"),
    (
        61,
        "Too many waiting pulls raise a named error; requests after the end are refused; `no_wait` returns the "
        "available messages",
    ),
    (
        62,
        "A connection lost during a fetch is an error. *Differs*: only if it is not back within 0.8 s; otherwise the "
        "rest is requested again",
    ),
    (63, "Refills keep a continuous reader between its threshold and its maximum"),
    (64, "No threshold makes it stop"),
    (65, "Removing the consumer ends it with an error, after the messages that arrived"),
    (
        66,
        "Stop after n messages: exactly n. *Differs*: there is no such option; leaving the loop returns the rest to "
        "the server, and `fetch` requests at most n",
    ),
    (
        67,
        "Stop is idempotent, also concurrently with a drain; nothing arrives after it; a new reader continues, with "
        "all waiting messages",
    ),
    (68, "A server restart needs no action by the user"),
    (69, "Drain: delivers the messages that arrived, then ends visibly"),
    (70, "409 Batch Completed is followed by the next request"),
    (71, "Limits in messages and in bytes hold together"),
    (
        72,
        "Heartbeats that stop are reported; the outstanding count is reset and messages are requested again",
    ),
    (73, "Two readers of one consumer share its messages"),
    (74, "Closing the connection for good ends every reader"),
    (75, "A reader can be ended from its event handler"),
    (76, "The size of a request, given the waiting and the outstanding messages: a table"),
    (
        77,
        "Deleting the consumer during a waiting call is an error at once; a timeout of one call ends no reader",
    ),
    (78, "No request is sent before the first read"),
    (79, "Many reconnects: every message is acked, and each repetition is marked as one"),
    (80, "Messages and bytes are counted correctly"),
    (81, "Nothing remains: no subscription, listener or task"),
    (
        82,
        "A missing stream or consumer is reported, and the request repeated. *Differs*: after 5 s the server is asked, "
        "and the reader ends if the server confirms it; `fetch` and `next` raise at once",
    ),
    (83, "Refusals slow the reader down: no hot loop"),
    (84, "A maximum of one message keeps flowing"),
    (
        85,
        "A reader of an empty stream can end. *Differs*: `no_wait` cannot be combined with `expires`; it returns at "
        "once",
    ),
    "Priority groups, pause, reset",
    (86, "Overflow: no messages below the threshold, messages above it; the group is required"),
    (
        87,
        "Pinned: one client receives; a wrong group is refused; another client takes over; 423 clears the id",
    ),
    (88, "Unpin moves the pin; an unknown consumer or group is an error"),
    (89, "Prioritized: the lower number first, the next when it leaves"),
    (90, "Paused: no deliveries, and the remaining time is shown; resumed: deliveries continue"),
    (
        91,
        "Reset: to the ack floor or a sequence; invalid targets are refused; requires a recent server",
    ),
    "Ordered consumers (push form)",
    (
        92,
        "1 MiB arrives intact (SHA-256) with one, a tenth, the first or the last delivery lost; with `next` and with a "
        "callback; with a start time",
    ),
    (93, "Durable, queue, ack policy, `max_deliver` and deliver subject are refused"),
    (94, "A reader that takes ten has ten, over any number of resets. *Differs*: no option for it"),
    (95, "A consumer lost in a restart is recreated, at the same position"),
    (96, "Stream deleted: an error. Consumer deleted: recreated"),
    (97, "A reset before the first message keeps the deliver policy"),
    (98, "Every deliver policy is kept; later resets go by the sequence"),
    (99, "No gap after a deletion, a restart, or heartbeats that stopped"),
    (
        100,
        "A reader with a callback passes its messages to no other reader. *Differs*: several tasks may read from one "
        "reader; each gets a different message",
    ),
    (101, "The remaining messages are counted over resets. *Differs*: as row 94"),
    (102, "Drained, or ended during a reset: no hang, and no task remains"),
    (103, "An error, a timeout or a cancelled call does not lose the position"),
    (104, "In order, with the configuration of ADR-17. *Differs*: the server names the consumers"),
    (105, "No read during a restart: the reader continues anyway"),
    (106, "No read for longer than the alarm: waiting messages are kept, and there is no false alarm"),
    (107, "A start past deleted messages is not a gap"),
    (108, "A full queue: read again, complete"),
    (109, "Injected gaps, repetitions and reconnects"),
    (
        110,
        "The first consumer cannot be created: an error at once. *Differs*: creating a later one is retried "
        "indefinitely, with pauses, and reported; only a stream that is missing for 5 s ends the reader",
    ),
    "Acks",
    (111, "Each kind of ack has its payload"),
    (112, "One terminal ack is sent; in-progress acks may be repeated before it"),
    (113, "Redelivered after the delay, and after each interval of the backoff"),
    (114, "The automatic ack is for callbacks; not with ack policy none, nor if it is switched off"),
    (115, "With ack policy none no ack is sent"),
    (116, "The server's count of pending acks after each kind of ack"),
    (117, "No automatic ack after one sent by the handler"),
    (118, "The ack methods of a message work after its subscription has ended and the message is dropped"),
    "Ends",
    (119, "Consumers created are deleted, ephemeral or durable; existing ones are kept"),
    (
        120,
        "Closing a nats-py connection that the user made deletes nothing; closing jsclient deletes ephemeral "
        "consumers, never durable ones",
    ),
    (121, "An error in the deletion is raised, and the subscription is closed anyway"),
    (122, "In a drain that error is an event"),
    (123, "Four subscriptions drained under load: every ack succeeds"),
    (
        124,
        "Messages that a reader requested can be taken after its drain; then it is closed. *Differs*: ending the whole "
        "pull subscription returns unread messages to the server",
    ),
    (125, "Cancelling the scope unsubscribes and deletes"),
    (126, "Ends are idempotent; subscribing again works; a queue group shares"),
    (127, "A durable push consumer is read on after the connection dropped"),
    "Publishing",
    (128, "Each expectation: success, the number in a mismatch, zero as a value"),
    (129, "Concurrent publishing: nothing pending after a disconnect, failures, timeouts, retries"),
    (130, "A full window waits, then raises; it recovers after a restart"),
    (131, "The end removes the reply subscription and fails pending publishes"),
    (132, "Time to live, and the headers of markers"),
    (133, "Scheduled messages: headers and delivery"),
    (134, "Atomic batches and fast ingest"),
    (135, "A full window: error or waiting"),
    "Management",
    (136, "Streams and consumers: created, updated, listed page by page, names checked"),
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
