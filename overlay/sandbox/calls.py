"""System calls that a script may not make, or only with certain arguments; numbers are of the kernel's headers."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CLONE3",
    "FORBIDDEN",
    "IOCTL",
    "IOCTL_REQUESTS",
    "RULES",
    "SIGNALS",
    "UNSUPPORTED",
    "WITHOUT_EFFECT",
    "Call",
    "Rule",
    "Test",
]

Call = tuple[int | None, int | None]
"""Number on x86_64 and on aarch64; None where the architecture lacks the call."""

FORBIDDEN: dict[str, Call] = {
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
    "statmount": (457, 457),
    "listmount": (458, 458),
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
    "vmsplice": (278, 75),
    "splice": (275, 76),
    "tee": (276, 77),
    "sendfile": (40, 71),  # keeps pages of files in pipes; what copies by it then reads and writes
    # No messages, semaphores and memory of the host: Landlock has no namespace for them.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
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
SIGNALS: dict[str, Call] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
# Landlock does not govern modes, owners and times, so these change nothing; to copy a file with its mode succeeds.
# The others could slow down processes of the same user.
WITHOUT_EFFECT: dict[str, Call] = {
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
# Attributes of files elsewhere could be read by path: Landlock does not govern them. As on a filesystem that has none.
UNSUPPORTED: dict[str, Call] = {
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "fgetxattr": (193, 10),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "flistxattr": (196, 13),
    "getxattrat": (464, 464),
    "listxattrat": (465, 465),
}

CLONE3: Call = (435, 435)
IOCTL: Call = (16, 29)
IOCTL_REQUESTS = (
    *(0x5401, 0x802C542A, 0x5413),  # TCGETS, TCGETS2, TIOCGWINSZ: whether it is a terminal
    *(0x541B, 0x5421, 0x5450, 0x5451),  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    *(0x40049409, 0x4020940D),  # FICLONE, FICLONERANGE
)
"""All that are allowed: others change flags, versions and keys of files that are open to read only."""


@dataclass(frozen=True, slots=True)
class Test:
    """A question about the lower half of an argument.

    Args:
        argument: Its place, from 0.
        question: Whether it is ``value``, or has one of the bits of ``value``.
        expected: The answer at which a rule goes on.
    """

    argument: int
    question: Literal["is", "has"]
    value: int
    expected: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """A call that is refused where all tests are met."""

    call: Call
    tests: tuple[Test, ...]
    answer: int = errno.EPERM


_PRCTL, _PRLIMIT, _CLONE, _FCNTL = (157, 167), (302, 261), (56, 220), (72, 25)
_MMAP, _CLOSE_RANGE = (9, 222), (436, 436)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS | CGROUP | UTS | IPC | USER | PID | NET
_CLONE_FILES, _CLONE_THREAD, _CLOSE_RANGE_UNSHARE = 0x400, 0x10000, 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _SIGKILL = 1, 4, 9
_PRCTL_NEVER = (
    *(35, 36, 41),  # PR_SET_MM, PR_SET_CHILD_SUBREAPER, PR_SET_THP_DISABLE
    0x59616D61,  # PR_SET_PTRACER
)
_FCNTL_NEVER = (
    *(8, 10, 15),  # F_SETOWN, F_SETSIG, F_SETOWN_EX: other ways to send signals
    *(1024, 1026),  # F_SETLEASE, F_NOTIFY: a hand on how others use the inputs
    *(1036, 1038),  # F_SET_RW_HINT, F_SET_FILE_RW_HINT: change a file that is open to read only
    1031,  # F_SETPIPE_SZ: memory that no process has
)

RULES = (
    *(Rule(_PRCTL, (Test(0, "is", option),)) for option in _PRCTL_NEVER),
    # It ends with the process that started it, and what cannot be looked at cannot be measured: both stay as they are.
    Rule(_PRCTL, (Test(0, "is", _PR_SET_PDEATHSIG), Test(1, "is", _SIGKILL, expected=False))),
    Rule(_PRCTL, (Test(0, "is", _PR_SET_DUMPABLE), Test(1, "is", 1, expected=False))),
    Rule(_PRLIMIT, (Test(0, "is", 0, expected=False),)),  # limits of itself only, not of others of the same user
    Rule(_CLONE, (Test(0, "has", _NEW_NAMESPACES),)),
    # Threads have the open files of their process, so that one look at it sees them.
    Rule(_CLONE, (Test(0, "has", _CLONE_THREAD), Test(0, "has", _CLONE_FILES, expected=False))),
    Rule(_CLOSE_RANGE, (Test(2, "has", _CLOSE_RANGE_UNSHARE),)),
    *(Rule(_FCNTL, (Test(1, "is", command),)) for command in _FCNTL_NEVER),
    Rule(
        _MMAP, (Test(3, "has", 0x20), Test(3, "has", 0x1))
    ),  # MAP_ANONYMOUS, MAP_SHARED: counted nowhere once unmapped
)
