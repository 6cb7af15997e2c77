"""The sans-IO core: what JetStream's documents describe, without sockets, clocks or chance.

Each tracker takes events and the time, and returns what is to be done; a runtime does it.

============== =====================================================================================================
names          what may be a stream, consumer, queue or subject (ADR-6)
subjects       the API's subjects, with prefix and domain (ADR-1, ADR-19)
units, fields, seconds and nanoseconds, times; kinds of fields; models to JSON and back
codec
api            the envelope of an answer, its error, its pages (ADR-1, ADR-7)
models         configurations and infos, in the wire's words
headers        header block and inline status (ADR-4); the headers of a publish
frames         what arrives, and whether it is data, control or foreign
ack            the JSAck, and what is answered to a message (ADR-15)
status         what each inline status means: one table (ADR-15, ADR-37)
events         what the user is told
request,       what a subscribe call was given, the workflow, and whether a found consumer fits (ADR-15)
subscribe,
binding
heartbeat      is the server still there? (ADR-15, ADR-37)
gap            are deliveries missing? (ADR-15)
flow_control   the server waits until the reader has come this far (ADR-15)
push           a push subscription: the queue, and all that watches it
ordered        a push subscription without holes and repeats (ADR-17)
pull           one pull request; a buffer kept filled (ADR-13, ADR-37)
batch          messages that are stored all or nothing (ADR-50)
fast_ingest    messages acked many at a time: how much may be sent, what is stored (ADR-50)
direct_get     stored messages, many with one request (ADR-31)
position       where a reader of a topic stands, and whether one can go on there
links          does this directly follow what was had?
reader         the push-pull reader: the history after a position, once and in order, whatever becomes of the pushes
frontier       partially ordered times, and frontiers of them
capabilities,  what one publisher of epochs may send, what it tells, and what a subscriber of several can have all of
epochs
schedule       what makes a message a schedule (ADR-51)
counter        what is added to a counter, and what it stands at (ADR-49)
peering,       a peer: its channels, and what becomes of what comes in on them
peer_rules,
peer_options,
peer_commands,
peer_outbox
relationship   two peers that may write to each other: the record and its transitions
channel        where events of peers arrive, who may send, the subjects
passable       values that come out as they went in
version        what a server is too old for
============== =====================================================================================================
"""
