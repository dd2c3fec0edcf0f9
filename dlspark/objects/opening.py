"""Opening the store of an address: which scheme is which store, and what its options may say.

The library of a store is imported when one of its kind is opened, and never before: most processes read nothing cold.
Options are what a file's znode says beside its address, so they never hold a secret; credentials come from the
process's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dlspark.objects.addresses import FILE, HDFS, OBJECT_SUFFIX, S3, root_of
from dlspark.objects.errors import ObjectAddressError
from dlspark.objects.opened_store import READ_POLICY, ReadPolicy
from dlspark.objects.store import ObjectStore

OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    FILE: frozenset(),
    S3: frozenset({"endpoint", "region", "path-style", "encryption-key", "bucket-key"}),
    HDFS: frozenset({"endpoint"}),
}
"""What each kind of store may be told, all of it text:

endpoint        S3: where its API is, `https://host:port`, if not Amazon's. HDFS: where its name nodes serve
                WebHDFS, `http://host:port`, several with commas; by default port 9870 of the address's host.
region          S3: the bucket's.
path-style      S3: `true` or `false`: the bucket is in the path, not in the host's name; by default true with an
                endpoint, and false without.
encryption-key  S3: the id of the KMS key that new objects are encrypted by (SSE-KMS).
bucket-key      S3: `true` or `false`: with a key of the bucket, which asks KMS less.
"""


def open_store(
    address: str, options: Mapping[str, str] | None = None, *, policy: ReadPolicy = READ_POLICY
) -> ObjectStore:
    """Return the store of a root, or of an object whose whole address is given (`addresses.root_of`).

    It is for the running event loop and this process. Nothing is asked of the store yet. Raises ObjectAddressError for
    an address or an option that makes no sense, MissingExtraError where its library is not installed.
    """
    root = root_of(address)
    given = dict(options or {})
    unknown = sorted(given.keys() - OPTIONS[root.scheme])
    if unknown:
        raise ObjectAddressError(
            f"Objects of {root.scheme}:// know no option {', '.join(unknown)}; nothing was opened", path=root.url
        )
    if root.scheme == FILE:
        from dlspark.objects.local import LocalStore

        return LocalStore(root, policy, may_be_gone=address.endswith(OBJECT_SUFFIX))
    if root.scheme == HDFS:
        from dlspark.objects.hdfs import HdfsStore
        from dlspark.objects.webhdfs import parse_endpoints

        return HdfsStore(root, parse_endpoints(given.get("endpoint"), root.authority), policy)
    from dlspark.objects.s3 import S3Store
    from dlspark.objects.s3_options import S3Options

    return S3Store(root, S3Options.parse(given), policy)
