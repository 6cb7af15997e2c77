"""The two streams of an engine: events that wait for peers, and what peers have stored."""

from __future__ import annotations

from ..client import JetStream
from ..errors import ConfigError
from ..protocol.models.stream_config import StreamConfig
from ..protocol.wire.names import subject_matches
from ..streams.stream import Stream
from .options import EngineOptions

__all__ = ["ensure_streams", "events_config", "state_config"]


def events_config(options: EngineOptions) -> StreamConfig:
    """The stream of events: each is removed when its peer has handled it.

    The number of waiting events is bounded by channel and type. The stream refuses further ones, so a flood on a public
    channel affects no other channel.
    """
    return StreamConfig(
        name=options.events_stream,
        description="jsclient.peers: events on their way to peers",
        subjects=[f"{options.prefix}.ev.>"],
        retention="workqueue",
        discard="new",
        discard_new_per_subject=True,
        max_msgs_per_subject=options.max_waiting,
        max_msg_size=options.max_event_size,
        max_age=options.max_age,
        num_replicas=options.replicas,
        storage=options.storage,
    )


def state_config(options: EngineOptions) -> StreamConfig:
    """The stream of what peers have stored: the newest of each key."""
    return StreamConfig(
        name=options.state_stream,
        description="jsclient.peers: channels and relationships of peers",
        subjects=[f"{options.prefix}.state.>"],
        max_msgs_per_subject=1,
        num_replicas=options.replicas,
        storage=options.storage,
    )


async def ensure_streams(js: JetStream, options: EngineOptions) -> Stream:
    """Create missing streams, and return the stream of events. An existing stream is used as it is.

    Raises:
        ConfigError: An existing stream does not fit. And those of any request.
    """
    events = await js.ensure_stream(events_config(options), on_drift="ignore")
    state = await js.ensure_stream(state_config(options), on_drift="ignore")
    _check(events, f"{options.prefix}.ev.a.b.c.d")
    _check(state, f"{options.prefix}.state.a.b.c")
    if not 0 < (events.config.max_age or 0.0) < options.remember:
        raise ConfigError(
            f"the stream {events.name!r} has a max_age of {events.config.max_age or 0:g} s: it must have one, below "
            f"remember ({options.remember:g} s), or what is over might come to life again"
        )
    if str(events.config.retention) == "interest":
        raise ConfigError(
            f"the stream {events.name!r} has retention interest: it would store nothing for absent peers"
        )
    if state.config.max_msgs_per_subject != 1 or state.config.max_age:
        raise ConfigError(f"the stream {state.name!r} must have max_msgs_per_subject 1 and no max_age")
    return events


def _check(stream: Stream, subject: str) -> None:
    if not any(subject_matches(one, subject) for one in stream.config.subjects or ()):
        raise ConfigError(f"the stream {stream.name!r} does not hold subjects like {subject!r}")
