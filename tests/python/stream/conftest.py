"""Fixtures of the tests of stores: the same shards as files, as objects, and as the batches of the files."""

from pathlib import Path

import pytest

from bucket import dataset, objects_of, write_bucket


@pytest.fixture(scope="session")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bucket")
    write_bucket(folder, records=30, words=120)
    return folder


@pytest.fixture(scope="session")
def objects(mount):
    return objects_of(mount)


@pytest.fixture(scope="session")
def local(mount, encoder):
    """The batches of the files."""
    return list(dataset(f"{mount}/data/*/en.json.gz", encoder))
