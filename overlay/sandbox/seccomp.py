"""A seccomp filter, built by hand: the system calls that a script may not make.

It names what is forbidden, not what is allowed: libraries use several hundred calls and new ones each year, and what a
call can reach is bounded a second time, by the mount namespace or by Landlock. A process of another architecture than
the filter's is killed at its first call.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import TYPE_CHECKING

from overlay.sandbox.calls import (
    CLONE3,
    FORBIDDEN,
    IOCTL,
    IOCTL_REQUESTS,
    RULES,
    SIGNALS,
    UNSUPPORTED,
    WITHOUT_EFFECT,
)

if TYPE_CHECKING:
    from overlay.sandbox.calls import Rule

__all__ = ["filter_program"]

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, column of the tables

_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, …, BPF_RET|K
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in seccomp_data; eight bytes an argument, little-endian
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def filter_program(*, signals: bool, machine: str | None = None) -> bytes | None:
    """The filter as an array of ``sock_filter``; None for an architecture that it is not written for.

    Args:
        signals: Whether signals may be sent; where not, none may be, not even to the script's own processes.
        machine: Architecture as ``platform.machine()`` names it; this host's when None.
    """
    known = _ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return None
    audit, column = known
    forbidden = FORBIDDEN if signals else FORBIDDEN | SIGNALS
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, audit, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        *_when(_AT_LEAST, _X32, _ERRNO | errno.EPERM),
        *_when(_EQUAL, CLONE3[column] or 0, _ERRNO | errno.ENOSYS),  # flags lie in memory; libraries then use clone
    ]
    for table, answer in ((forbidden, errno.EPERM), (UNSUPPORTED, errno.EOPNOTSUPP), (WITHOUT_EFFECT, 0)):
        for numbers in table.values():
            number = numbers[column]
            if number is not None:
                program += _when(_EQUAL, number, _ERRNO | answer)
    for rule in RULES:
        program += _refused(rule, rule.call[column] or 0)
    program += [
        _step(_EQUAL, IOCTL[column] or 0, 0, 2 * len(IOCTL_REQUESTS) + 2),
        _step(_LOAD, _ARGUMENTS + 8),
        *(step for request in IOCTL_REQUESTS for step in _when(_EQUAL, request, _ALLOW)),
        _step(_RETURN, _ERRNO | errno.ENOTTY),  # as of a file that does not know the request
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _refused(rule: Rule, number: int) -> list[bytes]:
    """Steps that give the rule's answer where all its tests are met, and else leave the number loaded."""
    steps = [_step(_EQUAL, number, 0, 2 * len(rule.tests) + 2)]
    for place, test in enumerate(rule.tests):
        question = _EQUAL if test.question == "is" else _ANY_BIT
        out = 2 * (len(rule.tests) - place) - 1  # steps to the last one
        steps.append(_step(_LOAD, _ARGUMENTS + 8 * test.argument))
        steps.append(_step(question, test.value, 0, out) if test.expected else _step(question, test.value, out, 0))
    return [*steps, _step(_RETURN, _ERRNO | rule.answer), _step(_LOAD, _NUMBER)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _when(question: int, value: int, answer: int) -> tuple[bytes, bytes]:
    """Two steps: give ``answer`` where the question is true of what was loaded, else go on."""
    return _step(question, value, 0, 1), _step(_RETURN, answer)
