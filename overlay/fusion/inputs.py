"""The input files of a build: each opened once, read by any thread at any offset."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from overlay.errors import BrokenInput
from overlay.formats.local import open_file
from overlay.formats.os_errors import cannot_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.planning.outputs import Input

__all__ = ["OpenInputs", "place_of"]


def place_of(source: Input) -> str:
    """Name of an input for messages: ``org/name@1a2b3c4d5e6f/path``, or folder and path for a local one."""
    at = "" if source.revision == "local" else f"@{source.revision[:12]}"
    return f"{source.repo}{at}/{source.path}"


class OpenInputs:
    """A context that opens inputs on first use and closes them at its end.

    Args:
        locate: Tells where on this host an input's bytes lie.
        is_last_reader: Whether nobody else of this process will read an input: what was used of it may then leave the
            page cache, which makes room for the output.
    """

    def __init__(self, locate: Callable[[Input], Path], is_last_reader: Callable[[Input], bool]) -> None:
        self._locate = locate
        self._is_last_reader = is_last_reader
        self._lock = threading.Lock()
        self._descriptors: dict[Input, int] = {}
        self._used_up: set[Input] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._used_up:
            self._drop(source, 0, 0)  # what the ranges shared a page with
        self._stack.close()

    def read_into(self, source: Input, offset: int, buffer: memoryview) -> None:
        """Fills ``buffer`` with the bytes from ``offset``.

        Raises:
            BrokenInput: The file is not as long as it was when the plan was made, or the disk cannot read it.
            NotHere: It is gone.
            Refused: No permission.
        """
        descriptor = self.descriptor(source)
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(descriptor, [buffer[done:]], offset + done)
            except OSError as error:
                raise cannot_read(error, place_of(source), at=offset + done) from error
            if not count:
                raise _changed(source, os.fstat(descriptor).st_size)
            done += count

    def use_up(self, source: Input, offset: int, nbytes: int) -> None:
        """Says that a range is needed no more."""
        if self._is_last_reader(source):
            self._used_up.add(source)
            self._drop(source, offset, nbytes)

    def descriptor(self, source: Input) -> int:
        """The open file; closed with the context. Errors as for :meth:`read_into`."""
        with self._lock:
            if source not in self._descriptors:
                descriptor, found = self._stack.enter_context(open_file(self._locate(source)))
                if found.st_size != source.size:
                    raise _changed(source, found.st_size)
                self._descriptors[source] = descriptor
            return self._descriptors[source]

    def _drop(self, source: Input, offset: int, nbytes: int) -> None:
        with suppress(OSError):  # advice, which not every filesystem takes
            os.posix_fadvise(self._descriptors[source], offset, nbytes, os.POSIX_FADV_DONTNEED)


def _changed(source: Input, size: int) -> BrokenInput:
    return BrokenInput(
        f"{place_of(source)}: {size} bytes now, expected {source.size}; it changed after the plan was made",
        code="input-changed",
        hint="let nothing write to the file (a download, an editor) and run the command again",
        where=place_of(source),
        size=size,
        expected=source.size,
    )
