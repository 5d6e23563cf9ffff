"""Signed requests and listings of S3, as moto checks and answers them: `make test-s3`."""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

import gristmill as gm
from bucket import objects_of, write_bucket
from gristmill import _core
from helpers import assert_same_batches

pytestmark = pytest.mark.skipif(not hasattr(_core, "Stores"), reason="a build for local files only")
boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto.server")

KEY = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


@pytest.fixture(scope="module")
def endpoint():
    """The URL of a server of moto in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(url, timeout=5).close()
                    break
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def test_signed_requests_and_pages_of_listings(tmp_path, encoder, endpoint):
    write_bucket(tmp_path, records=30, words=120)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="eu-west-1", **KEY)
    client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for key, data in objects_of(tmp_path).items():
        client.put_object(Bucket="bucket", Key=key.removeprefix("bucket/"), Body=data)
    # More than a page of 1,000, some with characters that URLs encode.
    for number in range(1100):
        client.put_object(Bucket="bucket", Key=f"many/{number} ä+.gz", Body=b"")
    options = {"aws_endpoint": endpoint, "aws_region": "eu-west-1", "allow_http": "true", **KEY}
    assert len(gm.Manifest.find("s3://bucket/many/*.gz", options)) == 1100
    settings = {"tokenizer": encoder, "sequence_length": 64, "batch_size": 8, "lanes": 4}
    local = gm.PackedDataset(f"{tmp_path}/data/*/en.json.gz", **settings)
    for pattern in ("data/*/en.json.gz", "data/**"):
        remote = gm.PackedDataset(f"s3://bucket/{pattern}", storage_options=options, **settings)
        assert_same_batches(remote, local)
    with pytest.raises(gm.MissingShardError, match="no object matches"):
        gm.Manifest.find("s3://bucket/none/*.gz", options)
