"""A start of a server as text that a shell, Docker or Kubernetes takes as it is."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Literal

from overlay.errors import InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.consumers.launch import Start

__all__ = ["FORMS", "Form", "lines_of"]

Form = Literal["shell", "docker", "k8s"]
FORMS: tuple[Form, ...] = ("shell", "docker", "k8s")

# For Kubernetes, which gives a container no GPU unless asked, and 64 MiB through which workers pass tensors.
_GPUS = 1
_SHARED_MEMORY = "32Gi"


def lines_of(start: Start, form: Form, *, comments: bool = True) -> list[str]:
    """A start in one of the forms: what a reader needs to know beside it in comments first, what is run after them.

    The command of a shell or of Docker is the last line, so that words behind it are words of the command.

    Raises:
        InvalidUsage: A path cannot be said in this form.
    """
    for text in (*start.command, *start.env.values(), *start.folders):
        if not text.isprintable():
            raise _not_nameable(text, "has control characters, or is not UTF-8")
    lines = {"shell": _shell, "docker": _docker, "k8s": _k8s}[form](start)
    said = [f"# {start.model} for {start.server}, by {start.by}", *_requests(start)]
    if form == "k8s":
        said.append(
            "# volumes are folders of this host; a volume of the pod's own (a claim) goes in their place, mounted"
        )
        said.append("# under the same path")
    return [*(said if comments else []), *lines]


def _shell(start: Start) -> Iterator[str]:
    # Through env, not exported: nothing is left behind in a shell that runs it.
    yield shlex.join(["env", *(f"{name}={value}" for name, value in start.env.items()), *start.command])


def _docker(start: Start) -> Iterator[str]:
    # The server listens as it does without a container, and its workers share memory.
    program, *rest = start.command
    words = ["docker", "run", "--rm", "--gpus", "all", "--ipc", "host", "--network", "host"]
    for folder in _mounted(start):
        if ":" in folder:
            raise _not_nameable(folder, "has a colon, which ends a path for docker -v")
        words += ["-v", f"{folder}:{folder}:ro"]
    for name, value in start.env.items():
        words += ["-e", f"{name}={value}"]
    yield shlex.join([*words, "--entrypoint", program, start.image, *rest])


def _k8s(start: Start) -> Iterator[str]:
    """Part of a pod's spec. Each value is in double quotes, which YAML reads as JSON does."""
    program, *rest = start.command
    yield "containers:"
    yield f"  - name: {_quoted(program)}"
    yield f"    image: {_quoted(start.image)}"
    yield f"    command: [{_quoted(program)}]"
    yield "    args:"
    yield from (f"      - {_quoted(_unexpanded(word))}" for word in rest)
    yield "    env:"
    for variable, value in start.env.items():
        yield f"      - name: {_quoted(variable)}"
        yield f"        value: {_quoted(_unexpanded(value))}"
    yield "    resources:"
    yield "      limits:"
    yield f"        nvidia.com/gpu: {_GPUS}"
    yield "    volumeMounts:"
    yield "      - name: shm"
    yield "        mountPath: /dev/shm"
    folders = list(enumerate(_mounted(start)))
    for number, folder in folders:
        yield f"      - name: {_quoted(f'models-{number}')}"
        yield f"        mountPath: {_quoted(folder)}"
        yield "        readOnly: true"
    yield "volumes:"
    yield "  - name: shm"
    yield "    emptyDir:"
    yield "      medium: Memory"
    yield f"      sizeLimit: {_SHARED_MEMORY}"
    for number, folder in folders:
        yield f"  - name: {_quoted(f'models-{number}')}"
        yield "    hostPath:"
        yield f"      path: {_quoted(folder)}"
        yield "      type: Directory"


def _requests(start: Start) -> Iterator[str]:
    if start.request:
        points = f" ({start.grid_points} grid points)" if start.grid_points else ""
        said = (
            f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in start.request.items()
        )
        yield f"# in each request: {', '.join(said)}{points}"


def _mounted(start: Start) -> tuple[str, ...]:
    for folder in start.folders:
        if not folder.startswith("/"):
            raise _not_nameable(folder, "is relative, and a container has another working directory")
    return start.folders


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unexpanded(text: str) -> str:
    """Text that Kubernetes takes literally: it replaces ``$(NAME)``, and halves each pair of dollars."""
    return text.replace("$", "$$")


def _not_nameable(text: str, why: str) -> InvalidUsage:
    return InvalidUsage(
        f"{text!r}: {why}",
        code="not-nameable",
        hint="give the folder another name, or choose another cache root: --cache-root DIR",
        path=text,
    )
