"""The seccomp filter, carried out step by step for both architectures."""

from __future__ import annotations

import errno

import pytest
from support.filters import ALLOW, ERRNO, KILL, answer

from overlay.sandbox.seccomp import _FORBIDDEN, _SIGNALS, _WITHOUT_EFFECT, filter_program

pytestmark = pytest.mark.no_torch

MACHINES = [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)]
# Ordinary calls, by the kernel's headers: read, write, openat, mmap, execve, exit_group, futex, wait4, getpid.
ORDINARY = {"x86_64": (0, 1, 257, 9, 59, 231, 202, 61, 39), "aarch64": (63, 64, 56, 222, 221, 94, 98, 260, 172)}
CLONE, CLONE3, PRCTL, PRLIMIT, FCNTL = (56, 220), 435, (157, 167), (302, 261), (72, 25)
DENIED = ERRNO | errno.EPERM


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_each_call_gets_its_answer(machine: str, audit: int, column: int) -> None:
    """What is forbidden is refused, what shall have no effect seems to succeed, all else is allowed."""
    program = filter_program(signals=True, machine=machine)
    assert program is not None
    refused = {numbers[column] for numbers in _FORBIDDEN.values()} - {None}
    ignored = {numbers[column] for numbers in _WITHOUT_EFFECT.values()} - {None}
    asked = {CLONE3: ERRNO | errno.ENOSYS} | dict.fromkeys(refused, DENIED) | dict.fromkeys(ignored, ERRNO)

    assert set(ORDINARY[machine]) & set(asked) == set()
    for number in range(600):
        assert answer(program, architecture=audit, number=number, first=0) == asked.get(number, ALLOW), number


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_arguments_decide(machine: str, audit: int, column: int) -> None:
    """Threads and forks yes, namespaces no; own limits yes, others' no; names of threads yes, hiding no."""
    program = filter_program(signals=True, machine=machine) or b""

    def of(number: int, first: int, second: int = 0) -> int:
        return answer(program, architecture=audit, number=number, first=first, second=second)

    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert of(CLONE[column], flag | 17) == DENIED
    assert of(CLONE[column], 0x3D0F00) == of(CLONE[column], 0x1200011) == ALLOW  # as glibc asks for threads and forks
    assert (of(PRLIMIT[column], 0), of(PRLIMIT[column], 1)) == (ALLOW, DENIED)
    assert (of(FCNTL[column], 8, 3), of(FCNTL[column], 0, 8), of(FCNTL[column], 0, 15)) == (ALLOW, DENIED, DENIED)
    assert (of(PRCTL[column], 15), of(PRCTL[column], 4)) == (ALLOW, DENIED)


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_signals_are_forbidden_where_landlock_does_not_hold_them_in(machine: str, audit: int, column: int) -> None:
    """Before version 6 of Landlock no signal is sent at all."""
    for signals, expected in ((True, ALLOW), (False, DENIED)):
        program = filter_program(signals=signals, machine=machine) or b""
        for numbers in _SIGNALS.values():
            assert answer(program, architecture=audit, number=numbers[column] or 0) == expected


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_other_architectures_do_not_pass(machine: str, audit: int, column: int) -> None:
    """A 32-bit call has other numbers, and so have those of x32: neither slips through."""
    program = filter_program(signals=True, machine=machine) or b""

    assert answer(program, architecture=0x40000003, number=1) == KILL
    assert answer(program, architecture=audit, number=0x40000000) == DENIED
