"""Run a released sglang's own modules in a process of their own, without a GPU and without its dependencies.

    python tools/server_child.py .servers/sglang-0.5.23 < job.json

The wheel's ``model_overlay`` and ``hf_diffusers_utils`` are imported as they are, with the modules by which they look a
model up, and with the installed huggingface_hub. Only what needs a GPU or is heavy is a stand-in: see ``STAND_INS``.
A job is a list of calls; the answers are printed as one JSON list.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import os
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

# A stand-in has every name that is asked of it, and nothing behind it.
STAND_INS = (
    # Heavy, and unused where a model is looked up.
    "torch",
    "safetensors",
    "transformers",
    "diffusers",
    # Dependencies of sglang that this project has no use for.
    "IPython",
    "psutil",
    "pybase64",
    "zmq",
    # sglang's own modules that load weights or talk to a GPU.
    "sglang.multimodal_gen.runtime.distributed",
    "sglang.multimodal_gen.runtime.loader.utils",
    "sglang.multimodal_gen.runtime.loader.weight_load_plan",
    "sglang.multimodal_gen.runtime.loader.weight_readers",
    "sglang.multimodal_gen.runtime.platforms",
    "sglang.multimodal_gen.runtime.utils.quantization_utils",
    "sglang.multimodal_gen.runtime.weights",
    "sglang.srt.debug_utils",
    "sglang.srt.utils",
)


class _Anything(type):
    """A class that has every attribute, can be called, subscripted, joined with ``|`` and inherited from."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else cls  # a decorator leaves what it decorates

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return cls

    def __ror__(cls, _: Any) -> Any:
        return cls


class _Nothing(metaclass=_Anything):
    """What a stand-in holds."""


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins, and whatever is below them."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if any(name == known or name.startswith(f"{known}.") for known in STAND_INS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = lambda name: getattr(_Nothing, name)  # type: ignore[method-assign]  # as PEP 562 has it


class Server:
    """The modules of one release, and the calls that a job may name."""

    def __init__(self) -> None:
        utils = "sglang.multimodal_gen.runtime.utils"
        self.overlays: Any = importlib.import_module(f"{utils}.model_overlay")
        self.models: Any = importlib.import_module(f"{utils}.hf_diffusers_utils")
        self.weights: Any = importlib.import_module("sglang.multimodal_gen.runtime.loader.weight_utils")

    def serve(self, model: str) -> str:
        """What ``sglang serve --model-path`` asks first: the folder that the model is loaded from."""
        return str(self.models.maybe_download_model(model, force_diffusers_model=True))

    def read_index(self, model: str) -> str:
        """Which pipeline the server takes the model for."""
        return str(self.models.maybe_download_model_index(model)["_class_name"])

    def table(self) -> dict[str, Any]:
        """The built-in table."""
        return dict(self.overlays.BUILTIN_MODEL_OVERLAY_REGISTRY)

    def source_at(self, path: str) -> str | None:
        """The model whose source the path is taken for."""
        target = self.overlays.resolve_model_overlay_target(path)
        return target[0] if target else None

    def is_diffusers_folder(self, path: str) -> bool:
        """Whether the folder would be served as it is."""
        return bool(self.models._verify_diffusers_model_complete(path))  # noqa: SLF001 - what it is about

    def is_materialized(self, path: str) -> bool:
        """Whether the folder would be taken as what lies under a model's key."""
        marker = os.path.join(path, ".sglang_overlay_materialized.json")  # noqa: PTH118 - as the server spells it
        verify = self.models._verify_diffusers_model_complete  # noqa: SLF001 - what it is about
        if hasattr(self.overlays, "_materialized_overlay_cache_complete"):
            return bool(self.overlays._materialized_overlay_cache_complete(path, marker, verify))  # noqa: SLF001 - as above
        return bool(verify(path)) and os.path.exists(marker)  # noqa: PTH110 - as the server spells it

    def lock(self, name: str) -> str:
        """File that is locked under a name."""
        return os.path.basename(self.weights.get_lock(name).lock_file)  # noqa: PTH119 - as the server spells it

    def fingerprint(self, path: str) -> str:
        """Of an overlay folder."""
        return str(self.overlays._compute_overlay_fingerprint(path))  # noqa: SLF001 - what it is about

    def map_files(self, source: str, output: str, mappings: list[dict[str, Any]]) -> None:
        """Apply a manifest's file mappings to the folders."""
        apply = self.overlays._apply_overlay_file_mappings  # noqa: SLF001 - what it is about
        apply(source_dir=source, output_dir=output, file_mappings=mappings)

    def cache_root(self) -> str:
        """Where materializations lie."""
        return str(self.overlays.get_diffusion_cache_root())


def answers(job: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Do each call of a job: ``{"is": result}``, or ``{"raised": type, "text": message}``."""
    server, found = Server(), []
    for name, *arguments in job:
        try:
            found.append({"is": getattr(server, name)(*arguments)})
        except Exception as error:  # noqa: BLE001 - whatever the server raises is the answer
            traceback.print_exc()
            found.append({"raised": type(error).__name__, "text": str(error)})
    return found


def ask(release: Path, job: Sequence[Sequence[Any]], **variables: str) -> list[dict[str, Any]]:
    """The answers of a release to a job, from a child process with these variables besides our own.

    Args:
        release: Folder that ``fetch_servers.py`` unpacked the release to.
        job: Calls, each the name of a method of :class:`Server` and its arguments.
        variables: Set for the child.

    Raises:
        RuntimeError: The release could not be imported.
    """
    command = [sys.executable, __file__, str(release)]
    done = subprocess.run(  # noqa: S603 - ourselves
        command, input=json.dumps(job), capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    if done.returncode != 0:
        raise RuntimeError(f"{release.name}: {done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    """Answer one job."""
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, _StandIns())
    logging.basicConfig(stream=sys.stderr)
    job, printed = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # what the server prints is no answer
    json.dump(answers(job), printed)


if __name__ == "__main__":
    main()
