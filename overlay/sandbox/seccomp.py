"""A seccomp filter, built by hand: the system calls that a script may not make.

It names what is forbidden, not what is allowed: libraries use several hundred calls and new ones each year, and what a
call can reach is bounded a second time, by the mount namespace or by Landlock. Numbers are those of the kernel's
``unistd`` headers; a process of another architecture than the filter's is killed at its first call.
"""

from __future__ import annotations

import errno
import platform
import struct

__all__ = ["filter_program"]

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # AUDIT_ARCH_*, column of the tables

# name: (x86_64, aarch64); None where the architecture lacks the call
_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # No connection, no message: sockets of every family, Unix and netlink too.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # No way out of the process group, which is killed as one.
    "setsid": (112, 157),
    "setpgid": (109, 154),
    # No hand on other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "perf_event_open": (298, 241),
    # No other view of the filesystem.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_tree_attr": (467, 467),
    # No parts of the kernel that a script has no use for and that have often had faults.
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    # No files but by path, none of a special kind, no eye on what others do with theirs.
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "mknod": (133, None),
    "mknodat": (259, 33),
    # No memory that belongs to no process and is therefore not counted.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    # No attributes that outlive the script.
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
_SIGNALS: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
# Landlock does not govern modes, owners and times, so these change nothing; to copy a file with its mode succeeds.
# The others could slow down processes of the same user.
_WITHOUT_EFFECT: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
}
_PRCTL, _PRLIMIT, _CLONE, _CLONE3, _FCNTL = (157, 167), (302, 261), (56, 220), (435, 435), (72, 25)

_PR_SET_DUMPABLE = 4
_F_SETOWN, _F_SETOWN_EX = 8, 15
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS | CGROUP | UTS | IPC | USER | PID | NET
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, …, BPF_RET|K
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # offsets in seccomp_data, little-endian
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
    forbidden = _FORBIDDEN if signals else _FORBIDDEN | _SIGNALS
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, audit, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
        *_when(_AT_LEAST, _X32, _ERRNO | errno.EPERM),
        *_when(_EQUAL, _CLONE3[column], _ERRNO | errno.ENOSYS),  # its flags lie in memory; libraries then use clone
    ]
    for table, answer in ((forbidden, _ERRNO | errno.EPERM), (_WITHOUT_EFFECT, _ERRNO)):
        for numbers in table.values():
            number = numbers[column]
            if number is not None:
                program += _when(_EQUAL, number, answer)
    for call, argument, question, low in (
        (_PRCTL, _FIRST_ARGUMENT, _EQUAL, _PR_SET_DUMPABLE),  # what cannot be looked at cannot be measured
        (_CLONE, _FIRST_ARGUMENT, _ANY_BIT, _NEW_NAMESPACES),
        (_FCNTL, _SECOND_ARGUMENT, _EQUAL, _F_SETOWN),  # another way to send signals
        (_FCNTL, _SECOND_ARGUMENT, _EQUAL, _F_SETOWN_EX),
    ):
        program += [
            _step(_EQUAL, call[column], 0, 4),
            _step(_LOAD, argument),
            *_when(question, low, _ERRNO | errno.EPERM),
            _step(_LOAD, _NUMBER),
        ]
    program += [
        _step(_EQUAL, _PRLIMIT[column], 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_EQUAL, 0, 1, 0),  # limits of itself only, not of other processes of the same user
        _step(_RETURN, _ERRNO | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _when(question: int, value: int, answer: int) -> tuple[bytes, bytes]:
    """Two steps: give ``answer`` where the question is true of what was loaded, else go on."""
    return _step(question, value, 0, 1), _step(_RETURN, answer)
