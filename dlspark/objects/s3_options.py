"""What is told of an S3 store beside its address: endpoint, region, style of addresses, encryption; and credentials.

Nothing here is secret, and nothing of it is ever written. Credentials come from the standard chain of the process
(environment, profiles, web identity, containers, instances), which renews them; each process has its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlspark.objects.errors import ObjectAddressError

_ENDPOINT: Final = re.compile(r"https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
DEFAULT_REGION: Final = "us-east-1"
_TRUTH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where is S3's API, and how are objects put there?

    Args:
        endpoint: `https://host:port`; None: Amazon's. Only one that says http is spoken to without encryption.
        region: the bucket's.
        path_style: whether the bucket is in the path, not in the host's name.
        encryption_key: the id of the KMS key that encrypts new objects; None: what the bucket does by default.
        bucket_key: whether S3 derives keys of the bucket from it; None: what the bucket does by default.
    """

    endpoint: str | None = None
    region: str = DEFAULT_REGION
    path_style: bool = False
    encryption_key: str | None = None
    bucket_key: bool | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the endpoint is spoken to without TLS."""
        return self.endpoint is not None and self.endpoint.startswith("http://")

    @classmethod
    def parse(cls, options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> S3Options:
        """Read them; endpoint and region may be in the environment instead. Raises ObjectAddressError."""
        endpoint = options.get("endpoint") or _first(environment, _ENDPOINT_VARIABLES)
        endpoint = endpoint.rstrip("/") if endpoint else None
        if endpoint is not None and _ENDPOINT.fullmatch(endpoint) is None:
            # Not repeated in the message: where it is wrong, it may hold a password.
            raise ObjectAddressError(
                "The endpoint of an S3 store is not http://host:port or https://host:port; nothing was opened",
                advice="Set coldStorageEndpoint to the address of its API alone, without user or path",
            )
        key = options.get("encryption-key") or None
        bucket_key = _flag(options, "bucket-key")
        if bucket_key is not None and key is None:
            raise ObjectAddressError(
                "bucket-key is set without an encryption-key; nothing was opened",
                advice="A bucket key is derived from a key of KMS: name it, or set neither",
            )
        path_style = _flag(options, "path-style")
        return cls(
            endpoint,
            options.get("region") or _first(environment, _REGION_VARIABLES) or DEFAULT_REGION,
            endpoint is not None if path_style is None else path_style,
            key,
            bucket_key,
        )

    def encryption_fields(self) -> dict[str, object]:
        """Return what a request that begins an object says of its encryption."""
        if self.encryption_key is None:
            return {}
        fields: dict[str, object] = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.encryption_key}
        if self.bucket_key is not None:
            fields["BucketKeyEnabled"] = self.bucket_key
        return fields


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


def _flag(options: Mapping[str, str], name: str) -> bool | None:
    if name not in options:
        return None
    if options[name] not in _TRUTH:
        raise ObjectAddressError(f"{name} is true or false, not {options[name]!r}; nothing was opened")
    return _TRUTH[options[name]]
