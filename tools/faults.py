"""What comes of a prewarm that is killed, refused, starved of room, or run where files can share blocks.

    python tools/faults.py --rounds 100 --seed 0 --folder /scratch/faults --out faults.json

Everything is made below ``--folder``, whose filesystem is the one that is tried. After every round: nothing that can be
seen fails a full verify, the inputs are what they were, no finished file was lost or made a second time, what was left
in staging can be collected, and the next run gives the right tree. The first round that breaks one of these ends it.

- ``kills``: SIGTERM, SIGINT and SIGKILL at random moments after the first staged byte, one to three in a row.
- ``calls`` (needs strace): every call of one kind fails with one errno; reads of one input fail with EIO half-way.
- ``room`` (needs root): filesystems of more and more bytes and inodes, so that each step in turn is the one without.
- ``reflinks`` (needs a folder on XFS or btrfs): all ways of linking, with the counters and inodes that they must give.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_machine import filesystem
from fault_places import full_disk_round, own_mounts, reflink_rounds
from fault_rounds import KillRound, kill_round, make_world
from fault_syscalls import call_round, calls, reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fault_rounds import World

SECTIONS = ("kills", "calls", "room", "reflinks")


def kills(world: World, folder: Path, args: argparse.Namespace) -> list[Any]:
    """Rounds of random kills."""
    dice = random.Random(args.seed)  # noqa: S311 - to be repeated, not to be secret
    found = []
    for number in range(args.rounds):
        found.append(kill_round(world, folder / f"root-{number}", number, dice))
        remove(folder, f"root-{number}")
        say(f"kills: {number + 1} of {args.rounds}")
    return found


def failing_calls(world: World, folder: Path, _: argparse.Namespace) -> list[Any]:
    """Rounds of failing system calls."""
    if shutil.which("strace") is None:
        say("calls: not run, no strace here")
        return []
    found = []
    for number, (what, error, options) in enumerate([*calls(), *reads(world)]):
        found.append(call_round(world, folder / f"call-{number}", what, error, options))
        remove(folder, f"call-{number}")
        say(f"calls: {what} {error}: {found[-1].outcome}, {found[-1].hits} hits")
    return found


def room(world: World, folder: Path, args: argparse.Namespace) -> list[Any]:
    """Rounds on disks that are too small, by less and less."""
    if not own_mounts():
        say("room: not run, may not mount here")
        return []
    limits = [f"size={kilobytes}k" for kilobytes in range(256, args.largest, args.stride)]
    limits += [f"nr_inodes={count}" for count in range(4, 270, 5)]
    found = []
    for number, limit in enumerate(limits):
        found.append(full_disk_round(world, folder / f"disk-{number}", limit))
        remove(folder, f"disk-{number}")
        say(f"room: {limit}: {found[-1].outcome}")
    return found


def reflinks(world: World, folder: Path, _: argparse.Namespace) -> list[Any]:
    """Rounds of every way of linking."""
    if filesystem(folder) not in ("xfs", "btrfs"):
        say(f"reflinks: not run, {filesystem(folder)} has none")
        return []
    return list(reflink_rounds(world, folder))


def table(results: dict[str, list[Any]]) -> list[str]:
    """Counts of rounds by what they met and what came of it."""
    rows: Counter[tuple[str, str, str]] = Counter()
    for section, rounds in results.items():
        for item in rounds:
            if isinstance(item, KillRound):
                for ended in item.killed:
                    rows[section, ended, "right tree by the next run"] += 1
            else:
                met = f"{item.what} {item.error}" if section == "calls" else item.place.partition("=")[0]
                rows[section, met, item.outcome] += 1
    width = max((len(met) for _, met, _ in rows), default=0)
    return [f"{section:9} {met:{width}} {count:5}  {outcome}" for (section, met, outcome), count in rows.items()]


def remove(folder: Path, name: str) -> None:
    """Remove what a round made."""
    for path in folder.glob(f"{name}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def say(text: str) -> None:
    """Print at once, for a log that is watched."""
    print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds that were asked for; raises at the first that breaks a guarantee."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where everything is made; removed first")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--rounds", type=int, default=100, help="of kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=6, help="transformer blocks of the tiny checkpoint")
    parser.add_argument("--largest", type=int, default=24_000, help="KiB of the largest small disk")
    parser.add_argument("--stride", type=int, default=1_000, help="KiB from one small disk to the next")
    parser.add_argument("--out", type=Path, help="JSON of every round")
    args = parser.parse_args(argv)
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    begun = time.monotonic()
    world = make_world(args.folder.resolve(), args.blocks)
    run = {"kills": kills, "calls": failing_calls, "room": room, "reflinks": reflinks}
    results = {name: run[name](world, args.folder.resolve(), args) for name in args.only}
    say("\n".join(table(results)))
    if args.out:
        document = {
            "seed": args.seed,
            "blocks": args.blocks,
            "kernel": platform.release(),
            "filesystem": filesystem(args.folder),
            "seconds": round(time.monotonic() - begun),
            "rounds": {name: [asdict(item) for item in rounds] for name, rounds in results.items()},
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
