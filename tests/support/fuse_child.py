"""Builds one fused file in a process of its own and prints what came out, as JSON. Run by tests with an environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.fuse_files import Store, random_weight, seeded

from overlay.fusion.engine import Engine

SHAPES = [((256, 384), 64), ((1, 600), 64), ((600, 1), 64), ((33, 35), 384), ((9, 11), 385)]


def main(folder: Path, jobs: int, *, product_first: bool) -> None:
    """Builds the shapes above with BF16, F16 and F32 pairs at scale 1 and 0.3."""
    if product_first:
        import torch  # the case under test

        torch.mm(torch.ones(8, 8), torch.ones(8, 8))
    engine = Engine.start("cpu")
    dice = seeded(11)
    weights = [
        random_weight(dice, shape, "BF16", ["BF16", "F16", "F32"], rank, scale, f"{index}.{scale}")
        for index, (shape, rank) in enumerate(SHAPES)
        for scale in (1.0, 0.30000001192092896)
    ]
    store = Store(folder)
    built = store.build([store.fused(weight) for weight in weights], folder / "out", engine, jobs=jobs)
    print(json.dumps({"digest": built.digest, "kernels": dict(built.kernels), **engine.describe()}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), product_first="product-first" in sys.argv)
