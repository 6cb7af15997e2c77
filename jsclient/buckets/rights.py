"""The part of a bucket's handle that knows the permissions of the bucket's users."""

from __future__ import annotations

from typing import Any

from ..protocol.buckets.rights import BucketRights, BucketRole

__all__ = ["WithBucketRights"]


class WithBucketRights:
    """The methods of `KeyValue` and `ObjectStore` that return permissions. No request is sent."""

    def _rights(self) -> BucketRights:
        raise NotImplementedError

    def permissions(self, role: BucketRole, *, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a user of the bucket needs, in the form of the server's configuration.

        Give them only to users whom you trust. A reader creates consumers, which can deliver to any subject of the
        account, and every user can have the answers to its requests stored under any subject, because NATS does not
        check reply subjects. For users whom you do not trust, see `account_rights`.

        Args:
            role: ``"reader"`` may read, watch and request the status. ``"writer"`` may also change and delete keys or
                objects. ``"admin"`` may also create, change and delete the bucket, remove messages from it, as
                `KeyValue.purge_deletes` does, and list the names of all buckets.
            inbox_prefix: The inbox prefix of the user's connection. If no other user has this prefix, other users
                cannot read the answers to its requests.

        Raises:
            ConfigError: The role is unknown.
            InvalidNameError: ``inbox_prefix`` is not a subject.
        """
        return self._rights().of_role(role, inbox_prefix)

    def account_rights(self, owner: str, guests: str) -> dict[str, Any]:
        """Return ``accounts`` for a server's configuration that let users of a separate account read the bucket.

        The answers to their requests stay in their account. They connect with ``prefix="JS.<owner>.API"``, and can
        read the whole bucket. They can create no consumers, and can change nothing.

        Args:
            owner: The account of the bucket, which gets ``exports``.
            guests: The account of the users, which gets ``imports``.

        Raises:
            InvalidNameError: The name of an account is not a token.
        """
        return self._rights().of_guests(owner, guests)
