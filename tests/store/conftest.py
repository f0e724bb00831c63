"""One S3 service for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.s3_server import S3Server


@pytest.fixture(scope="session")
def s3_service() -> Iterator[S3Server]:
    """On loopback."""
    from support.s3_server import S3Server  # not installed where torch is not

    with S3Server().running() as server:
        yield server
