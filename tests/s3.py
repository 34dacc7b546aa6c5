"""A server that speaks S3, on loopback."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import pytest

from detslurm import storage
from detslurm.storage import ObjectStore, Storage

_buckets = itertools.count(1)
_kept: list[Storage] = []
"""All that were made, to the end of the process: s3fs gives the connections of one that is garbage
0.1 s to close, and what a busy machine leaves open fails the test that runs by then."""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of a moto server. Skips where moto is not installed."""
    pytest.importorskip("s3fs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moto = pytest.importorskip("moto.server")
        server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_storage(url: str) -> ObjectStore:
    """A prefix of a new bucket on the server."""
    section = {
        "type": "s3",
        "bucket": f"bucket-{next(_buckets)}",
        "prefix": "/some/prefix/",
        "access_key": "key",
        "secret_key": "secret",
        "endpoint_url": url,
    }
    made = storage.from_config(section)
    assert isinstance(made, ObjectStore)
    made._fs.mkdir(section["bucket"])
    _kept.append(made)
    return made
