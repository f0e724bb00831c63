"""What a registry says, as values: pins, recipes, entries, and what a model name resolves to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "COMMIT",
    "CONSUMERS",
    "LOCAL",
    "SERVERS",
    "Entry",
    "Launch",
    "Need",
    "Pin",
    "Place",
    "Recipe",
    "Registry",
    "RepoRole",
    "Resolution",
    "ScriptLimits",
    "ServerSpec",
    "Wheel",
    "repo_id_problem",
]

COMMIT = re.compile(r"[0-9a-f]{40}")
"""What names a commit."""

LOCAL = "local"
"""The revision of a folder, which has no commit."""

DEFAULT_MATERIALIZER_VERSION = "v1"
"""sglang's, where an overlay's manifest names none."""

RepoRole = Literal["source", "overlay", "need"]

CONSUMERS = ("overlay", "sglang")
"""Who builds a model from its pins: this program, and a server that resolves the overlay by itself."""

SERVERS = ("sglang", "vllm-omni")
"""Who a model can be built and started for."""

_REPO_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_REPO_ID = 96


def repo_id_problem(repo: str) -> str | None:
    """What keeps ``repo`` from being a repo id (``org/name``), as a message; None where it is one."""
    if not _REPO_ID.fullmatch(repo) or ".." in repo or "--" in repo or repo.endswith((".git", ".", "-")):
        return f"{repo!r} is no repo id; expected org/name"
    if len(repo) > _MAX_REPO_ID:
        return f"{repo!r} has {len(repo)} characters; a repo id has at most {_MAX_REPO_ID}"
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is said: a file (or a variable), and line and column from 1; 0 where there are no lines."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        """``file:line:column``, as editors read it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


NOWHERE = Place("")


@dataclass(frozen=True, slots=True)
class Pin:
    """One repo at one commit.

    Attributes:
        repo: Repo id (``org/name``); an absolute folder where ``revision`` is ``local``.
        revision: 40 lower-case hex digits, ``local`` for a folder, or None where nobody has established a commit.
        floating: Why there is no commit; None exactly where ``revision`` is given.
        place: Where the registry says so; two pins are equal wherever they stand.
    """

    repo: str
    revision: str | None
    floating: str | None = None
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    def __str__(self) -> str:
        """``org/name@6d052b3e9cc6``: the first twelve digits, as every command prints a pin."""
        return f"{self.repo}@{self.revision[:12] if self.revision else 'floating'}"


@dataclass(frozen=True, slots=True)
class Need:
    """A secondary repo of a recipe.

    Attributes:
        pin: The repo and its commit.
        components: Folders of the repo that the recipe takes whole; empty where the recipe itself names the paths.
    """

    pin: Pin
    components: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of plain Python that an overlay's script imports from.

    Attributes:
        name: File name.
        sha256: Of the file, 64 hex digits.
        url: Where it can be had; None for the package index.
    """

    name: str
    sha256: str
    url: str | None = None

    def __str__(self) -> str:
        """Name and digest, as recipes and records have it."""
        return f"{self.name}@sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """What an overlay's script may take; None where the entry does not say.

    Attributes:
        seconds: Of wall-clock time.
        memory: Bytes.
        processes: Processes and threads at a time.
        disk: Bytes that it may write.
    """

    seconds: int | None = None
    memory: int | None = None
    processes: int | None = None
    disk: int | None = None


NO_LIMITS = ScriptLimits()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the output is made.

    Attributes:
        name: ``vdn-h3``, ``lora``, ``compose``, ``mappings`` or ``python``.
        options: JSON-representable, complete (defaults filled in).
            ``vdn-h3``: ``stage`` (str).
            ``lora``: ``base`` and ``adapters`` (a list, in fusing order), each place a ``{"repo": str, "path": str}``
            whose repo is the source's or that of a need, and whose path is ``""`` for the root of the repo; where the
            weights are laid out otherwise than in the base, ``output``: ``layout``, ``folder``, ``siblings`` (a place).
            ``compose``: ``parts`` (a list), each a place with ``to`` (a path, ``""`` for the root of the tree) and, if
            it has to be equal to another place, ``same_as``.
            ``mappings``: none.
            ``python``: ``script`` (sha256, 64 hex digits) where it is pinned, and ``wheels``, those of the entry's
            needs, where there are some.
        place: Where the registry says so.
        limits: Of a script. They are no property of the output, and two recipes are equal whatever they are.
    """

    name: str
    options: Mapping[str, Any]
    place: Place = field(default=NOWHERE, compare=False, repr=False)
    limits: ScriptLimits = field(default=NO_LIMITS, compare=False)

    @property
    def places(self) -> tuple[Mapping[str, str], ...]:
        """Every repo and path that it names."""
        match self.name:
            case "lora":
                output = self.options.get("output")
                siblings = [output["siblings"]] if output else []
                return (self.options["base"], *self.options["adapters"], *siblings)
            case "compose":
                parts = self.options["parts"]
                return (*parts, *(part["same_as"] for part in parts if "same_as" in part))
        return ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How one server is started for a model. It changes no byte of the output, and enters no key, lock or record.

    Attributes:
        flags: Words of the command line, after the model.
        env: Variables of the server, by name.
        request: Fields that each request has unless it says otherwise.
        grid_points: Points of the noise schedule, one more than the evaluations of the model; None where the model does
            not fix them. Which number a request gives for them depends on the release.
        place: Where the registry says so.
    """

    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, str] = field(default_factory=dict)
    grid_points: int | None = None
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """What an sglang server was told about a model, verbatim, where that is not its built-in table.

    Attributes:
        overlay_repo_id: Repo id or path as written: sglang does not normalise it, and it enters the server's key.
        overlay_revision: As written; ``main`` where an exported registry gives none, ``local`` for an overlay folder.
        source_revision: As written; None where it is not given.
        version: Release of sglang that is told; None for the newest that is known.
        by: How it knows that: its own ``table`` of models, where that has what the entry pins; the registry that is
            exported for it (``export``); the ``name`` of the overlay, which it was given; or what a ``user`` said.
    """

    overlay_repo_id: str
    overlay_revision: str
    source_revision: str | None
    version: tuple[int, int, int] | None = None
    by: Literal["table", "export", "name", "user"] = "user"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of a registry, complete.

    Attributes:
        model: The key: what a user names.
        source: The repo that the model's files come from; mostly of the same name as the key.
        overlay: The repo that says how to turn the source into what a runtime loads; None for ``lora`` and
            ``compose`` without one.
        overlay_fingerprint: sglang's fingerprint of the overlay's metadata files (64 hex), if the registry holds it.
        needs: Secondary repos.
        wheels: What its script imports beside what is installed.
        recipe: How the output is made.
        place: Of the entry in the registry file, variable or manifest that last changed it.
        materializer_version: What the overlay's manifest says, as far as the registry knows; else sglang's default.
        server: What a server was told, if not its built-in table.
        consumers: Who the entry must hold for, of ``CONSUMERS``.
        fingerprint_place: Where the registry has ``overlay_fingerprint``.
        serve: How servers are started for it, by name of the server; two entries are equal whatever it says.
    """

    model: str
    source: Pin
    overlay: Pin | None
    overlay_fingerprint: str | None
    needs: tuple[Need, ...]
    recipe: Recipe
    place: Place = field(compare=False)
    materializer_version: str = DEFAULT_MATERIALIZER_VERSION
    server: ServerSpec | None = None
    consumers: tuple[str, ...] = CONSUMERS
    fingerprint_place: Place = field(default=NOWHERE, compare=False, repr=False)
    serve: Mapping[str, Launch] = field(default_factory=dict, compare=False)
    wheels: tuple[Wheel, ...] = ()

    @property
    def is_buildable(self) -> bool:
        """Whether it can be built here: not where the overlay's own Python does that and no script is pinned."""
        return self.recipe.name != "python" or "script" in self.recipe.options

    @property
    def roles(self) -> tuple[tuple[RepoRole, Pin], ...]:
        """Every repo of the entry and what it is to the model: source, overlay if any, needs."""
        overlay: list[tuple[RepoRole, Pin]] = [("overlay", self.overlay)] if self.overlay else []
        return (("source", self.source), *overlay, *(("need", need.pin) for need in self.needs))

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Every repo of the entry, in the order of :attr:`roles`."""
        return tuple(pin for _, pin in self.roles)


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry in force, every override applied.

    Attributes:
        path: The file in force.
        entries: By model, in the order of the files.
        replaced: By model, one sentence for each value that an override replaced.
        own: The models that the file in force itself speaks of, also where a server's variable has the last word.
        content: The bytes of that file.
        is_found: Whether nobody named that file: it was found from the working directory.
        moved: By model, those of the sentences of ``replaced`` that are of a server's variable, and so of no file.
    """

    path: str
    entries: Mapping[str, Entry]
    replaced: Mapping[str, tuple[str, ...]]
    own: tuple[str, ...] = ()
    content: bytes = b""
    is_found: bool = False
    moved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name or path on the command line stands for.

    Attributes:
        model: The registry key, or the ``source_model_id`` of an overlay folder.
        entry: The pins and the recipe.
        registry_path: The registry file in force.
        notes: What the user should know: overrides, a local source, floating pins.
        moved: What a server's variable replaced in the entry, a sentence each; they are among the notes.
        script_is_found: Whether the entry lets its overlay's Python run, and stands in a file that nobody named: so
            that building needs ``--allow-script``.
        source_folder: The folder that takes the place of ``entry.source``, if one was named; absolute.
    """

    model: str
    entry: Entry
    registry_path: str
    notes: tuple[str, ...] = ()
    source_folder: Path | None = None
    moved: tuple[str, ...] = ()
    script_is_found: bool = False

    @property
    def floats(self) -> bool:
        """Whether a repo that is read has no commit, so that building needs ``--allow-floating``."""
        taken = (pin for pin in self.entry.pins if not (self.source_folder and pin is self.entry.source))
        return any(pin.revision is None for pin in taken)
