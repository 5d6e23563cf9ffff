"""The number of records of shards."""

import gristmill._core as _core
from gristmill._shards.manifest import Manifest
from gristmill._util.local_files import utf8_path


def count_records(manifest: Manifest, max_document_bytes: int = 2**27) -> int:
    """How many records the shards of a manifest have.

    Raises:
      ShardError: a shard cannot be read to its end.
    """
    shards = [(utf8_path(path), size) for path, size in manifest]
    return _core.count_records(manifest.folder, manifest.storage_options, shards, max_document_bytes)
