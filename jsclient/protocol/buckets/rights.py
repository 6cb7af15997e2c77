"""The permissions that users of a bucket need, and the exports and imports for users of a separate account.

A *reader* may create consumers, which can deliver to any subject of the account. In addition, any user can have the
replies to its requests stored under any subject, because NATS doesn't check reply subjects. Therefore only trusted
users should become readers, writers or admins. Other users should get a separate account. The replies to their requests
then stay in that account.

Source: nats-server server/jetstream_api.go, server/accounts.go; ADR-8 and ADR-20 for the subjects.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from ...errors import ConfigError
from ..wire.accounts import account_rights
from ..wire.api import DEFAULT_PREFIX, Api
from ..wire.names import check_publish_subject

__all__ = ["BucketRights", "BucketRole", "local_info"]

BucketRole: TypeAlias = Literal["reader", "writer", "admin"]
"""Role of a user. A reader can read, a writer can also write, and an admin can also change and delete the bucket."""

_ROLES: Final = get_args(BucketRole)


class BucketRights(msgspec.Struct, frozen=True, kw_only=True):
    """The subjects that users of a bucket need permissions for.

    Attributes:
        api: Subjects of the API through which the bucket is reached.
        stream: Name of the bucket's stream.
        stored: Filters that match all subjects of the stream.
        written: Filters that match the subjects to which values are published. Empty for a read-only bucket.
        removes: Whether writers need to remove messages, for example the chunks of replaced objects.
        asks: Further subjects to which writers send requests.
    """

    api: Api
    stream: str
    stored: tuple[str, ...]
    written: tuple[str, ...]
    removes: bool = False
    asks: tuple[str, ...] = ()

    def of_role(self, role: BucketRole, inbox_prefix: str) -> dict[str, Any]:
        """Return the permissions of a user with this role. The result can be pasted into the server's configuration.

        Raises `ConfigError` if the role is unknown, and `InvalidNameError` if ``inbox_prefix`` is not a subject.
        """
        if role not in _ROLES:
            raise ConfigError(f"role is {role!r:.40}: 'reader', 'writer' or 'admin' is needed")
        publish = [*self._requests, *self._consumers]
        if role != "reader":
            publish += self._writes
        if role == "admin":
            publish += self._management
        inbox = f"{check_publish_subject(inbox_prefix)}.>"
        return {"publish": {"allow": list(dict.fromkeys(publish))}, "subscribe": {"allow": [inbox]}}

    def of_guests(self, owner: str, guests: str) -> dict[str, Any]:
        """Return the exports and imports that let users of the account ``guests`` read the bucket of ``owner``."""
        many = self.api.direct_get(self.stream)
        return account_rights(
            self._requests, owner=owner, guests=guests, api_prefix=self.api.prefix, many=[many]
        )

    @property
    def _requests(self) -> list[str]:
        """Subjects of the requests that change nothing and whose replies go to the inbox of the user."""
        api, stream = self.api, self.stream
        newest = [f"{api.direct_get(stream)}.{subject}" for subject in self.stored]
        return [api.stream_info(stream), *newest, api.direct_get(stream), api.stream_msg_get(stream)]

    @property
    def _consumers(self) -> list[str]:
        """Subjects of the requests that watches send to create consumers with one or more filters."""
        api, stream = self.api, self.stream
        create = f"{api.prefix}.CONSUMER.CREATE.{stream}.*"
        return [
            create,
            *(f"{create}.{subject}" for subject in self.stored),
            f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.*",
            f"{api.prefix}.CONSUMER.INFO.{stream}.*",
            f"{api.prefix}.CONSUMER.DELETE.{stream}.*",
        ]

    @property
    def _writes(self) -> list[str]:
        api, stream = self.api, self.stream
        removal = [api.stream_purge(stream), api.stream_msg_delete(stream)] if self.removes else []
        return [*self.written, *removal, *self.asks]

    @property
    def _management(self) -> list[str]:
        api, stream = self.api, self.stream
        return [
            api.stream_create(stream),
            api.stream_update(stream),
            api.stream_delete(stream),
            api.stream_purge(stream),
            api.stream_msg_delete(stream),
            api.stream_names(),
            api.account_info(),
        ]


def local_info(api: Api, stream: str) -> tuple[str, ...]:
    """Return the subject of the request for the info of a stream in the user's own domain.

    The result is empty if ``api`` already leads to that domain.
    """
    return () if api.prefix == DEFAULT_PREFIX else (Api(DEFAULT_PREFIX).stream_info(stream),)
