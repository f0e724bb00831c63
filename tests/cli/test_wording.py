"""What people read: help that fits, commands that can be pasted, numbers that agree with their nouns, and silence."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import Fault, HubServer
from support.demo_hub import MODEL, World, make_world
from support.hubs import client_of
from support.tensors import f32, write_tensors

import overlay
from overlay.cli._main import COMMANDS, run
from overlay.formats.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.no_torch

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run a command line that must end with ``status``; what it prints on stdout and on stderr."""

    def ask(*args: str, status: int = 0) -> tuple[str, str]:
        assert run(args) == status
        return capsys.readouterr()

    return ask


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A hub with its registry; nothing is built. Tests do not write to it."""
    return make_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def world(made: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """The hub in force, with a cache root of the test's own."""
    made.put_in_force(monkeypatch, tmp_path / "cache")
    return World(tmp_path, made.hub)


def fake_tree(world: World, name: str, *, age: float = 0.0) -> Path:
    """A generation of the model as the cache keeps it, of a few bytes."""
    tree = world.cache / ".overlay/trees" / name
    tree.mkdir(parents=True)
    (world.cache / ".overlay/version").write_text("1\n")
    (tree / "overlay_record.json").write_text(json.dumps({"schema_version": 1, "model": MODEL, "outputs": []}))
    (tree / "x.safetensors").write_bytes(b"12345678")
    for path in (*tree.iterdir(), tree):
        os.utime(path, (tree.stat().st_mtime - age,) * 2)
    return tree


@pytest.mark.parametrize("args", [[], ["cache"]])
def test_lists_of_commands_fit_80_columns(said: Any, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    """No description of a command is cut off."""
    monkeypatch.setenv("COLUMNS", "80")
    out, _ = said(*args, "--help")
    assert "..." not in out.replace("[ARGS]...", "")
    assert max(map(len, out.splitlines())) <= 80
    assert args or [line.split()[0] for line in out.split("Commands:\n")[1].splitlines()[: len(COMMANDS)]] == list(
        COMMANDS
    )


@pytest.mark.parametrize("command", [["resolve"], ["prewarm"], ["cache", "ls"]])
def test_help_names_the_variables(said: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """Of the options that are places or say that no request is made."""
    monkeypatch.setenv("COLUMNS", "200")
    out, _ = said(*command, "--help")
    for variable in ("OVERLAY_REGISTRY", "OVERLAY_CACHE_ROOT", "OVERLAY_HUB", "OVERLAY_OFFLINE"):
        assert variable in out


@pytest.mark.parametrize(("columns", "most"), [("60", 60), ("79", 79), ("200", 80)])
def test_help_is_as_wide_as_the_terminal_up_to_80(
    said: Any, monkeypatch: pytest.MonkeyPatch, columns: str, most: int
) -> None:
    """As docs/reference/environment.md says of COLUMNS."""
    monkeypatch.setenv("COLUMNS", columns)
    widths = [len(line) for line in said("lock", "--help")[0].splitlines()]
    assert most - 10 < max(widths) <= most


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [(0, "tree", "0 trees"), (1, "tree", "1 tree"), (2, "action entry", "2 action entries"), (1, "entry", "1 entry")],
)
def test_numbers_agree_with_their_nouns(number: int, noun: str, expected: str) -> None:
    """One thing is not 1 things."""
    assert counted(number, noun) == expected


# Commands to paste


def test_hints_of_lower_layers_keep_the_flags(said: Any, world: World, tmp_path: Path) -> None:
    """A command in a hint means the same places as the one that failed."""
    root = str(tmp_path / "other root")
    _, err = said("cache", "rm", "no/such", "--cache-root", root, status=3)
    assert f"hint: overlay cache ls --cache-root '{root}'\n" in err
    _, err = said("path", MODEL, "--cache-root", root, "--offline", status=3)
    assert f"hint: overlay prewarm {MODEL} --cache-root '{root}' --offline\n" in err


def test_a_folder_stays_the_model_in_what_to_do_next(
    said: Any, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An overlay folder or a source folder means another build than the model's name, and its spelling counts."""
    overlays = world.hub.overlay_folder
    out, _ = said("resolve", str(overlays))
    assert f"overlay prewarm {overlays}" in out
    monkeypatch.chdir(tmp_path)
    shutil.copytree(world.hub.source_folder, tmp_path / "vdn-minimax-h3")
    out, _ = said("resolve", "./vdn-minimax-h3")
    assert "overlay prewarm ./vdn-minimax-h3\n" in out


def test_several_generations_are_named_so_that_the_name_can_be_used(said: Any, world: World) -> None:
    """What the hint says answers the question."""
    for name in ("one", "two"):
        fake_tree(world, f"OpenVDN__vdn-minimax-h3-{name}")
    _, err = said("cache", "info", MODEL, status=2)
    assert "2 generations, expected one" in err
    hint = err.split("hint: overlay ")[1].split()
    assert f"{MODEL}\n" in said(*hint)[0]


def test_cache_paths_may_be_relative(said: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tab completion gives them, with a slash at the end."""
    tree = fake_tree(world, "a-tree")
    monkeypatch.chdir(world.cache.parent)
    for target in ("cache/.overlay/trees/a-tree/", str(tree), "a-tree"):
        assert str(tree) in said("cache", "info", target)[0]
    said("cache", "rm", "./cache/.overlay/trees/a-tree")
    assert not tree.exists()


# What is kept, and what waits


def test_gc_says_why_a_limit_is_not_met(said: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A young tree stays whatever the limit; as text and as JSON."""
    monkeypatch.setattr("overlay.cache.collecting.LAST_GENERATIONS", 0)
    fake_tree(world, "young")
    fake_tree(world, "old", age=7200)
    out, err = said("cache", "gc", "--max-size", "1B", "--dry-run")
    assert "would remove 1 tree" in out
    assert out.endswith("kept\n  1 tree  79 B  younger than an hour\n")
    assert "stay, more than the limit of 1 B\n" in err
    found = json.loads(said("cache", "gc", "--max-size", "1B", "--dry-run", "--json")[0])
    assert found["notes"] == err.splitlines()
    assert said("cache", "gc", "--max-size", "1GB", "--max-age", "30d", "--dry-run")[1] == ""


def test_objects_that_wait_are_listed(said: Any, world: World) -> None:
    """What a killed run or --only finished is no materialization, but takes room; young it is kept."""
    fake_tree(world, "a-tree")
    folder = world.cache / ".overlay/objects/sha256/ab"
    folder.mkdir(parents=True)
    (folder / ("ab" * 32)).write_bytes(b"x" * 2000)
    out, _ = said("cache", "ls")
    assert out.splitlines()[-1] == "  2.0 kB of objects wait for a run that uses them, or for overlay cache gc"
    assert json.loads(said("cache", "ls", "--json")[0])["unused"] == 2000
    assert said("cache", "gc") == (
        "nothing to remove\nkept\n  1 unused object  2.0 kB  younger than an hour\n",
        "",
    )


# What is shown


def test_a_lora_recipe_shows_its_base_and_adapters(said: Any, tmp_path: Path) -> None:
    """In the order of fusing."""
    registry = tmp_path / "registry.yaml"
    commit = "a" * 40
    registry.write_text(
        f"schema_version: 1\nmodels:\n  acme/model:\n    source: {{repo: acme/base, revision: {commit}}}\n"
        f"    needs: [{{repo: acme/style, revision: {commit}}}]\n"
        "    recipe: {name: lora, base: {path: unet}, adapters: [{repo: acme/style}, {path: extra/x.safetensors}]}\n"
    )
    out, _ = said("resolve", "acme/model", "--registry", str(registry))
    assert "recipe    lora  base acme/base/unet  adapters acme/style + acme/base/extra/x.safetensors\n" in out


def test_a_variable_has_no_line(said: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the entry comes from is a file with a line, or the variable alone."""
    told = {MODEL: {"overlay_repo_id": "acme/other", "overlay_revision": "b" * 40}}
    monkeypatch.setenv("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", json.dumps(told))
    out, _ = said("resolve", MODEL)
    assert "registry  SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY\n" in out


def test_a_hub_folder_that_is_not_there_is_noted(said: Any, world: World, tmp_path: Path) -> None:
    """Resolving needs no folder, but whoever names one expects it."""
    assert f"the hub folder {tmp_path}/none does not exist" in said("resolve", MODEL, "--hub", f"{tmp_path}/none")[0]
    assert "hub folder" not in said("resolve", MODEL)[0]


def test_an_unknown_model_is_told_where_was_looked(said: Any, world: World) -> None:
    """In the override, and in the registry that ships with the program."""
    _, err = said("resolve", "no/such", status=2)
    assert f"not in {os.environ['OVERLAY_REGISTRY']} and not in " in err
    assert err.count("registry.yaml") == 2


def test_the_demos_own_overlay_is_what_its_registry_says(said: Any, world: World) -> None:
    """So no note tells of another directory."""
    assert "looks in another directory" not in said("prewarm", MODEL, "--dry-run")[0]


@pytest.mark.with_torch
def test_differences_are_named_in_words(said: Any, tmp_path: Path) -> None:
    """One tensor differs; at the top of a folder its name is enough; across zero there is no count of steps."""
    for side, values in (("a", [1.0, 2.0]), ("b", [1.0, -2.0])):
        write_tensors(tmp_path / side / "x.safetensors", {"w": f32([2], values)})
    if HAS_TORCH:
        out, _ = said("compare", str(tmp_path / "a"), str(tmp_path / "b"), status=1)
        assert out.startswith("different: 1 of 1 file, 1 tensor differs\n")
        assert "  values   w  1 of 2 elements differ, by 4 at most\n" in out
    assert said("compare", str(tmp_path / "a"), str(tmp_path / "a"))[0] == "identical: 1 file, 1 tensor\n"


@pytest.mark.parametrize("command", ["compare", "verify"])
def test_a_file_is_no_folder(said: Any, tmp_path: Path, command: str) -> None:
    """That is not the same as not being there."""
    (tmp_path / "file").touch()
    args = [str(tmp_path / "file")] * (2 if command == "compare" else 1)
    assert "is a file" in said(command, *args, status=2)[1]


def test_a_root_that_cannot_be_written_takes_one_line(said: Any) -> None:
    """Where nothing could be tried, nothing is listed as unknown."""
    out, _ = said("doctor", "--cache-root", "/proc/none")
    (line,) = [line for line in out.splitlines() if line.startswith("  write")]
    assert "nothing else could be tried" in line
    assert "unknown" not in out.partition("devices")[0]


def test_a_demo_that_cannot_be_kept_names_its_own_option(said: Any) -> None:
    """Not the root of a cache."""
    _, err = said("demo", "--keep", "/proc/none/demo", status=4)
    assert "--keep" in err
    assert "--cache-root" not in err


def test_too_little_memory_is_refused(said: Any) -> None:
    """Before anything is read."""
    assert "at least 64.0 MB" in said("prewarm", MODEL, "--memory", "1MB", status=2)[1]


def test_paths_of_options_may_be_text() -> None:
    """The first thing that people write."""
    options = overlay.Options(hub="hub", cache_root="cache", registry="registry.yaml")
    assert (options.hub, options.cache_root, options.registry) == (Path("hub"), Path("cache"), Path("registry.yaml"))
    with pytest.raises(FileNotFoundError, match="no such folder"):
        overlay.verify("nowhere")


# Silence


@pytest.fixture
def _loggers() -> Iterator[None]:
    loggers = [logging.getLogger(f"huggingface_hub.{name}") for name in ("utils._http", "file_download")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("_loggers")
@pytest.mark.parametrize("command", [["prewarm", MODEL, "--dry-run"], ["check", MODEL], ["outdated", MODEL]], ids=str)
@pytest.mark.parametrize("flag", [None, "-q", "-v"])
def test_retries_of_the_client_show_with_v_alone(
    said: Any,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    command: list[str],
    flag: str | None,
) -> None:
    """A request that is made again and then succeeds is no news, whichever command made it."""
    monkeypatch.delenv("OVERLAY_HUB")
    with (
        HubServer(world.hub.root) as server,
        client_of(server, monkeypatch, tmp_path / "hf"),
    ):
        server.faults = [Fault(path="*/tree/*", status=503, times=1)]
        said(*command, *([flag] if flag else []))
        assert 503 in {request.status for request in server.asked()}
    assert bool(caplog.records) == (flag == "-v")


@pytest.mark.slow
def test_a_quiet_demo_says_only_that_it_is_done(said: Any) -> None:
    """One line; with --json one document, and nothing beside it."""
    pytest.importorskip("torch")
    out, err = said("demo", "-q")
    assert (out.count("\n"), out.startswith("done: 7 commands in "), err) == (1, True, "")
    out, err = said("demo", "-q", "--json")
    assert (json.loads(out)["kept"], err) == (False, "")


def test_folders_that_an_adoption_kept_are_shown(said: Any, world: World) -> None:
    """By ls, doctor and gc: where, how much, and the command that removes them."""
    fake_tree(world, "a-tree")
    kept = world.cache / "materialized_models/a.kept-1"
    kept.mkdir(parents=True)
    (kept / "mine.txt").write_bytes(b"x" * 2000)
    lines = said("cache", "ls")[0].splitlines()[-3:]
    assert lines[0] == f"  kept  {kept}  2.0 kB; removing it frees 2.0 kB"
    assert lines[2] == f"        look into it, then: rm -r {kept}"
    for words in (("cache", "ls"), ("doctor",)):
        assert set(lines) <= set(said(*words)[0].splitlines())
        assert json.loads(said(*words, "--json")[0])["kept"][0]["remove"] == f"rm -r {kept}"
    assert "1 folder that overlay adopt kept (2.0 kB): neither counted nor removed" in said("cache", "gc")[1]
    assert kept.is_dir()
