"""How a server is started for a model: the command, its variables, what it reads, what a request says.

By path it loads a directory and asks for nothing. By name it looks the model up, and needs to be told where, and, where
its own table is not to decide, what of.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.consumers.layouts import native_folders
from overlay.consumers.server import version_text
from overlay.consumers.sglang.told import override_of
from overlay.consumers.sglang.versions import NEWEST, release_of
from overlay.registry.entries import Launch
from overlay.registry.variables import SGLANG_CACHE_ROOT, SGLANG_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from overlay.consumers.server import Server
    from overlay.registry import Entry

__all__ = [
    "By",
    "FilesBelow",
    "RequestValue",
    "Start",
    "by_name",
    "by_path",
    "exported",
    "native_partitions",
    "why_not_known",
]

By = Literal["path", "name"]
"""What a server is given: a directory, or a name that it looks up."""

RequestValue = str | int | float | bool
"""What a field of a request says."""

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?")
_VLLM_OMNI_NEWEST = (0, 30, 0)
# Whatever is served was warmed. A server that would ask the Hub all the same fails when it starts, and fetches nothing.
_OFFLINE = {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Start:
    """How a server is started.

    Attributes:
        server: As a user names it.
        command: Words of the command line, the last of them those that the user added.
        env: Its variables.
        folders: What it reads, each wanted under its own path; none lies in another.
        request: What each request says unless it means something else; numbers are numbers.
        grid_points: Points of the noise schedule; None where the model does not fix them.
        image: A container image of this release, as its publisher names it.
        notes: What the user should know.
    """

    model: str
    server: str
    by: By
    command: tuple[str, ...]
    env: Mapping[str, str]
    folders: tuple[str, ...]
    request: Mapping[str, RequestValue]
    grid_points: int | None
    image: str
    notes: tuple[str, ...] = ()


def by_path(entry: Entry, server: Server, tree: Path, root: Path) -> Start:
    """Start a server on a directory: no source, no Hub and no key.

    Args:
        tree: The materialization. In the native layout vLLM-Omni is given the first of its partitions.
        root: The cache root that it lies in.
    """
    partitions = native_partitions(tree) if server.name == "vllm-omni" else []
    return _start(entry, server, "path", str(partitions[0] if partitions else tree), _OFFLINE, [root])


def native_partitions(tree: Path) -> list[Path]:
    """Folders of a tree that are each a model of their own, as MiniMax releases them; none in another layout."""
    return [tree / name for name in native_folders(FilesBelow(tree))]


@dataclass(frozen=True, slots=True)
class FilesBelow:
    """The files of a folder, as a container of their paths."""

    folder: Path

    def __contains__(self, path: object) -> bool:
        return (self.folder / str(path)).is_file()


def why_not_known(server: Server) -> str | None:
    """That nobody looked at what this release does; None where somebody did."""
    if server.version is None:
        return None
    if server.name == "vllm-omni" and server.version[:2] < _VLLM_OMNI_NEWEST[:2]:
        return f"{server} was not looked at: it is taken to behave as {version_text(_VLLM_OMNI_NEWEST)}"
    newest = NEWEST if server.name == "sglang" else _VLLM_OMNI_NEWEST
    if server.version <= newest:
        return None
    return f"{server} is newer than what was looked at: it is taken to behave as {version_text(newest)}"


def by_name(entry: Entry, server: Server, given: str, folders: Sequence[Path], root: Path, hub_cache: Path) -> Start:
    """Start sglang so that it looks the model up.

    Args:
        server: ``with_override`` decides whether it is told the pins in force.
        given: The model's name, or the folder that is its source or its overlay.
        folders: Of source and overlay, where they are folders.
        root: The cache root.
        hub_cache: Where it finds source and overlay else.
    """
    env = {**_OFFLINE, "HF_HUB_CACHE": str(hub_cache), SGLANG_CACHE_ROOT: str(root)}
    if server.with_override:
        env[SGLANG_REGISTRY] = exported(entry)
    return _start(entry, server, "name", given, env, [root, hub_cache, *folders])


def exported(entry: Entry) -> str:
    """The registry that tells a server what the entry pins, as JSON on one line."""
    told = override_of(entry)
    fields = {"overlay_repo_id": told.overlay_repo_id, "overlay_revision": told.overlay_revision}
    if told.source_revision:
        fields["source_revision"] = told.source_revision
    return json.dumps({entry.model: fields})


def _start(
    entry: Entry,
    server: Server,
    by: By,
    given: str,
    env: Mapping[str, str],
    folders: Sequence[Path],
) -> Start:
    launch = entry.serve.get(server.name, Launch())
    if server.name == "sglang":
        command: tuple[str, ...] = ("sglang", "serve", "--model-path", given)
        image = f"lmsysorg/sglang:v{version_text(server.version or NEWEST)}"
    else:
        command = ("vllm-omni", "serve", given, "--omni")
        image = f"vllm/vllm-omni:v{version_text(server.version or _VLLM_OMNI_NEWEST)}"
    outermost = [folder for folder in dict.fromkeys(folders) if not set(folder.parents) & set(folders)]
    return Start(
        entry.model,
        str(server),
        by,
        (*command, *launch.flags),
        {**launch.env, **env},
        tuple(map(str, outermost)),
        _request(launch, server),
        launch.grid_points,
        image,
    )


def _request(launch: Launch, server: Server) -> dict[str, RequestValue]:
    """Fields of a request; the number of steps as the release counts them."""
    fields = {name: _value(text) for name, text in launch.request.items()}
    if launch.grid_points is None:
        return fields
    counts_points = server.name == "sglang" and not release_of(server.version).counts_evaluations
    return {**fields, "num_inference_steps": launch.grid_points if counts_points else launch.grid_points - 1}


def _value(text: str) -> RequestValue:
    """What a registry, in which every scalar is text, says of a field."""
    if text in ("true", "false"):
        return text == "true"
    return json.loads(text) if _NUMBER.fullmatch(text) else text
