"""Reading options, which Spark hands over as texts with names in any case.

Every error is a `ConfigError` that names the option, what was given, and what it may be. Secrets are never shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from ...errors import ConfigError

__all__ = ["OptionReader"]

# What Spark itself may put among the options of a source or sink.
_SPARKS = frozenset({"checkpointlocation", "path", "queryname"})
_SIZE = re.compile(r"([0-9]+)\s*(|b|k|kb|kib|m|mb|mib|g|gb|gib)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionReader:
    """The options of one source or sink. Ask for each, then call `finish`, which refuses all that nobody asked for."""

    def __init__(self, options: Mapping[str, str], what: str) -> None:
        self._given = {name.lower(): (name, str(value)) for name, value in options.items()}
        self._what = what
        self._known: list[str] = []

    def text(self, name: str, default: str | None = None) -> str | None:
        """The text, without spaces around it. Empty is refused."""
        self._known.append(name)
        given = self._given.get(name.lower())
        if given is None:
            return default
        value = given[1].strip()
        if not value:
            raise ConfigError(f"option {name!r} is empty: leave it out, or give a value")
        return value

    def required(self, name: str, why: str) -> str:
        value = self.text(name)
        if value is None:
            raise ConfigError(f"option {name!r} is missing: {why}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list with commas; () where it is not given."""
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
        """A whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) <= most:
            raise ConfigError(f"option {name!r} is {value!r}: it must be a whole number, {least} to {most}")
        return int(value)

    def whole_number(self, name: str) -> int | None:
        """A whole number, which may be below 0; None where it is not given."""
        value = self.text(name)
        if value is not None and not re.fullmatch("-?[0-9]{1,18}", value, re.ASCII):
            raise ConfigError(f"option {name!r} is {value!r}: it must be a whole number")
        return None if value is None else int(value)

    def size(self, name: str, default: int | None = None) -> int | None:
        """Bytes: ``1048576``, ``8m``, ``8MiB``."""
        value = self.text(name)
        if value is None:
            return default
        found = _SIZE.fullmatch(value)
        size = 0 if found is None else int(found[1]) * _UNITS[found[2].lower()[:1].replace("b", "")]
        if not 0 < size < 2**63:
            raise ConfigError(f"option {name!r} is {value!r}: it must be a number of bytes, as 8388608 or 8m")
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
            raise ConfigError(f"option {name!r} is {value!r}: it must be a number of seconds above 0")
        return number

    def refuse(self, name: str, because: str) -> None:
        """Raise if this is given."""
        if self.text(name) is not None:
            raise ConfigError(f"option {name!r} {because}")

    def finish(self) -> None:
        """Raise for an option that there is not."""
        known = {name.lower(): name for name in self._known}
        for lower, (name, _) in self._given.items():
            if lower in known or lower in _SPARKS:
                continue
            near = difflib.get_close_matches(lower, known, 1)
            hint = f": did you mean {known[near[0]]!r}?" if near else ""
            raise ConfigError(f"{self._what} has no option {name!r}{hint}")
