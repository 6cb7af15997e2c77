"""Rights across accounts, which are exports and imports that let users of another account request some subjects.

NATS checks the subject of a request, but not its reply subject. The answer is published there with the rights of the
service that sends it. So a user of the same account can have an answer stored in a stream, or sent to any subject.
The answer to a request through a service import stays in the account that imports the service.

Source: nats-server server/accounts.go (service imports, isReservedReply).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from .api import Api
from .names import check_publish_subject

__all__ = ["account_rights", "imported_prefix"]

_MANY_ANSWERS: Final = "stream"  # the response type of a service that sends several answers


def imported_prefix(owner: str) -> str:
    """Return the prefix of the JetStream API of an account in the accounts that import from it.

    Each account has ``$JS.API`` itself, so the API of another account needs a different prefix.
    """
    return check_publish_subject(f"JS.{owner}.API")


def account_rights(
    services: Iterable[str],
    streams: Iterable[str] = (),
    *,
    owner: str,
    guests: str,
    api_prefix: str = "$JS.API",
    many: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the parts of ``accounts`` in a server's configuration that let ``guests`` request services of ``owner``.

    Args:
        services: The subjects that they may request.
        streams: The subjects that they may subscribe to.
        owner, guests: The names of the accounts.
        api_prefix: The API prefix of the owner's clients. The guests use `imported_prefix`.
        many: The services that send several answers to a request.

    Raises:
        InvalidNameError: The name of an account is not a token.
    """
    for name in (owner, guests):
        check_publish_subject(name)
    several, api = {*many}, Api(api_prefix).prefix + "."
    exports: list[dict[str, Any]] = []
    imports: list[dict[str, Any]] = []
    for subject in services:
        response = {"response": _MANY_ANSWERS} if subject in several else {}
        exports.append({"service": subject, **response, "accounts": [guests]})
        # Subjects of the API get the prefix of the owner. All other subjects remain unchanged.
        to = f"{imported_prefix(owner)}.{subject[len(api) :]}" if subject.startswith(api) else subject
        renamed = {} if to == subject else {"to": to}
        imports.append({"service": {"account": owner, "subject": subject}, **renamed})
    for subject in streams:
        exports.append({"stream": subject, "accounts": [guests]})
        imports.append({"stream": {"account": owner, "subject": subject}})
    return {owner: {"exports": exports}, guests: {"imports": imports}}
