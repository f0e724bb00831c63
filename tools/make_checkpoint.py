"""Write a hub folder with the repos of the VDN-H3 job, in the published layout, with made-up weights.

With the environment that ``make demo`` makes:

    .venv/bin/python tools/make_checkpoint.py --preset tiny --out /tmp/hub
    .venv/bin/python tools/make_checkpoint.py --preset release-dims --blocks 3 --out /data/hub
    cp registry.yaml /tmp/hub.yaml
    .venv/bin/overlay prewarm OpenVDN/vdn-minimax-h3 --hub /tmp/hub --registry /tmp/hub.yaml

The registry is a copy because the lock beside the original knows the published weights, and these are made up.

The base of the tiny checkpoint is what diffusers' own classes save, to the last byte; ``--library``, which needs the
environment of ``make test``, lets them write it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overlay.demo.checkpoint import HubFolder, write_hub
from overlay.demo.presets import PRESETS
from overlay.demo.tensors import transformer_tensors
from overlay.demo.vae_tensors import audio_vae_tensors, video_vae_tensors
from overlay.demo.weights import Weights
from overlay.errors import OverlayError
from overlay.formats.dtypes import tensor_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.demo.tensors import Tensor

__all__ = ["main", "write_library_base"]


def write_library_base(hub: HubFolder) -> None:
    """Replace the base of ``hub`` by one that diffusers' models save, holding the same weights.

    Every tensor keeps the dtype that the published base stores it in. Needs diffusers, and memory for each model.
    """
    import diffusers  # a dependency of this function alone

    preset, weights = hub.preset, Weights(hub.preset.name, hub.seed)
    components: Sequence[tuple[str, str, Mapping[str, Any], Sequence[Tensor], int | str]] = [
        (
            "transformer",
            "MiniMaxH3Transformer3DModel",
            preset.transformer,
            transformer_tensors(preset.transformer),
            preset.shard_limit,
        ),
        (
            "vae",
            "AutoencoderKLMiniMaxH3",
            preset.video_vae,
            video_vae_tensors(preset.video_vae),
            preset.vae_shard_limit,
        ),
        ("audio_vae", "AutoencoderKLMiniMaxH3Audio", preset.audio_vae, audio_vae_tensors(preset.audio_vae), "100GB"),
    ]
    for component, class_name, config, tensors, limit in components:
        model = getattr(diffusers, class_name)(**config)
        state = _state_dict(tensors, weights, f"h3-base/{component}")
        model.load_state_dict(state, strict=True, assign=True)
        folder = hub.source_folder / "h3-base" / component
        shutil.rmtree(folder)
        model.save_pretrained(folder, max_shard_size=limit)


def _state_dict(tensors: Sequence[Tensor], weights: Weights, scope: str) -> dict[str, Any]:
    import torch  # a dependency of --library alone

    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    return {
        name: torch.frombuffer(
            bytearray(b"".join(weights.chunks(scope, name, dtype, tensor_nbytes(dtype, shape)))), dtype=dtypes[dtype]
        ).reshape(shape)
        for name, dtype, shape in tensors
    }


@click.command(help=(__doc__ or "").split("\n", 1)[0])
@click.option("--preset", type=click.Choice(PRESETS), default="tiny", show_default=True, help="Widths and ranks.")
@click.option("--blocks", type=click.IntRange(min=1), default=3, show_default=True, help="Transformer blocks.")
@click.option("--seed", type=int, default=0, show_default=True, help="Weights differ between seeds.")
@click.option("--spec-name", default="adapter_spec.json", show_default=True, help="File name of the adapters' specs.")
@click.option("--library", is_flag=True, help="Let diffusers write the base (tiny only).")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="The hub folder: new, or empty."
)
def main(*, preset: str, blocks: int, seed: int, spec_name: str, library: bool, out: Path) -> None:
    """Run the command."""
    if out.exists() and any(out.iterdir()):
        raise click.ClickException(f"{out}: is not empty; name another folder")
    if library and preset != "tiny":
        raise click.UsageError("--library holds whole models in memory; use it with --preset tiny")
    start = time.monotonic()
    try:
        hub = write_hub(out, preset=preset, blocks=blocks, seed=seed, spec_name=spec_name)
    except OverlayError as error:
        raise click.ClickException(str(error)) from error
    if library:
        write_library_base(hub)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size / 1e9:.2f} GB in {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
