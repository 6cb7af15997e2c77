"""Deleting consumers, as clients ask for it and as a server may forbid it."""

from __future__ import annotations

from typing import Any

DELETES = "$JS.API.CONSUMER.DELETE.>"

NO_DELETE: dict[str, Any] = {
    "authorization": {
        "users": [
            {"user": "u", "password": "p", "permissions": {"publish": {"deny": [DELETES]}}},
            {"user": "oracle", "password": "o"},
        ]
    }
}
"""Configuration of a server where user `u` (password `p`) may do all but that, and `oracle` (`o`) all."""
