"""The seccomp filter, carried out step by step for both architectures."""

from __future__ import annotations

import errno

import pytest
from support.filters import ALLOW, ERRNO, KILL, answer

from overlay.sandbox.calls import FORBIDDEN, IOCTL, SIGNALS, UNSUPPORTED, WITHOUT_EFFECT
from overlay.sandbox.seccomp import filter_program

pytestmark = pytest.mark.no_torch

MACHINES = [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)]
# Ordinary calls, by the kernel's headers: read, write, openat, mmap, execve, exit_group, futex, wait4, getpid.
ORDINARY = {"x86_64": (0, 1, 257, 9, 59, 231, 202, 61, 39), "aarch64": (63, 64, 56, 222, 221, 94, 98, 260, 172)}
CLONE, CLONE3, PRCTL, PRLIMIT, FCNTL = (56, 220), 435, (157, 167), (302, 261), (72, 25)
MMAP, CLOSE_RANGE = (9, 222), (436, 436)
DENIED = ERRNO | errno.EPERM


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_each_call_gets_its_answer(machine: str, audit: int, column: int) -> None:
    """What is forbidden is refused, what shall have no effect seems to succeed, all else is allowed."""
    program = filter_program(signals=True, machine=machine)
    assert program is not None
    refused = {numbers[column] for numbers in FORBIDDEN.values()} - {None}
    ignored = {numbers[column] for numbers in WITHOUT_EFFECT.values()} - {None}
    absent = {numbers[column] for numbers in UNSUPPORTED.values()} - {None}
    asked = {CLONE3: ERRNO | errno.ENOSYS, IOCTL[column]: ERRNO | errno.ENOTTY}
    asked |= dict.fromkeys(refused, DENIED) | dict.fromkeys(ignored, ERRNO)
    asked |= dict.fromkeys(absent, ERRNO | errno.EOPNOTSUPP)

    assert set(ORDINARY[machine]) & set(asked) == set()
    for number in range(600):
        assert answer(program, architecture=audit, number=number) == asked.get(number, ALLOW), number


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_arguments_decide(machine: str, audit: int, column: int) -> None:
    """Of calls that libraries need, the arguments that they use are allowed, and others not."""
    program = filter_program(signals=True, machine=machine) or b""

    def of(call: tuple[int, int], *arguments: int) -> int:
        return answer(program, architecture=audit, number=call[column], arguments=arguments)

    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert of(CLONE, flag | 17) == DENIED
    assert of(CLONE, 0x3D0F00) == of(CLONE, 0x1200011) == ALLOW  # as glibc asks for threads and forks
    assert of(CLONE, 0x3D0B00) == DENIED  # a thread with open files of its own
    assert (of(PRLIMIT, 0), of(PRLIMIT, 1)) == (ALLOW, DENIED)
    assert of(FCNTL, 8, 3) == of(FCNTL, 1024, 2) == ALLOW  # the first argument is not the command
    for command in (8, 10, 15, 1024, 1026, 1031, 1036, 1038):
        assert of(FCNTL, 0, command) == DENIED
    assert of(PRCTL, 15) == of(PRCTL, 1, 9) == of(PRCTL, 4, 1) == ALLOW  # a name; what the program inside asks for
    for arguments in ((1, 0), (1, 15), (4, 0), (4, 2), (35,), (36,), (41,), (0x59616D61,)):
        assert of(PRCTL, *arguments) == DENIED
    assert of(MMAP, 0, 0, 3, 0x22) == of(MMAP, 0, 0, 3, 0x1) == of(MMAP, 0, 0, 3, 0x2) == ALLOW
    assert of(MMAP, 0, 0, 3, 0x21) == of(MMAP, 0, 0, 3, 0x23) == DENIED
    assert (of(CLOSE_RANGE, 3, 9, 4), of(CLOSE_RANGE, 3, 9, 2)) == (ALLOW, DENIED)
    assert of(IOCTL, 0, 0x5401) == of(IOCTL, 3, 0x40049409) == ALLOW  # whether it is a terminal; a copy without bytes
    assert of(IOCTL, 3, 0x40086602) == of(IOCTL, 3, 0x40806685) == ERRNO | errno.ENOTTY  # flags, verity


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_signals_are_forbidden_where_landlock_does_not_hold_them_in(machine: str, audit: int, column: int) -> None:
    """Before version 6 of Landlock no signal is sent at all."""
    for signals, expected in ((True, ALLOW), (False, DENIED)):
        program = filter_program(signals=signals, machine=machine) or b""
        for numbers in SIGNALS.values():
            assert answer(program, architecture=audit, number=numbers[column] or 0) == expected


@pytest.mark.parametrize(("machine", "audit", "column"), MACHINES)
def test_other_architectures_do_not_pass(machine: str, audit: int, column: int) -> None:
    """A 32-bit call has other numbers, and so have those of x32: neither slips through."""
    program = filter_program(signals=True, machine=machine) or b""

    assert answer(program, architecture=0x40000003, number=1) == KILL
    assert answer(program, architecture=audit, number=0x40000000) == DENIED
