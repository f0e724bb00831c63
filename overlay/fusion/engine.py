"""One device, tested, and what it does: fold pairs into a chunk of a weight."""

from __future__ import annotations

import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from overlay.errors import CheckFailed, InvalidUsage, TryAgain
from overlay.fingerprint import BLOCK
from overlay.fusion.library import mkl_library
from overlay.fusion.products import Products
from overlay.fusion.quiet_torch import torch
from overlay.fusion.rule import STORED, combine
from overlay.fusion.self_test import run_self_test
from overlay.fusion.settings import full_precision

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from overlay.fusion.library import Library
    from overlay.fusion.rule import Factors
    from overlay.fusion.self_test import SelfTest

__all__ = ["Engine"]

_CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**23}
"""Values of W that are folded at once. CPU: 4 MiB of fp32, where measured rates level off. GPU: 16 MiB of BF16."""

_ASKED_FOR = "only the ordered kernel was asked for"


class Engine:
    """Folds pairs into weights on one device. Made by :meth:`start`; any number of threads may use it.

    Attributes:
        device: The torch device.
        library: What computes products beside the ordered kernel; None where nothing is trusted.
        compiled: Whether the ordered kernel may be the one that is compiled for a GPU.
        chunk_elements: Values of W that one call of :meth:`fold` is meant for.
    """

    def __init__(
        self,
        device: torch.device,
        library: Library | None,
        *,
        reason: str | None = None,
        self_test: SelfTest | None = None,
        chunk_elements: int | None = None,
        compiled: bool = True,
    ) -> None:
        self.device = device
        self.library = library
        self.compiled = compiled
        self.chunk_elements = chunk_elements or _CHUNK_ELEMENTS[device.type]
        self._reason = reason
        self._self_test = self_test
        self._local = threading.local()

    @classmethod
    def start(cls, device: str = "auto", *, ordered: bool = False) -> Engine:
        """Chooses the device and runs its start-up test.

        On a CPU this sets MKL's strict reproducible mode for the rest of the process, where no mode was chosen.

        Args:
            device: ``cpu``, ``cuda``, ``cuda:N``, or ``auto``: the GPU where there is one.
            ordered: Compute everything by the ordered kernel in plain torch operations, whatever the device could do
                faster. The bytes are the same; this is for when it seems that they were not.

        Raises:
            InvalidUsage: No such device.
            CheckFailed: The GPU that was asked for does not compute as the rule says; ``auto`` takes the CPU then.
        """
        found = find_device(device)
        if found.type == "cpu":
            return cls(found, None, reason=_ASKED_FOR) if ordered else cls._on_cpu(found)
        outcome, failure = _tested(cls(found, None, compiled=not ordered))
        if outcome is None or not outcome.passed:
            if device == "auto":
                return cls.start("cpu", ordered=ordered)
            raise CheckFailed(
                f"{device}: {failure}",
                code="device-not-exact",
                hint="use --device cpu; the bytes are the same on every device",
                device=device,
            )
        reason = _ASKED_FOR if ordered else "GPU libraries do not follow the rule"
        return cls(found, None, reason=reason, self_test=outcome, compiled=not ordered)

    @classmethod
    def _on_cpu(cls, cpu: torch.device) -> Engine:
        library, reason = mkl_library()
        if library is None:
            return cls(cpu, None, reason=reason)
        outcome, failure = _tested(cls(cpu, library))
        if outcome is None or not outcome.passed:
            return cls(cpu, None, reason=f"{library.name} {failure}", self_test=outcome)
        return cls(cpu, library, self_test=outcome)

    def describe(self) -> dict[str, Any]:
        """For the record: the device, its library or why none is used, the start-up test. JSON-representable."""
        test = self._self_test
        return {
            "device": self.device.type,
            "device_name": _name_of(self.device),
            "library": self.library.name if self.library else None,
            "library_unused_because": self._reason,
            "self_test": test
            and {"passed": test.passed, "num_products": test.num_products, "mismatches": list(test.mismatches)},
        }

    @contextmanager
    def session(self, buffers: Sequence[memoryview]) -> Iterator[None]:
        """Holds what a build needs for as long as the context lasts.

        These are torch's settings of the whole process (``settings``), and for a GPU the page-locking of ``buffers``,
        the memory that weights are read into.
        """
        with full_precision(), ExitStack() as stack:
            if self.device.type == "cuda":
                runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                for buffer in buffers:
                    address = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
                    torch.cuda.check_error(runtime.cudaHostRegister(address, len(buffer), 0))
                    stack.callback(runtime.cudaHostUnregister, address)
            yield

    def place(self, factor: torch.Tensor) -> torch.Tensor:
        """A pair's A or B where :meth:`fold` needs it."""
        if self.device.type == "cpu":
            return factor
        with self._memory(), torch.cuda.stream(self._stream):
            return factor.to(self.device)

    def fold(self, weight: memoryview, dtype: str, cols: int, factors: Sequence[Factors], rule: str) -> bool:
        """Folds pairs into rows of a weight (or a stretch of one row), in place.

        Args:
            weight: Values as stored, row-major.
            dtype: Their stored dtype.
            cols: Values in a row.
            factors: The pairs, for these rows and columns, placed by :meth:`place`.
            rule: One of ``overlay.planning.rules.RULES``.

        Returns:
            False where a finite value would become NaN or infinite; nothing is folded then.
        """
        held = torch.frombuffer(weight, dtype=STORED[dtype]).view(-1, cols)
        if self.device.type == "cpu":
            return combine(held, factors, rule, self._products)
        stream = self._stream
        with self._memory(), torch.cuda.stream(stream):
            moved = held.to(self.device, non_blocking=True)
            finite = combine(moved, factors, rule, self._products)
            held.copy_(moved, non_blocking=True)
        stream.synchronize()
        return finite

    def take_counts(self) -> Counter[str]:
        """Values of D that this thread made since the last call, by kernel."""
        counts = self._products.elements.copy()
        self._products.elements.clear()
        return counts

    def enter_thread(self) -> None:
        """Prepares a worker thread: one thread inside an operation, subnormals kept, the right GPU current."""
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """A GPU that others fill meanwhile is no bug of ours."""
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            raise TryAgain(
                f"{self.device}: out of memory for a chunk of {self.chunk_elements} values",
                code="gpu-out-of-memory",
                hint="something else fills this GPU: free it, or use --device cpu; the bytes are the same",
                device=str(self.device),
            ) from error

    @property
    def chunk_bytes(self) -> int:
        """Memory for one chunk of weights, whatever they are stored in; never more than a block."""
        return min(BLOCK, self.chunk_elements * max(dtype.itemsize for dtype in STORED.values()))

    @property
    def _products(self) -> Products:
        if not hasattr(self._local, "products"):
            self._local.products = Products(self.library, compiled=self.compiled)
        products: Products = self._local.products
        return products

    @property
    def _stream(self) -> torch.cuda.Stream:
        if not hasattr(self._local, "stream"):
            self._local.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch leaves it so
        stream: torch.cuda.Stream = self._local.stream
        return stream


def _tested(candidate: Engine) -> tuple[SelfTest | None, str]:
    """The start-up test's outcome, None where it could not run to its end; and what went wrong, if anything."""
    with full_precision(), ThreadPoolExecutor(1, initializer=candidate.enter_thread) as thread:
        try:
            test = thread.submit(run_self_test, candidate.library, candidate.device, compiled=candidate.compiled)
            outcome = test.result()
        except RuntimeError as error:
            return None, f"failed in the start-up test: {error}"
    return outcome, "" if outcome.passed else f"failed the start-up test at {outcome.mismatches[0]}"


def find_device(name: str) -> torch.device:
    """The device of this name, as :meth:`Engine.start` takes it.

    Raises:
        InvalidUsage: There is none.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = {"cpu": "cpu", **{f"cuda:{index}": f"cuda:{index}" for index in range(gpus)}}
    if gpus:
        known["cuda"] = f"cuda:{torch.cuda.current_device()}"
    known["auto"] = known.get("cuda", "cpu")
    if name not in known:
        raise InvalidUsage(
            f"no device {name!r} here, found {', '.join(sorted(known))}",
            code="no-such-device",
            hint="leave --device out, or give --device cpu; the bytes are the same on every device",
            device=name,
        )
    return torch.device(known[name])


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
