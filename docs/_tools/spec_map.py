"""Writes spec-map.md: the module that implements each acceptance item of ADR-15, and the tests that verify it.

    python docs/_tools/spec_map.py            writes docs/spec-map.md
    python docs/_tools/spec_map.py --check    exit code 1 if it is out of date

Statements and modules are in the table below; the tests are found by their ``covers`` marks.
"""

from marked import ROOT, marked, write

PAGE = ROOT / "docs" / "spec-map.md"

# ruff: noqa: E501  the statements as they are

# (number, statement, module), and headings.
ITEMS = [
    ("Creating: the arguments", None),
    (
        1,
        "callback (push only), next, iteration; push or pull; with or without a queue (push only)",
        "client",
    ),
    (
        2,
        "the inputs of subscribe; push or pull is the choice of the method, and a pull subscription has no queue and no handler",
        "client",
    ),
    (
        3,
        "misconfiguration is reported at once, and nothing remains",
        "protocol.consumers.subscribe",
    ),
    (4, "queue and idle heartbeat: error", "protocol.consumers.subscribe"),
    (5, "queue and flow control: error", "protocol.consumers.subscribe"),
    (6, "neither subject nor stream: error", "protocol.consumers.subscribe"),
    (7, "pull with ack policy none: error", "protocol.consumers.subscribe"),
    (8, "pull with ack policy all: error", "protocol.consumers.subscribe"),
    (9, "the fields of ConsumerConfig, durations and times", "protocol.models.consumer"),
    (10, "the three policies are always sent, the rest when set", "protocol.models.consumer"),
    (11, "max_waiting on a push consumer: the server's error", "protocol.wire.api"),
    (12, "opt_start_seq without its policy: the server's error", "protocol.wire.api"),
    (13, "opt_start_time without its policy: the server's error", "protocol.wire.api"),
    ("Stream name", None),
    (14, "no stream: the subject is required", "protocol.consumers.subscribe"),
    (15, "the request for stream names, with prefix and domain", "protocol.wire.api"),
    (16, "one name: that stream", "protocol.consumers.subscribe"),
    (17, "no name: no matching stream", "protocol.consumers.subscribe"),
    (18, "several names: the same error", "protocol.consumers.subscribe"),
    (19, "an API error: error", "consumers.opening"),
    (20, "stream given: no lookup; the subject is still the filter", "protocol.consumers.subscribe"),
    ("Consumer name", None),
    (21, "a consumer name means an existing consumer", "protocol.consumers.subscribe"),
    (22, "push: lookup fails, error", "protocol.consumers.subscribe"),
    (23, "pull: lookup fails, binding continues", "protocol.consumers.subscribe"),
    ("Queue name", None),
    (24, "the queue name becomes the durable name", "protocol.consumers.subscribe"),
    (25, "members share one consumer; one gets each message", "protocol.consumers.subscribe"),
    (26, "a queue name that is not a valid consumer name: error", "protocol.wire.names"),
    ("Binding checks", None),
    (27, "bound and no group: duplicate subscription", "protocol.consumers.subscribe"),
    (28, "plain subscription, consumer with a group: error", "protocol.consumers.subscribe"),
    (29, "a different group: error", "protocol.consumers.subscribe"),
    (30, "queue, consumer without a group: error", "protocol.consumers.subscribe"),
    (31, "the same group: allowed", "protocol.consumers.subscribe"),
    (32, "not bound, no group: allowed", "protocol.consumers.subscribe"),
    (33, "a different filter subject: error", "protocol.consumers.subscribe"),
    (34, "pull on a push consumer: error", "protocol.consumers.subscribe"),
    (35, "push on a pull consumer: error", "protocol.consumers.subscribe"),
    (36, "a field that the user set differs: error with field and values", "protocol.models.drift"),
    (37, "a different deliver subject alone is not a mismatch", "protocol.models.drift"),
    (38, "flow control and queue: error", "protocol.consumers.subscribe"),
    (39, "heartbeat and queue: error", "protocol.consumers.subscribe"),
    ("The NATS subscription", None),
    (40, "on the existing deliver subject, or on an inbox", "protocol.consumers.subscribe"),
    (41, "made before the create request", "protocol.consumers.subscribe"),
    (42, "so a second attempt on a durable is refused", "protocol.consumers.subscribe"),
    ("Creating the consumer", None),
    (43, "only without a consumer name, or if the durable does not exist", "protocol.consumers.subscribe"),
    (44, "the user's config is not changed", "protocol.consumers.subscribe"),
    (45, "push: an inbox is chosen", "consumers.opening"),
    (46, "pull: no deliver subject", "protocol.consumers.subscribe"),
    (47, "filter subject: the user's subject", "protocol.consumers.subscribe"),
    (48, "ack policy is ensured; max_ack_pending may be set", "protocol.consumers.subscribe"),
    (49, "deliver group: the queue", "protocol.consumers.subscribe"),
    (50, "durable: the subject of the request", "consumers.opening"),
    (51, "ephemeral: the subject of the request", "consumers.opening"),
    (52, "the subscription records whether it created the consumer", "protocol.consumers.subscribe"),
    (53, "the server names an ephemeral", "protocol.consumers.subscribe"),
    (54, "already exists: look up and check", "protocol.consumers.subscribe"),
    (55, "that race, pull: type checks only", "protocol.consumers.subscribe"),
    (56, "that race, push without queue: error", "protocol.consumers.subscribe"),
    (57, "that race, push with queue: binds", "protocol.consumers.subscribe"),
    (58, "that race: the NATS subscription is replaced", "protocol.consumers.subscribe"),
    (59, "that race: the subscription did not create the consumer", "protocol.consumers.subscribe"),
    (60, "any other create error: raised, the NATS subscription removed", "consumers.opening"),
    ("JSAck", None),
    (61, "a reply that starts $JS.ACK", "protocol.consumers.ack"),
    (
        62,
        "the reply is used unmodified; only Spark's queue mode builds it again, from ranges of claims, with 0 as its time",
        "consumers.message",
    ),
    (63, "9 tokens", "protocol.consumers.ack"),
    (64, "11 tokens", "protocol.consumers.ack"),
    (65, "12 and more tokens", "protocol.consumers.ack"),
    (66, "anything else: error", "protocol.consumers.ack"),
    (67, "both forms give the same fields", "protocol.consumers.ack"),
    (68, "domain _ is None", "protocol.consumers.ack"),
    (69, "the account hash is not used", "protocol.consumers.ack"),
    (70, "the nanoseconds are kept", "protocol.consumers.ack"),
    ("Acks", None),
    (71, "a publish to the JSAck", "consumers.message"),
    (72, "+ACK", "protocol.consumers.ack"),
    (73, "-NAK", "protocol.consumers.ack"),
    (74, "+TERM", "protocol.consumers.ack"),
    (75, "+WPI", "protocol.consumers.ack"),
    (76, "after a terminal ack all further acks are ignored", "protocol.consumers.ack"),
    (77, "+WPI is not terminal", "protocol.consumers.ack"),
    (78, "the state is set after the publish succeeded", "protocol.consumers.ack"),
    (79, "ack policy none: no ack is sent", "consumers.message"),
    (80, "an ack raises only when publishing fails", "consumers.message"),
    ("Automatic status management", None),
    (81, "no status reaches user code", "protocol.consumers.push"),
    (82, "with an idle heartbeat, a timer monitors it", "protocol.consumers.monitors"),
    (83, "messages and statuses reset it", "protocol.consumers.push"),
    (84, "silence: an alarm, reported as an event", "protocol.consumers.push"),
    (85, "after 3 intervals", "protocol.consumers.monitors"),
    (86, "configurable", "consumers.opening"),
    (87, "it ends with the subscription, and does not end it", "protocol.consumers.monitors"),
    (88, "sequences are read from the JSAck", "protocol.consumers.ack"),
    (89, "and from the headers of heartbeats", "protocol.consumers.push"),
    (90, "a gap is reported with its sequences", "protocol.consumers.monitors"),
    (91, "not in queue groups", "consumers.opening"),
    (92, "it can be handled by the user or switched off", "consumers.opening"),
    (93, "ordered: a gap creates a new consumer", "protocol.consumers.ordered"),
    (94, "ordered: so do missed heartbeats; its configuration", "protocol.consumers.ordered"),
    (95, "flow control is answered at its place in the queue", "protocol.consumers.push"),
    (
        96,
        "with an empty publish to its reply, if that is below `$JS.FC.` or allowed; another one is refused and reported",
        "consumers.push.subscription",
    ),
    (97, "next continues after it, within its timeout", "consumers.push.buffer"),
    (98, "the subject is not inspected", "protocol.consumers.monitors"),
    (99, "it requires a heartbeat: the server's error", "protocol.wire.api"),
    (100, "a stalled heartbeat is answered", "protocol.consumers.push"),
    (101, "one answer per subject", "protocol.consumers.monitors"),
    (102, "not for pull", "protocol.consumers.fetch"),
    (103, "404 is neither reported nor counted", "protocol.consumers.status"),
    (104, "408 the same", "protocol.consumers.status"),
    (105, "409 is raised", "protocol.consumers.status"),
    (106, "503 is raised", "protocol.consumers.status"),
    (107, "an unknown status is raised", "protocol.consumers.status"),
    ("Unsubscribe and drain", None),
    (108, "unsubscribe deletes a consumer that it created", "consumers.push.subscription"),
    (109, "an error in doing so is raised", "consumers.push.subscription"),
    (110, "drain deletes it after everything is drained", "consumers.push.subscription"),
    (111, "a failure to delete is an event", "consumers.push.subscription"),
    (112, "a consumer that it did not create is never deleted", "consumers.push.subscription"),
    (113, "one that it created is, ephemeral or durable", "consumers.push.subscription"),
    (114, "the queue example works as written, with an alternative", "consumers.push.subscription"),
]


def page() -> str:
    """The text of spec-map.md."""
    tests = marked("covers")
    lines = [
        "# From ADR-15 to module and test",
        "",
        "<!-- Written by docs/_tools/spec_map.py. -->",
        "",
        "The statements of ADR-15 by number, the module of `jsclient` that implements each, and its tests. A test",
        'names the items that it verifies: `@pytest.mark.covers("J26")`.',
        "",
    ]
    for item in ITEMS:
        if len(item) == 2:
            lines += ["", f"## {item[0]}", "", "| id | statement | module | tests |", "|---|---|---|---|"]
            continue
        number, statement, module = item
        shown = tests.get(f"J{number}", [])
        lines.append(f"| J{number} | {statement} | `{module}` | {_shown(shown)} |")
    text = "\n".join(lines).replace("\n\n\n", "\n\n")
    return text + "\n"


def _shown(tests: list[str]) -> str:
    """The files: they change less often than the names of tests. Against a real server first: the stronger word."""
    files = sorted({test.partition("::")[0] for test in tests})
    return ", ".join(f"`{file}`" for file in files) if files else "none yet"


if __name__ == "__main__":
    write(PAGE, page())
