"""Writes spec-map.md: which module does what an acceptance item of ADR-15 asks for, and which tests show it.

    python docs/spec_map.py            writes docs/spec-map.md
    python docs/spec_map.py --check    exit code 1 where it is not up to date

Statements and modules stand in the table below; the tests are found by their ``covers`` marks.
"""

from marked import ROOT, marked, write

PAGE = ROOT / "docs" / "spec-map.md"

# (number, statement, module), and headings.
ITEMS = [
    ("Creating: what the user gives", None),
    (1, "callback, next, iteration; push or pull; queue or not", "client"),
    (2, "the inputs of subscribe", "client"),
    (3, "misconfiguration is reported outright, nothing is left behind", "protocol.request"),
    (4, "queue and idle heartbeat: error", "protocol.request"),
    (5, "queue and flow control: error", "protocol.request"),
    (6, "neither subject nor stream: error", "protocol.request"),
    (7, "pull with ack policy none: error", "protocol.request"),
    (8, "pull with ack policy all: error", "protocol.request"),
    (9, "the fields of ConsumerConfig, durations and times", "protocol.models.consumer"),
    (10, "the three policies are always sent, the rest when set", "protocol.models.consumer"),
    (11, "max_waiting on a push consumer: the server's error", "protocol.api"),
    (12, "opt_start_seq without its policy: the server's error", "protocol.api"),
    (13, "opt_start_time without its policy: the server's error", "protocol.api"),
    ("Stream name", None),
    (14, "no stream: the subject is required", "protocol.request"),
    (15, "the request for stream names, with prefix and domain", "protocol.subjects"),
    (16, "one name: that stream", "protocol.subscribe"),
    (17, "no name: no matching stream", "protocol.subscribe"),
    (18, "several names: the same error", "protocol.subscribe"),
    (19, "an API error: error", "_runtime.binding"),
    (20, "stream given: no lookup; the subject is still the filter", "protocol.subscribe"),
    ("Consumer name", None),
    (21, "a consumer name means an existing consumer", "protocol.subscribe"),
    (22, "push: lookup fails, error", "protocol.subscribe"),
    (23, "pull: lookup fails, it goes on", "protocol.subscribe"),
    ("Queue name", None),
    (24, "the queue name becomes the durable name", "protocol.subscribe"),
    (25, "members share one consumer; one gets each message", "protocol.subscribe"),
    (26, "a queue name that is no consumer name: error", "protocol.names"),
    ("Binding checks", None),
    (27, "bound and no group: duplicate subscription", "protocol.binding"),
    (28, "plain subscription, consumer with a group: error", "protocol.binding"),
    (29, "another group: error", "protocol.binding"),
    (30, "queue, consumer without a group: error", "protocol.binding"),
    (31, "the same group: allowed", "protocol.binding"),
    (32, "not bound, no group: allowed", "protocol.binding"),
    (33, "another filter subject: error", "protocol.binding"),
    (34, "pull on a push consumer: error", "protocol.binding"),
    (35, "push on a pull consumer: error", "protocol.binding"),
    (36, "a field that was set differs: error with field and values", "protocol.models.mismatch"),
    (37, "another deliver subject alone is no mismatch", "protocol.models.mismatch"),
    (38, "flow control and queue: error", "protocol.binding"),
    (39, "heartbeat and queue: error", "protocol.binding"),
    ("The NATS subscription", None),
    (40, "on the deliver subject found, or on an inbox", "protocol.subscribe"),
    (41, "made before the create request", "protocol.subscribe"),
    (42, "so a second attempt on a durable is refused", "protocol.subscribe"),
    ("Creating the consumer", None),
    (43, "only without a consumer name, or when the durable is not there", "protocol.subscribe"),
    (44, "the user's config is not changed", "protocol.subscribe"),
    (45, "push: an inbox is chosen", "_runtime.binding"),
    (46, "pull: no deliver subject", "protocol.request"),
    (47, "filter subject: the user's subject", "protocol.request"),
    (48, "ack policy is ensured; max_ack_pending may be set", "protocol.request"),
    (49, "deliver group: the queue", "protocol.request"),
    (50, "durable: the subject of the request", "_runtime.binding"),
    (51, "ephemeral: the subject of the request", "_runtime.binding"),
    (52, "it is remembered who created the consumer", "protocol.subscribe"),
    (53, "the name of an ephemeral is the server's", "protocol.subscribe"),
    (54, "already exists: looked up, checked", "protocol.subscribe"),
    (55, "that race, pull: type checks only", "protocol.subscribe"),
    (56, "that race, push without queue: error", "protocol.subscribe"),
    (57, "that race, push with queue: goes on", "protocol.subscribe"),
    (58, "that race: the NATS subscription is replaced", "protocol.subscribe"),
    (59, "that race: the consumer is not ours", "protocol.subscribe"),
    (60, "another create error: raised, the NATS subscription removed", "_runtime.binding"),
    ("JSAck", None),
    (61, "a reply that starts $JS.ACK", "protocol.ack"),
    (62, "the reply is used unmodified", "message"),
    (63, "9 tokens", "protocol.ack"),
    (64, "11 tokens", "protocol.ack"),
    (65, "12 and more tokens", "protocol.ack"),
    (66, "anything else: error", "protocol.ack"),
    (67, "both forms give the same fields", "protocol.ack"),
    (68, "domain _ is None", "protocol.ack"),
    (69, "the account hash is not used", "protocol.ack"),
    (70, "the nanoseconds are kept", "protocol.ack"),
    ("Acks", None),
    (71, "a publish to the JSAck", "message"),
    (72, "+ACK", "protocol.ack"),
    (73, "-NAK", "protocol.ack"),
    (74, "+TERM", "protocol.ack"),
    (75, "+WPI", "protocol.ack"),
    (76, "after a terminal ack all others are ignored", "protocol.ack"),
    (77, "+WPI is not terminal", "protocol.ack"),
    (78, "the state is set after the publish succeeded", "protocol.ack"),
    (79, "ack policy none: nothing is sent", "message"),
    (80, "an ack raises only when publishing fails", "message"),
    ("Automatic status management", None),
    (81, "no status reaches user code", "protocol.push"),
    (82, "a timer watches where there is an idle heartbeat", "protocol.heartbeat"),
    (83, "messages and statuses reset it", "protocol.push"),
    (84, "silence: an alarm through the events", "protocol.push"),
    (85, "after 3 intervals", "protocol.heartbeat"),
    (86, "configurable", "subscribing"),
    (87, "it ends with the subscription, and does not end it", "protocol.heartbeat"),
    (88, "sequences are taken from the JSAck", "protocol.ack"),
    (89, "and from the headers of heartbeats", "protocol.push"),
    (90, "a gap is surfaced with its sequences", "protocol.gap"),
    (91, "not in queue groups", "subscribing"),
    (92, "it can be taken over or switched off", "subscribing"),
    (93, "ordered: a gap makes a new consumer", "protocol.ordered"),
    (94, "ordered: missed heartbeats too; its config", "protocol.ordered"),
    (95, "flow control is answered at its place in the queue", "protocol.push"),
    (96, "with an empty publish to its reply", "subscription"),
    (97, "next goes on behind it within its time", "push_reader"),
    (98, "the subject is not inspected", "protocol.flow_control"),
    (99, "it needs a heartbeat: the server's error", "protocol.api"),
    (100, "a stalled heartbeat is answered", "protocol.push"),
    (101, "one answer for each subject", "protocol.flow_control"),
    (102, "not for pull", "protocol.pull"),
    (103, "404 is neither surfaced nor counted", "protocol.status"),
    (104, "408 the same", "protocol.status"),
    (105, "409 is raised", "protocol.status"),
    (106, "503 is raised", "protocol.status"),
    (107, "an unknown status is raised", "protocol.status"),
    ("Unsubscribe and drain", None),
    (108, "unsubscribe deletes what we created", "subscription"),
    (109, "its error is raised", "subscription"),
    (110, "drain deletes after everything is drained", "subscription"),
    (111, "its failure is an event", "subscription"),
    (112, "what we did not create is never deleted", "subscription"),
    (113, "what we created is, ephemeral or durable", "subscription"),
    (114, "the queue example holds, and there is a way out", "subscription"),
]


def page() -> str:
    """The text of spec-map.md."""
    tests = marked("covers")
    lines = [
        "# From ADR-15 to module and test",
        "",
        "<!-- Written by docs/spec_map.py. -->",
        "",
        "The statements of ADR-15 by number, the module of `jsclient` that decides, and the tests that show it. A test",
        'names what it shows: `@pytest.mark.covers("J26")`.',
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
