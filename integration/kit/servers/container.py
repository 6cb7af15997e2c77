"""A server in a container: the last resort, if no executable exists."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator

from integration.kit.judge.waiting import eventually_sync
from integration.kit.servers.nats_server import ACK_V2_FLAG, NEWEST, NoServerError, read_info

_CONFIG = "/etc/nats-under-test.conf"
_CLIENTS, _MONITORING = 4222, 8222


def engine_answers() -> bool:
    """Whether testcontainers is installed and a Docker engine answers it."""
    try:
        docker = importlib.import_module("docker")
        importlib.import_module("testcontainers.core.container")
    except ImportError:
        return False
    try:
        with contextlib.closing(docker.from_env(timeout=5)) as engine:
            return bool(engine.ping())
    except docker.errors.DockerException:
        return False


@contextlib.contextmanager
def container_server(version: str, *, ack_v2: bool) -> Iterator[tuple[str, str]]:
    """Run the official image during the block. Gives the URLs of the server and its monitoring."""
    containers = importlib.import_module("testcontainers.core.container")
    config: dict[str, object] = {"jetstream": {"store_dir": "/data"}, "http": _MONITORING}
    if ack_v2:
        config["feature_flags"] = {ACK_V2_FLAG: True}
    image = f"nats:{'latest' if version == NEWEST else version}"
    container = (
        containers.DockerContainer(image)
        .with_copy_into_container(json.dumps(config).encode(), _CONFIG)
        .with_command(f"-c {_CONFIG}")
        .with_exposed_ports(_CLIENTS, _MONITORING)
    )
    with container:
        host = container.get_container_host_ip()
        url = f"nats://{host}:{container.get_exposed_port(_CLIENTS)}"

        def ready() -> bool:
            with contextlib.suppress(OSError, NoServerError):
                return bool(read_info(url, timeout=1.0).get("jetstream"))
            return False

        eventually_sync(ready, 60.0, f"the container of {image}")
        yield url, f"http://{host}:{container.get_exposed_port(_MONITORING)}"
