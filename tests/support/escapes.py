"""What a hostile script tries, what stops it, and how that is named: one table for the tests and the docs.

Each attempt is the body of ``materialize(*, overlay_dir, source_dir, output_dir, manifest)``. ``w`` holds the facts of
the test's world: ``home``, ``secret`` and ``outside`` (paths), ``caller`` (a pid), ``tcp``, ``udp`` (ports), ``unix``
(a path), ``abstract`` (a name), ``token`` (a secret text).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ESCAPES", "PREAMBLE", "Escape", "table"]

PREAMBLE = """
import ctypes, errno, fcntl, importlib, mmap, os, pathlib, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
def materialize(*, overlay_dir, source_dir, output_dir, manifest):
    w, out, source = manifest, pathlib.Path(output_dir), pathlib.Path(source_dir)
"""

NOT_IN_VIEW = "not in its view"
NO_RULE = "no Landlock rule"
SECCOMP = "seccomp"
WATCH = "the guard"


@dataclass(frozen=True, slots=True)
class Escape:
    """One attempt.

    Args:
        what: For the docs.
        attempt: Python source, one statement a line.
        named: How the run ends: a code with the limit or finding, or an exception that the script gets; ``no effect``.
        bubblewrap: What stops it there.
        landlock: What stops it there; as in bubblewrap when None.
        free: Whether it harms nobody and works for everybody where nothing stops it.
    """

    what: str
    attempt: str
    named: str
    bubblewrap: str
    landlock: str | None = None
    free: bool = False


_FORK = "if os.fork() == 0: (time.sleep(60), os._exit(0))"
_EVER = "while True: time.sleep(0.01)"
_LEADERLESS = "def work():\n    time.sleep(0.2)\n"
_LEAVE = (
    "if os.fork() == 0:\n    threading.Thread(target=work).start()\n"
    "    libc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\nos.wait()"
)

ESCAPES = (
    Escape(
        "read the Hub token's file",
        "print((pathlib.Path(w['home']) / '.cache/huggingface/token').read_text())",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "list the home folder",
        "print(os.listdir(w['home']))",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "read the token from its environment",
        "os.environ['HF_TOKEN']",
        "script-failed: KeyError",
        "empty environment",
        free=True,
    ),
    Escape("print its whole environment", "print(dict(os.environ))", "no effect", "empty environment"),
    Escape(
        "read the caller's environment",
        "print(open(f\"/proc/{w['caller']}/environ\").read())",
        "script-failed: FileNotFoundError, PermissionError",
        "own process namespace",
        NO_RULE,
        free=True,
    ),
    Escape(
        "read the first process's environment",
        "print(open('/proc/1/environ').read(), flush=True); print(); raise PermissionError('of the sandbox itself')",
        "script-failed: PermissionError",
        "own process namespace",
        NO_RULE,
    ),
    Escape(
        "list the processes of the machine",
        "if str(w['caller']) not in os.listdir('/proc'): raise PermissionError('not there')",
        "script-failed: PermissionError",
        "own process namespace",
        NO_RULE,
        free=True,
    ),
    Escape(
        "read /etc/shadow",
        "print(open('/etc/shadow').read())",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
    ),
    Escape(
        "read a file of another folder (the cache root, the Hub's cache, /tmp)",
        "print(open(w['secret']).read())",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "follow a link of its inputs to a file elsewhere",
        "print((source / 'link-to-secret').read_text())",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "connect by TCP",
        "socket.create_connection(('127.0.0.1', w['tcp']), 5)",
        "script-failed: PermissionError",
        f"{SECCOMP}, own network namespace",
        f"{SECCOMP}, Landlock from version 4",
        free=True,
    ),
    Escape(
        "send by UDP",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', w['udp']))",
        "script-failed: PermissionError",
        f"{SECCOMP}, own network namespace",
        SECCOMP,
        free=True,
    ),
    Escape(
        "connect to a Unix socket",
        "socket.socket(socket.AF_UNIX).connect(w['unix'])",
        "script-failed: PermissionError",
        f"{SECCOMP}, {NOT_IN_VIEW}",
        SECCOMP,
        free=True,
    ),
    Escape(
        "connect to an abstract Unix socket",
        "socket.socket(socket.AF_UNIX).connect('\\0' + w['abstract'])",
        "script-failed: PermissionError",
        f"{SECCOMP}, own network namespace",
        f"{SECCOMP}, Landlock from version 6",
        free=True,
    ),
    Escape(
        "open a netlink or packet socket",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "use io_uring, which seccomp does not see into",
        "call(libc.syscall(425, 8, ctypes.create_string_buffer(120)))",
        "script-failed: PermissionError",
        SECCOMP,
    ),
    Escape(
        "write in another folder",
        "open(w['outside'] + '/written', 'w').write('x')",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "write in the root folder",
        "open('/written', 'w').write('x')",
        "script-failed: OSError, PermissionError",
        "read-only mount",
        NO_RULE,
    ),
    Escape(
        "change an input",
        "open(source / 'config.json', 'a').write('x')",
        "script-failed: OSError, PermissionError",
        "read-only mount",
        NO_RULE,
        free=True,
    ),
    Escape(
        "add to its inputs",
        "(source / 'written').mkdir()",
        "script-failed: OSError, PermissionError",
        "read-only mount",
        NO_RULE,
        free=True,
    ),
    Escape(
        "change the program that runs it",
        "open(sys.modules['__main__'].__file__, 'a').write('x')",
        "script-failed: OSError, PermissionError",
        "read-only mount",
        NO_RULE,
    ),
    Escape(
        "write through a link of its inputs",
        "(source / 'link-to-outside' / 'written').write_text('x')",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "write through a link of its own",
        "(out / 'door').symlink_to(w['outside']); (out / 'door/written').write_text('x')",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "open other files to everybody",
        "[os.chmod(path, 0o666) for path in (w['secret'], source / 'config.json')]",
        "no effect",
        f"{SECCOMP}, {NOT_IN_VIEW}",
        SECCOMP,
        free=True,
    ),
    Escape(
        "mark its inputs",
        "os.setxattr(source / 'config.json', 'user.mark', b'x')",
        "script-failed: PermissionError",
        f"{SECCOMP}, read-only mount",
        SECCOMP,
    ),
    Escape(
        "change flags of its inputs",
        "fcntl.ioctl(os.open(source / 'config.json', os.O_RDONLY), 0x40086602, bytes(8))",
        "script-failed: OSError",
        f"{SECCOMP}, read-only mount",
        SECCOMP,
    ),
    Escape(
        "hold its inputs against others",
        "fcntl.fcntl(os.open(source / 'config.json', os.O_RDONLY), 1024, 0)",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "read the attributes of other files",
        "os.listxattr(w['secret'])",
        "script-failed: OSError",
        f"{SECCOMP}, {NOT_IN_VIEW}",
        SECCOMP,
        free=True,
    ),
    Escape(
        "list connections of the machine",
        "print(open('/proc/self/net/tcp').read()); raise PermissionError('of the sandbox itself')",
        "script-failed: PermissionError",
        "own network namespace, no Landlock rule",
        NO_RULE,
    ),
    Escape(
        "leave a link to the outside",
        "(out / 'config.json').symlink_to(w['secret'])",
        "script-output: link out",
        "the check of its output",
    ),
    Escape(
        "leave a link that leads out by `..`",
        "(out / 'a').symlink_to('../' * 30 + w['secret'])",
        "script-output: link out",
        "the check of its output",
    ),
    Escape(
        "leave a link to nothing, for others to fill",
        "(out / 'a').symlink_to(w['outside'] + '/absent')",
        "script-output: dangling link",
        "the check of its output",
    ),
    Escape(
        "leave a link to a folder",
        "(out / 'a').symlink_to(source)",
        "script-output: link to no file",
        "the check of its output",
    ),
    Escape(
        "link a file of another folder hard",
        "os.link(w['secret'], out / 'a')",
        "script-failed: FileNotFoundError, OSError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "link an input hard",
        "os.link(source / 'config.json', out / 'a')",
        "script-failed: OSError, PermissionError",
        "another mount",
        NO_RULE,
        free=True,
    ),
    Escape(
        "move an input away",
        "os.rename(source / 'config.json', out / 'a')",
        "script-failed: OSError, PermissionError",
        "another mount",
        NO_RULE,
        free=True,
    ),
    Escape(
        "leave a pickle", "(out / 'model.bin').write_bytes(b'x')", "script-output: pickle", "the check of its output"
    ),
    Escape(
        "leave a program that runs as its owner",
        "os.close(os.open(out / 'a', os.O_CREAT | os.O_WRONLY, 0o4755))",
        "script-output: special mode",
        "the check of its output",
    ),
    Escape(
        "leave a name that breaks a terminal",
        "(out / 'a\\x1b[2J').write_text('x')",
        "script-output: bad name",
        "the check of its output",
    ),
    Escape(
        "leave a name that is no text",
        "open(os.fsencode(out) + b'/\\xff', 'w').close()",
        "script-output: bad name",
        "the check of its output",
    ),
    Escape("leave a pipe", "os.mkfifo(out / 'a')", "script-failed: PermissionError", SECCOMP, free=True),
    Escape(
        "make a device", "os.mknod(out / 'a', 0o60600, os.makedev(8, 0))", "script-failed: PermissionError", SECCOMP
    ),
    Escape(
        "open a disk",
        "open(w['disk'], 'rb')",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
    ),
    Escape(
        "fork without end",
        "while True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)",
        "script-limit: processes",
        f"user's limit, {WATCH}",
    ),
    Escape(
        "fork without end, each time from a new process",
        "while os.fork(): pass\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass",
        "script-limit: processes",
        f"user's limit, {WATCH}",
    ),
    Escape(
        "start processes until one is refused",
        f"while True:\n    {_FORK}",
        "script-limit: processes",
        "user's limit",
    ),
    Escape(
        "start threads without end",
        "while True:\n    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "    except RuntimeError: time.sleep(0.01)",
        "script-limit: processes",
        f"user's limit, {WATCH}",
    ),
    Escape(
        "fill the memory from one process",
        "held = []\nwhile True: held.append(b'x' * 2**22)",
        "script-limit: memory",
        WATCH,
    ),
    Escape(
        "fill the memory from many processes",
        f"for _ in range(4):\n    if os.fork() == 0: held = b'x' * (w['memory'] // 3); time.sleep(60)\n{_EVER}",
        "script-limit: memory",
        WATCH,
    ),
    Escape(
        "fill memory that it shares",
        "mmap.mmap(-1, 4096)",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "fill memory that it shares by a device",
        "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
        "script-failed: FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
        free=True,
    ),
    Escape(
        "fill the memory from a process whose first thread has ended",
        f"{_LEADERLESS}    held = b'x' * 2 * w['memory']; time.sleep(60)\n{_LEAVE}",
        "script-limit: memory",
        WATCH,
    ),
    Escape(
        "fill the kernel's memory with mappings",
        "for _ in range(20):\n    if os.fork() == 0:\n"
        "        held = [mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ * (i % 2))"
        f" for i in range(60000)]\n        time.sleep(60)\n{_EVER}",
        "script-limit: memory",
        WATCH,
    ),
    Escape(
        "keep memory in pipes",
        "call(libc.vmsplice(os.pipe()[1], 0, 0, 0))",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "keep pages of files in pipes",
        "os.sendfile(os.pipe()[1], os.open(source / 'config.json', os.O_RDONLY), 0, 1)",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "make pipes larger",
        "fcntl.fcntl(os.pipe()[1], 1031, 2**20)",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "keep memory that no process has", "os.memfd_create('a')", "script-failed: PermissionError", SECCOMP, free=True
    ),
    Escape(
        "keep System V memory",
        "call(libc.shmget(0, 4096, 0o1600))",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "take messages of others",
        "call(libc.msgrcv(-1, 0, 0, 0, 0))",
        "script-failed: PermissionError",
        f"{SECCOMP}, own message namespace",
        SECCOMP,
    ),
    Escape(
        "remove queues and semaphores of others",
        "call(libc.msgctl(-1, 0, 0))",
        "script-failed: PermissionError",
        f"{SECCOMP}, own message namespace",
        SECCOMP,
    ),
    Escape(
        "fill the disk with one file",
        "with open(out / 'a', 'wb') as file:\n    while True: file.write(bytes(2**20))",
        "script-limit: disk",
        f"limit of a file, {WATCH}",
    ),
    Escape(
        "make a file that is larger than the disk may hold",
        "with open(out / 'a', 'wb') as file: file.truncate(2**40)",
        "script-limit: disk",
        "limit of a file",
    ),
    Escape(
        "fill the disk with many files",
        f"for i in range(99): (out / str(i)).write_bytes(bytes(2**20))\n{_EVER}",
        "script-limit: disk",
        WATCH,
    ),
    Escape(
        "fill the disk with files that have no name",
        "held = []\nfor i in range(99):\n    held.append(open(out / 'a', 'wb', 0)); held[-1].write(bytes(2**20))\n"
        f"    (out / 'a').unlink()\n{_EVER}",
        "script-limit: disk",
        WATCH,
    ),
    Escape(
        "fill the disk from a process whose first thread has ended",
        f"{_LEADERLESS}    held = []\n    for i in range(99):\n"
        "        held.append(open(out / 'a', 'wb', 0)); held[-1].write(bytes(2**20)); (out / 'a').unlink()\n"
        f"    time.sleep(60)\n{_LEAVE}",
        "script-limit: disk",
        WATCH,
    ),
    Escape(
        "have open files that are a thread's alone",
        "call(libc.syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], 0x10900, 0, 0, 0, 0))",
        "script-failed: PermissionError",
        SECCOMP,
    ),
    Escape(
        "fill the disk in a folder that it renames",
        "(out / '0').mkdir()\nfor i in range(3000): (out / f'e{i}').touch()\nif os.fork() == 0:\n"
        "    for i in range(10**9): os.rename(out / str(i), out / str(i + 1))\n"
        "place = None\nwhile place is None:\n"
        "    try: place = os.open(next(path for path in out.iterdir() if path.name.isdigit()), os.O_RDONLY)\n"
        "    except (OSError, StopIteration): pass\n"
        "for i in range(30):\n"
        "    file = os.open(f'f{i}', os.O_CREAT | os.O_WRONLY, dir_fd=place); os.write(file, bytes(2**20))\n"
        f"{_EVER}",
        "script-limit: disk",
        f"{WATCH}, which stops all for a look",
    ),
    Escape(
        "fill a folder that nobody may look into",
        "os.umask(0); (out / 'a').mkdir(0o300)\nfor i in range(99): (out / f'a/{i}').write_bytes(bytes(2**20))\n"
        f"{_EVER}",
        "script-limit: disk",
        WATCH,
    ),
    Escape(
        "fill the scratch folder",
        f"for i in range(99): (pathlib.Path.home() / str(i)).write_bytes(bytes(2**20))\n{_EVER}",
        "script-limit: disk",
        WATCH,
    ),
    Escape(
        "nest folders deeper than a path can be",
        f"os.chdir(out)\nfor _ in range(3000): os.mkdir('a'); os.chdir('a')\n{_EVER}",
        "script-limit: depth",
        WATCH,
    ),
    Escape("wait without end", "time.sleep(1e6)", "script-limit: seconds", WATCH),
    Escape("compute without end", "while True: pass", "script-limit: seconds", WATCH),
    Escape(
        "ignore every signal",
        "for number in set(signal.valid_signals()) - {9, 19}: signal.signal(number, signal.SIG_IGN)\n" + _EVER,
        "script-limit: seconds",
        WATCH,
    ),
    Escape(
        "leave a process behind",
        _FORK,
        "script-failed: left processes behind",
        f"process namespace, {WATCH}",
        f"process group, {WATCH}",
    ),
    Escape(
        "leave a process behind that nobody is the parent of",
        "if os.fork() == 0:\n    if os.fork() == 0: (time.sleep(60), os._exit(0))\n    os._exit(0)\nos.wait()",
        "script-failed: left processes behind",
        f"process namespace, {WATCH}",
        f"process group, {WATCH}",
    ),
    Escape(
        "leave a process behind and end at once",
        f"{_FORK}\nos._exit(0)",
        "script-failed: left processes behind",
        f"process namespace, {WATCH}",
        f"process group, {WATCH}",
    ),
    Escape("leave its session", "os.setsid()", "script-failed: PermissionError", SECCOMP, free=True),
    Escape("leave its process group", "os.setpgid(os.fork(), 0)", "script-failed: PermissionError", SECCOMP, free=True),
    Escape(
        "trace the caller",
        "call(libc.ptrace(16, w['caller'], 0, 0))",
        "script-failed: PermissionError",
        f"{SECCOMP}, own process namespace",
        SECCOMP,
    ),
    Escape(
        "read the caller's memory",
        "call(libc.process_vm_readv(w['caller'], 0, 0, 0, 0, 0))",
        "script-failed: PermissionError",
        f"{SECCOMP}, own process namespace",
        SECCOMP,
    ),
    Escape(
        "send the caller a signal",
        "os.kill(w['caller'], signal.SIGTERM)",
        "script-failed: PermissionError, ProcessLookupError",
        "own process namespace",
        f"Landlock from version 6, else {SECCOMP}",
    ),
    Escape(
        "let a pipe send the caller a signal",
        "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, w['caller'])",
        "script-failed: PermissionError",
        f"{SECCOMP}, own process namespace",
        SECCOMP,
        free=True,
    ),
    Escape(
        "kill its guard",
        "if os.kill(os.getppid(), signal.SIGKILL) is None: raise PermissionError('ignored')",
        "script-failed: PermissionError",
        "own process namespace",
        f"Landlock from version 6, else {SECCOMP}",
    ),
    Escape(
        "write to the process that confines it",
        "open(f'/proc/{os.getppid()}/mem', 'r+b')",
        "script-failed: PermissionError",
        "closed to all others, no Landlock rule",
    ),
    Escape(
        "survive the process that confines it",
        "call(libc.prctl(1, 0, 0, 0, 0))",
        "script-failed: PermissionError",
        SECCOMP,
        free=True,
    ),
    Escape(
        "have the kernel spare it when memory runs out",
        "open('/proc/self/oom_score_adj', 'w').write('0')",
        "script-failed: PermissionError",
        "no Landlock rule",
    ),
    Escape(
        "pass for a sandbox that does not work",
        "print('bwrap: no permissions', flush=True); os._exit(1)",
        "script-failed: ended with status 1",
        "the guard asks the program inside",
    ),
    Escape(
        "lower the caller's limits",
        "import resource; resource.prlimit(w['caller'], resource.RLIMIT_NOFILE, (0, 0))",
        "script-failed: PermissionError",
        f"{SECCOMP}, own process namespace",
        SECCOMP,
    ),
    Escape(
        "raise its own limits",
        "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))",
        "script-failed: ValueError, PermissionError",
        "no privileges",
    ),
    Escape(
        "hide from the guard", "call(libc.prctl(4, 0, 0, 0, 0))", "script-failed: PermissionError", SECCOMP, free=True
    ),
    Escape("become root", "os.setuid(0)", "script-failed: OSError, PermissionError", "no privileges"),
    Escape("enter a user namespace", "call(libc.unshare(0x10000000))", "script-failed: PermissionError", SECCOMP),
    Escape(
        "start a process in a user namespace",
        "call(libc.syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], 0x10000000 | 17, 0, 0, 0, 0))",
        "script-failed: PermissionError",
        SECCOMP,
    ),
    Escape("mount", "call(libc.mount(b'none', bytes(out), b'tmpfs', 0, 0))", "script-failed: PermissionError", SECCOMP),
    Escape(
        "open a file by its handle",
        "call(libc.open_by_handle_at(0, ctypes.create_string_buffer(64), 0))",
        "script-failed: PermissionError",
        SECCOMP,
    ),
    Escape(
        "import from the folder it is started in, from PYTHONPATH and the user's packages",
        "[importlib.import_module(name) for name in ('planted_here', 'planted_path', 'planted_user')]",
        "script-failed: ModuleNotFoundError",
        "isolated interpreter",
    ),
    Escape(
        "print without end",
        "for _ in range(200): print('x' * 2**16)",
        "no effect",
        "what is kept is bounded",
    ),
    Escape(
        "write to the caller's terminal",
        "open('/dev/tty', 'w').write('x')",
        "script-failed: OSError, FileNotFoundError, PermissionError",
        NOT_IN_VIEW,
        NO_RULE,
    ),
    Escape("end early and claim success", "sys.exit(0)", "script-failed: SystemExit", "the program inside"),
)


def table() -> str:
    """The table of ``docs/explanation/sandbox.md``."""
    lines = [
        "| a script that tries to | is stopped in bubblewrap by | in Landlock by | and it is named |",
        "|---|---|---|---|",
    ]
    for escape in ESCAPES:
        code, _, detail = escape.named.partition(": ")
        named = f"`{code}`" + (f": {detail}" if detail else "") if code != "no effect" else code
        lines.append(f"| {escape.what} | {escape.bubblewrap} | {escape.landlock or escape.bubblewrap} | {named} |")
    return "\n".join(lines)
