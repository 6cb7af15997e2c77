"""What real servers and clients send, from which damaged input is made."""

from __future__ import annotations

ACK = b"$JS.ACK.ORDERS.worker.1.22.20.1700000000123456789.7"
ACK2 = b"$JS.ACK.hub.aHash.ORDERS.worker.1.22.20.1700000000123456789.7"
ACKS = (ACK, ACK2, ACK2 + b".x.y", ACK.replace(b".22.20.", b".18446744073709551615.1."))

BEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 20\r\nNats-Last-Stream: 22\r\n\r\n"
STALLED = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: $JS.FC.ORDERS.worker.a1\r\n\r\n"
FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
STATUSES = (
    BEAT,
    STALLED,
    FLOW,
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 120\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 423 Nats-Wrong-Pin-Id\r\n\r\n",
    b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n",
    b"NATS/1.0 409 Leadership Change\r\n\r\n",
    b"NATS/1.0 409 Server Shutdown\r\n\r\n",
)
BLOCKS = (
    *STATUSES,
    b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n",
    b"NATS/1.0\r\nNats-Pin-Id: 3FmBQ9XCFyqtBrWHzn6mP1\r\nNats-Msg-Id: 7\r\n\r\n",
    b"NATS/1.0\r\nJsc-Kind: finish\r\nNats-Expected-Last-Subject-Sequence: 7\r\n\r\n",
)
WIRE = (
    b"MSG orders.new 1 "
    + ACK
    + b" 5\r\nhello\r\nPING\r\nHMSG orders.new 1 81 81\r\n"
    + BEAT
    + b"\r\n+OK\r\n",
    b"HMSG a.b 1 r 12 17\r\nNATS/1.0\r\n\r\nhello\r\nMSG a 2 3\r\nabc\r\nMSG a 1 0\r\n\r\n-ERR 'x'\r\n",
    b"MSG a 1 2\r\nab\r\n" * 20,
)
PUB_ACKS = (
    b'{"stream":"ORDERS","seq":7}',
    b'{"stream":"ORDERS","seq":7,"duplicate":true,"domain":"hub"}',
    b'{"type":"io.nats.jetstream.api.v1.pub_ack_response","stream":"C","seq":3,"val":"12"}',
    b'{"stream":"B","seq":9,"batch":"id1","count":3}',
    b'{"stream":"ORDERS","seq":0,"duplicate":true}',
    b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"ORDERS","seq":0}',
)
REFUSED = b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'
CONSUMER_INFO = (
    b'{"type":"io.nats.jetstream.api.v1.consumer_info_response","stream_name":"ORDERS","name":"worker",'
    b'"created":"2026-01-01T00:00:00.123456789Z","config":{"ack_policy":"explicit","ack_wait":30000000000,'
    b'"deliver_policy":"all","filter_subject":"orders.>","backoff":[1000000000],"metadata":{"a":"b"},'
    b'"priority_groups":["a"],"priority_policy":"pinned_client"},"priority_groups":[{"group":"a","pinned_client_id":"x",'
    b'"pinned_ts":"2026-01-01T00:00:00Z"}],"delivered":{"consumer_seq":1,"stream_seq":2,'
    b'"last_active":"2026-01-01T00:00:00Z"},"ack_floor":{"consumer_seq":1,"stream_seq":2},"num_ack_pending":1,'
    b'"num_redelivered":0,"num_waiting":1,"num_pending":3,"push_bound":true,"paused":true,"pause_remaining":5,'
    b'"cluster":{"name":"c","leader":"n1","replicas":[{"name":"n2","current":true,"active":1}]},'
    b'"ts":"2026-01-01T00:00:00Z"}'
)
STREAM_INFO = (
    b'{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"offset":0,"limit":0,"config":{"name":"ORDERS",'
    b'"subjects":["orders.>"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_age":1000000000,'
    b'"storage":"file","discard":"old","num_replicas":3,"duplicate_window":120000000000,"compression":"s2",'
    b'"republish":{"src":"orders.>","dest":"live.orders.>"},"placement":{"cluster":"c","tags":["a"]},'
    b'"sources":[{"name":"X","filter_subject":"x.>","external":{"api":"$JS.x.API","deliver":"d"}}],'
    b'"subject_transform":{"src":"a","dest":"b"},"consumer_limits":{"max_ack_pending":5},"metadata":{"k":"v"},'
    b'"allow_direct":true},"created":"2026-01-01T00:00:00Z","state":{"messages":2,"bytes":100,"first_seq":1,'
    b'"first_ts":"2026-01-01T00:00:00Z","last_seq":3,"last_ts":"2026-01-01T00:00:00Z","num_deleted":1,"deleted":[2],'
    b'"consumer_count":1,"num_subjects":1,"subjects":{"orders.new":2}},"cluster":{"name":"c","raft_group":"S-R3F",'
    b'"leader":"n1","replicas":[{"name":"n2","current":true,"active":1,"lag":2}]},"alternates":[{"name":"A",'
    b'"domain":"d","cluster":"c"}],"mirror":{"name":"M","lag":1,"active":-1}}'
)
ACCOUNT = (
    b'{"memory":1,"storage":2,"streams":3,"consumers":4,"limits":{"max_memory":-1,"max_storage":-1,"max_streams":-1,'
    b'"max_consumers":-1,"max_ack_pending":-1},"api":{"total":9,"errors":1},"tiers":{"R1":{"memory":1,"storage":1,'
    b'"streams":1,"consumers":1,"limits":{"max_memory":1}}},"domain":"hub"}'
)
NAMES = b'{"total":300,"offset":0,"limit":1024,"streams":["A","B"],"consumers":["c"]}'
STORED = (
    b'{"message":{"subject":"orders.new","seq":7,"hdrs":"TkFUUy8xLjANCkE6IGINCg0K","data":"aGVsbG8=",'
    b'"time":"2026-01-01T00:00:00.123456789Z"}}'
)
API = (REFUSED, CONSUMER_INFO, STREAM_INFO, ACCOUNT, NAMES, STORED, *PUB_ACKS)


def direct(seq: int, before: int, own: bytes = b"", pending: int = 9) -> bytes:
    """The header block of an answer to a direct get."""
    return (
        b"NATS/1.0\r\n" + own + b"Nats-Stream: S\r\nNats-Subject: a.b\r\nNats-Sequence: %d\r\n"
        b"Nats-Time-Stamp: 2026-01-31T12:00:00.5Z\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
        % (seq, pending, before)
    )


def republished(seq: int, before: int, own: bytes = b"") -> bytes:
    return (
        b"NATS/1.0\r\n" + own + b"Nats-Stream: S\r\nNats-Subject: a.b\r\nNats-Sequence: %d\r\n"
        b"Nats-Time-Stamp: 2026-01-31T12:00:00.5Z\r\nNats-Last-Sequence: %d\r\n\r\n" % (seq, before)
    )


def as_stored(own: bytes, added: bytes) -> bytes:
    """The header block of a stored message with what the server adds to it, as the server writes it."""
    return own[:-2] + added.removeprefix(b"NATS/1.0\r\n") if own else added


END = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: 2\r\nNats-UpTo-Sequence: 9\r\n\r\n"
OWN = b"A: b\r\nJsc-Kind: finish\r\nNats-Expected-Last-Subject-Sequence: 1\r\n"
DIRECT = (
    direct(2, 1),
    direct(2, 1, OWN),
    direct(1, 0),
    END,
    b"NATS/1Nats-Stream: S\r\nNats-Sequence: 2\r\n\r\n",
)
REPUBLISHED = (republished(2, 1), republished(3, 2, OWN), republished(1, 0, b"Nats-Stream: FORGED\r\n"))

POSITION = b'{"v":1,"stream":"S","incarnation":"2026-01-01T00:00:00Z","seq":7,"time_ns":1700000000123456789}'
FRONTIER = b'{"v":1,"updates":[[3,1],[2,-1]],"lower":[3],"upper":[5]}'
FRONTIER2 = b'{"v":1,"updates":[[[3,1],1],[[2,5],-1]],"lower":[[3,1],[2,5]],"upper":[[5,5]]}'
ASKED = b'{"v":1,"verb":"alive","order":"Int","codec":"json"}'
LIVE = (
    b"NATS/1.0\r\nJsc-Live: data\r\nJsc-Number: 7\r\nJsc-Epoch: 3\r\n\r\n",
    b"NATS/1.0\r\nJsc-Live: snapshot\r\nJsc-Number: 1\r\n\r\n",
    b"NATS/1.0\r\nJsc-Live: update\r\nJsc-Number: 2\r\n\r\n",
    b"NATS/1.0\r\nJsc-Live: there\r\nJsc-Number: 9\r\n\r\n",
    b"NATS/1.0\r\nJsc-Live: mismatch\r\nJsc-Number: 0\r\n\r\n",
)
NOTIFIER = (
    b'{"kind":"notifier","v":1,"stream":"S","subject":"price.gold","codec":"json","api_prefix":"$JS.API",'
    b'"republished":"jsc.push.price.gold","direct":true}'
)
SUBSCRIPTION = (
    b'{"kind":"subscription","v":1,"stream":"S","subject":"price.gold","codec":"json","api_prefix":"$JS.API",'
    b'"start":"{\\"v\\":1,\\"stream\\":\\"S\\",\\"incarnation\\":\\"x\\",\\"seq\\":7,\\"time_ns\\":0}"}'
)
RELATIONSHIP = (
    b'{"Id":"r1","state":"established","nonce":"n","requester":true,"Rx":"ann.c1","Tx":"bob.c2","Rx_role":"a",'
    b'"Tx_role":"b","policy":{"events":["*:*"],"deny_events":["wrangler:subscription"]},"attrs":{"x":1},"until":5.0,'
    b'"dead":[{"tx":"bob.c9","until":3.0}],"outbox":[{"kind":"send","eci":"bob.c2","domain":"d","type":"t","attrs":{},'
    b'"id":"i"}]}'
)
CHANNEL = (
    b'{"eci":"ann.c1","tags":["wellKnown_Rx"],"policy":{"events":["door:*"],"queries":["subscription:*"]}}'
)
ATTRIBUTES = (
    b'{"Id":"r1","wellKnown_Tx":"bob.w1","Tx":"bob.c2","Rx_role":"a","Tx_role":"b","name":"n","channel_type":"t",'
    b'"password":"p","Tx_host":"h","Tx_verify_key":"vk"}'
)
EXHAUSTED = (
    b'{"type":"io.nats.jetstream.advisory.v1.max_deliver","stream":"S","consumer":"c","stream_seq":7,'
    b'"deliveries":5}'
)
ERRORS = (
    b'Permissions Violation for Publish to "a.b"',
    b'Permissions Violation for Subscription to "$JS.>" using queue "q"',
    b"Authorization Violation",
    b"Maximum Connections Exceeded",
)
CRON = (b"0 */5 1-5 * jan,mar mon-fri", b"@daily", b"0 0 12 1 1 0")
TIMES = (b"2026-01-01T00:00:00.123456789Z", b"2026-01-01T00:00:00+05:30", b"1970-01-01T00:00:00Z")
SUBJECTS = (
    b"_INBOX.a1.2",
    b"_INBOX_guest.x",
    b"$JS.FC.ORDERS.worker.a1",
    b"$JS.hub.API.X",
    b"orders.*.>",
    b"a.b",
)
INGEST = (
    b'{"type":"ack","seq":10,"msgs":10}',
    b'{"type":"gap","seq":3,"last_seq":7}',
    b'{"type":"err","seq":4,"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}',
    b'{"stream":"S","seq":20,"batch":"tok","count":20}',
)
OFFSET = b'{"seq":7,"created":"2026-01-01T00:00:00+00:00","init":true,"free":0}'
