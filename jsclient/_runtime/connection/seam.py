"""The private names of nats-py that jsclient uses, and whether this version of nats-py has them.

``integration/connection/test_nats_client.py`` pins them.
"""

from __future__ import annotations

import functools
import inspect

import nats.aio.client

__all__ = ["ATTRIBUTES", "METHODS", "seam_gaps"]

METHODS = {
    "_attempt_reconnect": (),
    "_close": ("status", "do_cbs"),
    "_connect_command": (),
    "_process_connect_init": (),
    "_process_headers": ("headers",),
    "_process_info": ("info",),
    "_process_msg": ("sid", "subject", "reply", "data", "headers"),
    "_process_op_err": ("e",),
    "_read_loop": (),
    "_select_next_server": (),
    "_send_ping": ("future",),
}
ATTRIBUTES = (
    "_auth_configured",
    "_current_server",
    "_flush_queue",
    "_flusher_task",
    "_max_payload",
    "_pending_data_size",
    "_ping_interval_task",
    "_pings_outstanding",
    "_pongs",
    "_pongs_received",
    "_ps",
    "_reading_task",
    "_reconnection_task",
    "_server_info",
    "_server_pool",
    "_sid",
    "_status",
    "_subs",
    "_transport",
)


@functools.cache
def seam_gaps() -> tuple[str, ...]:
    """Return the private names that jsclient uses and nats-py lacks, or has with other parameters."""
    client = nats.aio.client.Client
    gaps = [
        name
        for name, parameters in METHODS.items()
        if not (method := getattr(client, name, None))
        or tuple(inspect.signature(method).parameters)[1 : 1 + len(parameters)] != parameters
    ]
    if gaps:
        return tuple(gaps)
    instance = client()
    return tuple(name for name in ATTRIBUTES if not hasattr(instance, name))
