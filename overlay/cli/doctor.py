"""``overlay doctor``: what a maintainer asks first, ready to be pasted into a report."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

import overlay
from overlay.cache.kept import KeptFolder  # noqa: TC001  # the JSON schema is made of it
from overlay.cli._errors import redact
from overlay.cli._options import Common, common_options
from overlay.cli._output import columns, style
from overlay.cli.cached_model import kept_rows
from overlay.errors import OverlayError
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Device", "Diagnosis", "Probe", "ScriptSandbox", "doctor"]

_PREFIXES = ("OVERLAY_", "SGLANG_", "HF_", "MKL_")
_NAMES = {
    "CUDA_VISIBLE_DEVICES",
    "DO_NOT_TRACK",
    "FORCE_COLOR",
    "HOME",
    "NO_COLOR",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TMPDIR",
    "TRANSFORMERS_OFFLINE",
    "XDG_CACHE_HOME",
}
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY")
_PACKAGES = ("huggingface_hub", "hf_xet", "safetensors", "torch", "pydantic", "xxhash", "click")


@dataclass(frozen=True, slots=True)
class Probe:
    """One operation of the cache root's filesystem, tried; null where it could not be tried."""

    name: str
    works: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the fuse, and the outcome of its start-up test; null where it has none."""

    name: str
    self_test: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class ScriptSandbox:
    """One sandbox for scripts of overlays, tried with a script that tries to escape; the first that works is used."""

    name: str
    works: bool
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What ``overlay doctor`` prints.

    Attributes:
        decided_by: Option or variable that chose the root.
        exists: Whether there is a cache in it.
        filesystem: Its kind, as the kernel calls it.
        container_layer: Whether it is the writable layer of a container, lost with it.
        free: Bytes free there, of ``total``.
        kept: Folders that ``overlay adopt`` left beside their location.
        hub: Folder that links were tried from: the Hub's cache, or ``--hub``.
        registry: The registry file in force, or why there is none.
        environment: Variables that change what is done; secrets only as being set.
        versions: Null where a package is not installed.
    """

    version: str
    root: str
    decided_by: str
    exists: bool
    filesystem: str
    mount_point: str
    container_layer: bool
    free: int
    total: int
    kept: tuple[KeptFolder, ...]
    hub: str
    probes: tuple[Probe, ...]
    registry: str
    environment: dict[str, str]
    versions: dict[str, str | None]
    devices: tuple[Device, ...]
    sandboxes: tuple[ScriptSandbox, ...]


@click.command(short_help="Show what this machine can do, for a report.")
@common_options
def doctor(common: Common) -> None:
    """Show what this machine can do, ready to be pasted into a report.

    The cache root and what its filesystem can do, the registry and the variables in force, versions, devices and
    whether each passes the self-test of the fuse, and the sandboxes in which an overlay's own script may run.
    """
    from overlay.cache import choose_root
    from overlay.cache.kept import kept_folders
    from overlay.cache.probe import probe_root
    from overlay.hub.hub_cache import hub_cache

    hub = common.hub or hub_cache()
    root = choose_root(common.cache_root, os.environ)
    report = probe_root(root, hub)
    filesystem = report.filesystem
    diagnosis = Diagnosis(
        version=overlay.__version__,
        root=str(report.root),
        decided_by=report.decided_by,
        exists=report.exists,
        filesystem=filesystem.kind,
        mount_point=filesystem.mount_point,
        container_layer=filesystem.container_layer,
        free=filesystem.free,
        total=filesystem.total,
        kept=kept_folders(root),
        hub=str(hub),
        probes=tuple(Probe(probe.name, probe.ok, probe.why) for probe in report.probes),
        registry=_registry(common),
        environment=_environment(),
        versions=_versions(),
        devices=_devices(),
        sandboxes=_sandboxes(),
    )
    common.output.result(diagnosis, lambda: _text(diagnosis))


def _text(found: Diagnosis) -> Iterator[str]:
    yield f"overlay {found.version}"
    yield style("cache root", "strong")
    yield f"  {found.root}  (from {found.decided_by}){'' if found.exists else ', holds no cache yet'}"
    room = f"{format_bytes(found.free)} of {format_bytes(found.total)} free"
    layer = style(", the writable layer of a container", "warn") if found.container_layer else ""
    yield f"  {found.filesystem} at {found.mount_point}, {room}{layer}"
    yield from kept_rows(found.kept)
    yield f"  hub: {found.hub}"
    yield from columns(_probe_rows(found.probes))
    yield style("registry", "strong")
    yield f"  {found.registry}"
    yield style("environment", "strong")
    yield from columns([[name, value] for name, value in found.environment.items()])
    yield style("versions", "strong")
    yield from columns([[name, version or "not installed"] for name, version in found.versions.items()])
    yield style("devices", "strong")
    yield from columns([[device.name, _verdict(device.self_test), device.detail] for device in found.devices])
    yield style("sandboxes", "strong")
    yield from columns([[sandbox.name, _verdict(sandbox.works), sandbox.why] for sandbox in found.sandboxes])


def _probe_rows(probes: tuple[Probe, ...]) -> list[list[str]]:
    """A line for each, but one for all where nothing could be tried."""
    if not probes[0].works:
        return [["write", _verdict(works=False), f"{probes[0].why}; nothing else could be tried"]]
    return [[probe.name, _verdict(probe.works), probe.why] for probe in probes]


def _verdict(works: bool | None) -> str:
    if works is None:
        return style("unknown", "warn")
    return style("yes", "good") if works else style("no", "bad")


def _registry(common: Common) -> str:
    from overlay.registry import load_registry

    try:
        return str(load_registry(common.registry).path)
    except OverlayError as error:
        return f"unusable: {error.message}"


def _environment() -> dict[str, str]:
    found = {}
    for name in sorted(os.environ):
        if name.startswith(_PREFIXES) or name in _NAMES:
            hidden = any(word in name for word in _SECRET) and not name.endswith("_PATH")
            found[name] = "set, not shown" if hidden else redact(os.environ[name])
    return found


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _devices() -> tuple[Device, ...]:
    if importlib.util.find_spec("torch") is None:
        return (Device("none", None, "torch is not installed: everything works but fusing"),)
    from overlay.fusion.quiet_torch import torch

    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return tuple(_device(name) for name in names)


def _device(name: str) -> Device:
    from overlay.fusion.engine import Engine

    try:
        about = Engine.start(name).describe()
    except OverlayError as error:
        return Device(name, self_test=None, detail=error.message)
    test = about["self_test"]
    if about["library"]:
        detail = f"{about['library']}, {counted(test['num_products'], 'test product')} equal to the rule's"
    else:
        detail = f"ordered kernel, because {about['library_unused_because']}"
    return Device(name, test and test["passed"], detail)


def _sandboxes() -> tuple[ScriptSandbox, ...]:
    from overlay.sandbox import sandboxes

    return tuple(ScriptSandbox(found.name, found.why_not is None, found.why_not or "") for found in sandboxes())
