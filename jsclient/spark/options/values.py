"""Reader of options, which Spark passes as str under names in any case.

Every error is a `ConfigError` that names the option, its value, and the values allowed. Secrets are never shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from ...errors import ConfigError, PermissionDeniedError

__all__ = ["OptionReader", "not_permitted"]

# Options that Spark itself may add to those of a source or sink.
_SPARKS = frozenset({"checkpointlocation", "path", "queryname"})
_SIZE = re.compile(r"([0-9]+)\s*(|b|k|kb|kib|m|mb|mib|g|gb|gib)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionReader:
    """The options of one source or sink. Read each, then call `finish`, which refuses the options left over."""

    def __init__(self, options: Mapping[str, str], what: str) -> None:
        self._given = {name.lower(): (name, str(value)) for name, value in options.items()}
        self._what = what
        self._known: list[str] = []

    def text(self, name: str, default: str | None = None) -> str | None:
        """The value without surrounding spaces. An empty one is refused."""
        self._known.append(name)
        given = self._given.get(name.lower())
        if given is None:
            return default
        value = given[1].strip()
        if not value:
            raise ConfigError(f"option {name!r} is empty: omit it, or set a value")
        return value

    def required(self, name: str, why: str) -> str:
        value = self.text(name)
        if value is None:
            raise ConfigError(f"option {name!r} is missing: {why}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A comma-separated list; () if the option is not set."""
        value = self.text(name)
        if value is None:
            return ()
        parts = tuple(part.strip() for part in value.split(","))
        if not all(parts):
            raise ConfigError(f"option {name!r} is {value!r}: one of its parts is empty")
        return parts

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        allowed = list(choices)
        value = (self.text(name, default) or default).lower()
        if value not in allowed:
            raise ConfigError(f"option {name!r} is {value!r}: it must be {' or '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**63 - 1
    ) -> int | None:
        """An integer within bounds."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) <= most:
            raise ConfigError(f"option {name!r} is {value!r}: an integer from {least} to {most} is needed")
        return int(value)

    def integer(self, name: str) -> int | None:
        """An integer, which may be negative; None if the option is not set."""
        value = self.text(name)
        if value is not None and not re.fullmatch("-?[0-9]{1,18}", value, re.ASCII):
            raise ConfigError(f"option {name!r} is {value!r}: an integer is needed")
        return None if value is None else int(value)

    def size(self, name: str, default: int | None = None) -> int | None:
        """Bytes: ``1048576``, ``8m``, ``8MiB``."""
        value = self.text(name)
        if value is None:
            return default
        found = _SIZE.fullmatch(value)
        size = 0 if found is None else int(found[1]) * _UNITS[found[2].lower()[:1].replace("b", "")]
        if not 0 < size < 2**63:
            raise ConfigError(
                f"option {name!r} is {value!r}: a number of bytes is needed, for example 8388608 or 8m"
            )
        return size

    def seconds(self, name: str, default: float) -> float:
        """Seconds above 0."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number < 1e9:
            raise ConfigError(f"option {name!r} is {value!r}: a number of seconds over 0 is needed")
        return number

    def refuse(self, name: str, because: str) -> None:
        """Raise if the option is set."""
        if self.text(name) is not None:
            raise ConfigError(f"option {name!r} {because}")

    def finish(self) -> None:
        """Raise for an unknown option."""
        known = {name.lower(): name for name in self._known}
        for lower, (name, _) in self._given.items():
            if lower in known or lower in _SPARKS:
                continue
            near = difflib.get_close_matches(lower, known, 1)
            hint = f": did you mean {known[near[0]]!r}?" if near else ""
            raise ConfigError(f"{self._what} has no option {name!r}{hint}")


def not_permitted(option: str, error: PermissionDeniedError, why: str) -> ConfigError:
    """The `ConfigError` for a missing permission."""
    verb = "publish to" if error.operation == "publish" else "subscribe to"
    return ConfigError(
        f"option {option!r}: {why}, but the server does not let this user {verb} {error.subject!r}: allow it"
    )
