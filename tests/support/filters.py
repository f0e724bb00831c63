"""A seccomp filter carried out step by step, as the kernel does it: the oracle of what a filter answers."""

from __future__ import annotations

import struct

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def answer(program: bytes, *, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the filter says to a system call with this number and these arguments, further ones zero."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return value
        else:
            asked = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += if_true if asked else if_false
