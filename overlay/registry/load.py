"""Which registry file is in force, and its entries with every override applied."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.errors import InvalidRegistry, InvalidUsage, NotHere, OverlayError
from overlay.formats.local import read_small_file
from overlay.registry.entries import Registry
from overlay.registry.variables import SGLANG_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.registry.entries import Entry
    from overlay.registry.lock import LockedModel
    from overlay.registry.schema import EntryFields
    from overlay.registry.strict_yaml import Document

__all__ = [
    "FILE_NAME",
    "VARIABLE",
    "is_of_project",
    "is_packaged",
    "load_registry",
    "locked_model",
    "packaged_registry",
    "project_registry",
    "relock_hint",
    "require_project",
]

FILE_NAME = "registry.yaml"
VARIABLE = "OVERLAY_REGISTRY"
_FOUND = "found from the working directory; another is taken with --registry or OVERLAY_REGISTRY"


def load_registry(
    flag: Path | None = None, *, environ: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Registry:
    """The registry in force.

    That is the first of: ``flag``, ``OVERLAY_REGISTRY``, a ``registry.yaml`` in the working directory or above it, the
    one that ships with this program. The first three are laid over the last by field; sglang's own variable is laid
    over the outcome. Nothing is fetched or written.

    Args:
        flag: File named on the command line.
        environ: Environment.
        cwd: Working directory.

    Raises:
        InvalidRegistry: A file or variable cannot be used as it stands; all problems of one file at once.
    """
    # Imported here: pydantic and the YAML reader take 0.1 s, and most of what imports this package reads no file.
    from overlay.registry.explain import checked
    from overlay.registry.merge import lay_over
    from overlay.registry.server import apply_server_registry

    cwd = cwd or _working_directory()
    packaged = packaged_registry()
    found, how = _override(flag, environ, cwd)
    files = [packaged] if found is None or _same_file(found, packaged) else [packaged, found]
    models: Mapping[str, EntryFields] = {}
    content = b""
    entries: dict[str, Entry] = {}
    replaced: dict[str, tuple[str, ...]] = {}
    for path in files:
        try:
            content, document = _read(path, cwd)
            models = checked(document).models
            entries, replaced = lay_over(entries, models, document, str(path))
        except InvalidRegistry as error:
            raise _with_origin(error, how if path == found else None) from error
    entries, told = apply_server_registry(entries, environ, cwd)
    notes = {model: (*replaced.get(model, ()), *told.get(model, ())) for model in (*replaced, *told)}
    is_found = len(files) > 1 and how == _FOUND
    return Registry(str(files[-1]), entries, notes, tuple(models), content, is_found=is_found, moved=told)


def project_registry(flag: Path | None) -> Registry:
    """The registry in force as its files have it, if it is one of a project.

    What a server's variable says of models is not in it: that is no property of the project.

    Args:
        flag: File named on the command line.

    Raises:
        InvalidUsage: It is the one that ships with this program.
        InvalidRegistry: As :func:`load_registry`.
    """
    environ = {name: value for name, value in os.environ.items() if name != SGLANG_REGISTRY}
    registry = load_registry(flag, environ=environ)
    require_project(registry, flag, "nothing is written beside it")
    return registry


def require_project(registry: Registry, flag: Path | None, why: str) -> None:
    """Refuse the registry that ships with this program, except in its own checkout.

    Args:
        why: What follows from its being no project's, for the message.

    Raises:
        InvalidUsage: It is that one.
    """
    if not is_of_project(registry, flag):
        raise InvalidUsage(
            f"{registry.path}: ships with this program, so {why}",
            code="no-project",
            hint="start a registry of your own: overlay init; or name one: --registry FILE",
            registry=registry.path,
        )


def is_of_project(registry: Registry, flag: Path | None) -> bool:
    """Whether a registry is one of a project, which the one that ships with this program is in its checkout alone."""
    if not is_packaged(registry.path):
        return True
    packaged = packaged_registry()
    installed = packaged.parent == Path(__file__).parent  # in a checkout it lies at the top
    with suppress(OSError):
        return not installed and (flag is not None or Path.cwd().is_relative_to(packaged.parent))
    return False


def locked_model(registry: str | Path, model: str) -> LockedModel | None:
    """What the lock in force, the one beside the registry in force, says of a model; None where it says nothing.

    Raises:
        InvalidRegistry: There is a lock, but it cannot be read.
    """
    from overlay.registry.lock import lock_path, read_lock  # pydantic, as above

    lock = read_lock(lock_path(registry))
    return lock.models.get(model) if lock else None


def relock_hint(registry: str | Path, model: str) -> str:
    """What to do where files are not as the lock of a registry says; the command is for whoever knows why.

    Nobody locks the registry that ships with this program.
    """
    why = "find out why first: the files of a commit never change by themselves"
    return why if is_packaged(registry) else f"{why}; if you know, and accept what is there: overlay lock {model}"


def is_packaged(registry: str | Path) -> bool:
    """Whether a registry file is the one that ships with this program."""
    return _same_file(Path(registry), packaged_registry())


def packaged_registry() -> Path:
    """The registry that ships with this program; in a checkout, the one at its top.

    Raises:
        NotHere: Neither is there: the installation is broken.
    """
    shipped = Path(__file__).with_name(FILE_NAME)
    for path in (shipped, Path(__file__).parents[2] / FILE_NAME):
        if path.is_file():
            return path
    raise NotHere(
        f"{shipped}: the registry that ships with this program is missing",
        code="registry-missing",
        hint="install it again: pip install --force-reinstall model-overlay",
    )


def _override(flag: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path | None, str]:
    """The file that overrides the packaged one, and how it was found."""
    if flag is not None:
        return cwd / flag, "named by --registry"
    if environ.get(VARIABLE):
        return cwd / os.path.expanduser(environ[VARIABLE]), f"named by {VARIABLE}"  # noqa: PTH111 - never raises
    for folder in (cwd, *cwd.parents):
        # Whatever has the name is meant, also a link to nothing: it is an error when it is read, and never passed over.
        # A folder that may not be looked into has no registry for us, and is no error.
        if os.path.lexists(folder / FILE_NAME):
            return folder / FILE_NAME, _FOUND
    return None, ""


def _read(path: Path, cwd: Path) -> tuple[bytes, Document]:
    from overlay.registry.strict_yaml import parse  # the YAML reader, as above

    name = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
    try:
        content = read_small_file(path)
    except OverlayError as error:
        problem = error.message.removeprefix(f"{path}: ")
        raise InvalidRegistry(f"{name}: {problem}", code="registry-unreadable", where=str(path)) from error
    return content, parse(content, name)


def _with_origin(error: InvalidRegistry, how: str | None) -> InvalidRegistry:
    """The same error, whose hint also says how the file came to be read."""
    data: dict[str, Any] = error.data
    hint = error.hint
    if how and hint:
        hint = f"{hint} (the file was {how})"
    elif how:
        hint = f"correct the file, or name another with --registry; it was {how.partition(';')[0]}"
    return InvalidRegistry(error.message, code=error.code, hint=hint, **data)


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted under us; then no project file is there either
        return Path("/")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # said properly when it is read
        return False
