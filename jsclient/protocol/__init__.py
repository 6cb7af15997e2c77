"""The sans-IO core: the behaviour that JetStream's documents describe, without sockets, clocks or randomness.

Each tracker takes events and the time, and returns commands. A runtime executes them.

============== =====================================================================================================
wire           names and subjects (ADR-6), the API's subjects, answers and errors (ADR-1, ADR-7, ADR-19), headers and
               inline statuses (ADR-4), frames, units, and the conversion between JSON and models
models         configurations and infos with the field names of the wire, and the differences between them
consumers      the subscribe workflow (ADR-15); push, pull and ordered readers (ADR-13, ADR-17, ADR-37); acks, statuses,
               priority groups (ADR-42), monitors of silence and gaps; the reasons why no message arrives; workers
publishing     publishes in flight and their answers (ADR-22); atomic batches and fast ingest (ADR-50); scheduled
               messages (ADR-51)
streams        direct gets (ADR-31) and counters (ADR-49)
topics         records, positions, links between records, and the push-pull reader: every record once and in order
epochs         partially ordered times and their frontiers; publishers and subscribers of whole epochs
peers          relationships between peers, their channels, and the rules for incoming messages
events         the events that are reported to the user
============== =====================================================================================================
"""
