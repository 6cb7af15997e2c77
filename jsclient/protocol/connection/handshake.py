"""The handshake with a server: INFO, TLS, CONNECT with the identity, and the PONG that ends it.

Source: the client protocol of NATS; nats-server, client.go (``processConnect``).
"""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from .server_info import ServerInfo, read_info

__all__ = [
    "MAX_LINE",
    "ConnectSettings",
    "Handshake",
    "HandshakeEndedError",
    "HandshakeError",
    "Identify",
    "NotNatsError",
    "Ready",
    "RefusedError",
    "StartTls",
    "Step",
    "TlsNotOfferedError",
    "Write",
    "refusal_in",
]

MAX_LINE: Final = 64 * 1024
"""The maximum number of bytes of a line. INFO with 256 servers has less than a quarter."""


class HandshakeError(Exception):
    """Raised when the handshake fails. The text gives the reason."""


class RefusedError(HandshakeError):
    """Raised when the server answers ``-ERR``. The text is the server's."""


class TlsNotOfferedError(HandshakeError):
    """Raised when the client requires TLS and the server does not offer it."""


class NotNatsError(HandshakeError):
    """Raised when the other end is not a NATS server."""


class HandshakeEndedError(HandshakeError):
    """Raised when the server closes the connection during the handshake."""


class StartTls(NamedTuple):
    """Start TLS, and call `Handshake.tls_started` when it is complete."""


class Identify(NamedTuple):
    """Call `Handshake.identified` with the fields of CONNECT that identify the user."""

    info: ServerInfo


class Write(NamedTuple):
    """Write these bytes."""

    data: bytes


class Ready(NamedTuple):
    """The handshake is complete. ``rest`` contains the bytes that arrived after it."""

    info: ServerInfo
    rest: bytes


Step: TypeAlias = StartTls | Identify | Write | Ready


class ConnectSettings(NamedTuple):
    """The fields of CONNECT that do not depend on the server or the user."""

    version: str
    name: str | None = None
    no_echo: bool | None = None

    def command(self, info: ServerInfo, identity: dict[str, Any]) -> bytes:
        """Return CONNECT and the PING whose answer shows that the server has accepted it."""
        fields: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "lang": "python3",
            "version": self.version,
            "protocol": 1,
            "headers": info.headers,
            "no_responders": info.headers,
            **identity,
        }
        if self.name is not None:
            fields["name"] = self.name
        if self.no_echo is not None:
            fields["echo"] = not self.no_echo
        return b"CONNECT %b\r\nPING\r\n" % json.dumps(fields, sort_keys=True).encode()


class _State(Enum):
    INFO = auto()
    TLS = auto()
    IDENTITY = auto()
    PONG = auto()
    READY = auto()


class Handshake:
    """One attempt to connect, from the first byte to the first PONG. Each method returns the next steps, in order.

    Attributes:
        info: The INFO of the server, or None if it has not arrived.
        unread: Bytes that were received but are not a complete line yet.
    """

    def __init__(
        self,
        settings: ConnectSettings,
        *,
        wants_tls: bool,
        tls_first: bool = False,
        secure: bool = False,
        upgradable: bool = True,
    ) -> None:
        """Create the handshake for one attempt.

        With ``tls_first``, TLS begins before INFO. ``secure`` means an encrypted transport, such as wss://.
        ``upgradable`` is false if TLS cannot start on the transport, such as a WebSocket.
        """
        self._settings = settings
        self._wants_tls = wants_tls
        self._upgradable = upgradable
        self._tls_first = tls_first and upgradable and not secure
        self._secure = secure
        self._state = _State.INFO
        self.info: ServerInfo | None = None
        self.unread: bytes = b""

    def begin(self) -> list[Step]:
        """Return the steps that precede INFO."""
        if not self._tls_first:
            return []
        self._state = _State.TLS
        return [StartTls()]

    def tls_started(self) -> list[Step]:
        """Continue the handshake after TLS has started."""
        self._secure = True
        if self.info is None:
            self._state = _State.INFO
            return []
        return self._identify(self.info)

    def receive(self, data: bytes) -> list[Step]:
        """Process bytes that the server sent.

        Raises:
            HandshakeError: The server refuses the connection, or does not speak the protocol.
            ProtocolError: INFO is malformed.
        """
        self.unread += data
        steps: list[Step] = []
        while self._state in {_State.INFO, _State.PONG}:
            line, end, rest = self.unread.partition(b"\n")
            if not end:
                if len(line) > MAX_LINE:
                    raise self._no_line(line)
                return steps
            if len(line) > MAX_LINE:
                raise self._no_line(line)
            self.unread = rest
            steps += self._take(line.rstrip(b"\r"))
        return steps

    def _no_line(self, beginning: bytes) -> HandshakeError:
        if self.info is None and not beginning.startswith(b"INFO"):
            return NotNatsError(_NO_INFO)
        return HandshakeError(f"a line of the server has more than {MAX_LINE:,} bytes")

    def _take(self, line: bytes) -> list[Step]:
        if (refused := refusal_in(line)) is not None:
            raise refused
        if self._state is _State.INFO:
            return self._take_info(line)
        if line.startswith(b"PONG"):
            self._state = _State.READY
            assert self.info is not None
            rest, self.unread = self.unread, b""
            return [Ready(self.info, rest)]
        if line.startswith(b"PING"):
            return [Write(b"PONG\r\n")]
        if line.startswith(b"INFO "):  # for example a new INFO after the account was assigned
            self.info = read_info(line[5:])
            return []
        if line.startswith(b"+OK"):
            return []
        raise HandshakeError("the server sent something else than PONG")

    def _take_info(self, line: bytes) -> list[Step]:
        if not line.startswith(b"INFO"):
            raise NotNatsError(_NO_INFO)
        self.info = info = read_info(line[4:])
        if self._secure:
            return self._identify(info)
        if self._upgradable and (info.tls_required or (self._wants_tls and info.tls_available)):
            # These bytes arrived in clear text, and anyone may have sent them. Don't read them as if they had been
            # encrypted.
            if self.unread:
                raise refusal_in(self.unread) or HandshakeError(
                    "the server sent something between INFO and TLS"
                )
            self._state = _State.TLS
            return [StartTls()]
        if self._wants_tls:
            raise TlsNotOfferedError("the server does not offer TLS")
        return self._identify(info)

    def _identify(self, info: ServerInfo) -> list[Step]:
        self._state = _State.IDENTITY
        return [Identify(info)]

    def identified(self, identity: dict[str, Any]) -> list[Step]:
        """Continue with the fields of CONNECT that identify the user."""
        assert self.info is not None
        self._state = _State.PONG
        return [Write(self._settings.command(self.info, identity)), *self.receive(b"")]

    def ended(self) -> HandshakeError:
        """Return the error for a connection that ended during the handshake."""
        return refusal_in(self.unread) or HandshakeEndedError(
            "the server closed the connection while connecting"
        )


_NO_INFO: Final = "what answers there is no NATS server: it does not begin with INFO"


def refusal_in(data: bytes) -> RefusedError | None:
    """Return the reason in an ``-ERR`` line, or None."""
    for line in data.split(b"\r\n"):
        if line.startswith(b"-ERR"):
            return RefusedError(line[4:].strip().decode("utf-8", "backslashreplace"))
    return None
