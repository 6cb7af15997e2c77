"""The methods of bucket handles that return the permissions which users of the bucket need."""

from __future__ import annotations

from typing import Any

from ..protocol.buckets.rights import BucketRights, BucketRole

__all__ = ["WithBucketRights"]


class WithBucketRights:
    """Base class of `KeyValue` and `ObjectStore` that provides the methods for permissions. They send no requests."""

    def _rights(self) -> BucketRights:
        raise NotImplementedError

    def permissions(self, role: BucketRole, *, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a NATS user needs to work with the bucket.

        The result can be pasted into the server's configuration. Give these permissions only to users whom you trust:
        readers create consumers, which can deliver to any subject of the account, and every user can have the replies
        to its requests stored under any subject, because NATS doesn't check reply subjects. For users whom you don't
        trust, use `account_rights`.

        Args:
            role: A ``"reader"`` may read, watch and request the status. A ``"writer"`` may also change and delete keys
                or objects. An ``"admin"`` may also create, change and delete the bucket, remove messages from it (for
                example with `KeyValue.purge_deletes`), and list the names of all buckets.
            inbox_prefix: The inbox prefix of the user's connection. Give each user a different prefix, so that no user
                can read the replies to a different user's requests.

        Raises:
            ConfigError: The role is unknown.
            InvalidNameError: ``inbox_prefix`` isn't a subject.
        """
        return self._rights().of_role(role, inbox_prefix)

    def account_rights(self, owner: str, guests: str) -> dict[str, Any]:
        """Return the configuration of two accounts that lets the users of one account read a bucket of the other.

        The result can be pasted into the section ``accounts`` of the server's configuration. The users connect with
        ``prefix="JS.<owner>.API"``. They can read the whole bucket, but they can neither create consumers nor change
        anything. The replies to their requests stay in their own account.

        Args:
            owner: Name of the account that owns the bucket, to which ``exports`` are added.
            guests: Name of the account of the users, to which ``imports`` are added.

        Raises:
            InvalidNameError: The name of an account isn't a valid subject token.
        """
        return self._rights().of_guests(owner, guests)
