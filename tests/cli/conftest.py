"""What the tests of commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.documents import checked_document

from overlay.cli._main import run

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run a command with --json, hold the answer against the schema of that name, and return it."""

    def ask(schema: str, *args: str, status: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert run([*args, "--json"]) == status
        found: dict[str, Any] = checked_document(capsys.readouterr().out, schema)
        return found

    return ask
