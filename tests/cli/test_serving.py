"""`overlay prewarm --stage-source` and `--drop-source`, and an overlay that is named itself."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.models import VDN
from support.served import Served, built_from_hub

from overlay.cli._main import run
from overlay.demo.checkpoint import NEEDS_REPO, OVERLAY_REPO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STAGE = ("prewarm", VDN, "--for", "sglang", "--stage-source")
DROP = ("prewarm", VDN, "--drop-source")


@pytest.fixture
def world(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    """The model, built through the Hub's client, in force."""
    with built_from_hub(tmp_path_factory, tmp_path) as found:
        monkeypatch.setenv("OVERLAY_REGISTRY", str(found.options().registry))
        monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "root"))
        yield found


def test_staging(world: Served, document: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """The plan says what the run does, and the second run has nothing to do; text and JSON."""
    [planned] = document("prewarm-dry-run", *STAGE, "--dry-run")["models"]
    assert run([*STAGE, "--dry-run"]) == 0
    assert "by name: 32 files in the Hub's cache · download another " in capsys.readouterr().out
    assert not world.main(VDN).exists()
    [done] = document("prewarm", *STAGE)["models"]
    assert done["result"] == "present"
    assert (
        done["staged"]
        == planned["staged"]
        == {
            "files": 32,
            "bytes_staged": done["staged"]["bytes_staged"],
            "branches": [str(world.main(VDN))],
        }
    )
    assert planned["room"] >= planned["staged"]["bytes_staged"] > 0
    assert planned["dropped"] is done["dropped"] is None
    assert document("prewarm", *STAGE)["models"][0]["staged"] == {"files": 32, "bytes_staged": 0, "branches": []}
    assert run(STAGE) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  by name: 32 files in the Hub's cache"


def test_a_branch_elsewhere_ends_with_1(world: Served, document: Callable[..., dict[str, Any]]) -> None:
    """Like a finding: status 1, and the file is named."""
    file = world.set_main(VDN, "c" * 40)
    error = document("error", *STAGE, status=1)["error"]
    assert (error["code"], error["data"]["where"]) == ("branch-elsewhere", str(file))


def test_dropping(world: Served, document: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes are told as names and as room; afterwards all that a server by path needs is there."""
    [planned] = document("prewarm-dry-run", *DROP, "--dry-run")["models"]
    assert run([*DROP, "--dry-run"]) == 0
    assert f"will drop {NEEDS_REPO}@" in capsys.readouterr().out
    assert world.storage(VDN).exists()
    assert run(DROP) == 0
    out = capsys.readouterr().out
    assert f", {VDN}@{world.hub.source[:12]}: the disk gets " in out
    assert "stay under another name" in out
    assert not world.storage(VDN).exists()
    freed, removed = planned["dropped"]["bytes_freed"], planned["dropped"]["bytes_removed"]
    assert 0 < freed < removed
    assert document("prewarm", *DROP)["models"][0]["dropped"] == {"commits": [], "bytes_removed": 0, "bytes_freed": 0}
    assert run(DROP) == 0
    assert "nothing to drop" in capsys.readouterr().out
    assert run(["path", VDN]) == run(["verify", VDN, "--level", "full"]) == 0


def test_a_dropped_source_is_found_missing(world: Served, document: Callable[..., dict[str, Any]]) -> None:
    """Staged, a server finds the model, and check says so; dropped, check says that and env prints no launch."""
    server = ("--for", "sglang==0.5.23")
    fix = f"overlay prewarm {VDN} --stage-source --for sglang==0.5.23"

    def found(*flags: str, status: int = 0) -> dict[str, Any]:
        [model] = document("check", "check", VDN, *server, "--fail-on", "never", *flags, status=status)["models"]
        return {item["code"]: item for item in model["findings"]}

    by_name = ("env", VDN, *server, "--by", "name")

    def refused() -> dict[str, Any]:
        error = document("error", *by_name, status=3)["error"]
        assert (error["code"], "will not find it" in error["message"]) == ("source-not-staged", True)
        return error

    assert run(["prewarm", VDN, *server, "--stage-source", "-q"]) == 0
    assert "in the Hub cache" in found()["server-finds"]["message"]
    assert not any("Hub's cache" in note for note in document("env", *by_name)["notes"])
    assert run([*DROP, "-q"]) == 0
    assert refused()["hint"] == fix
    assert "not-checked" in found("--offline", status=3)  # nothing of the source is left, and no lock says what it was
    told = found()
    assert "server-finds" not in told
    assert told["source-not-staged"]["fix"] == fix
    assert run(["lock", VDN, "-q"]) == run([*DROP, "-q"]) == 0
    assert found("--offline")["source-not-staged"]["fix"] == fix  # by the lock alone
    assert refused()["hint"] == fix
    assert run([*STAGE, "-q"]) == 0
    assert "server-finds" in found("--offline")
    assert not any("Hub's cache" in note for note in document("env", *by_name)["notes"])
    world.set_main(VDN, "c" * 40)
    assert found()["branch-elsewhere"]["message"] in refused()["message"]
    assert f"overlay env {VDN} --for sglang==0.5.23" in refused()["hint"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--stage-source",),
        ("--stage-source", "--for", "vllm-omni"),
        ("--stage-source", "--for", "sglang", "--drop-source"),
        ("--stage-source", "--for", "sglang", "--only", "transformer"),
        ("--stage-source", "--for", "sglang", "--hub", "hub"),
        ("--drop-source", "--only", "transformer"),
        ("--drop-source", "--hub", "hub"),
        ("--drop-source", "--hub", "hub", "--dry-run"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("world")
def test_flags_that_contradict_each_other(flags: tuple[str, ...], document: Callable[..., dict[str, Any]]) -> None:
    """They are refused before anything is done."""
    assert document("error", "prewarm", VDN, *flags, status=2)["error"]["code"] == "option-conflict"


def test_an_overlay_by_its_own_name(world: Served, document: Callable[..., dict[str, Any]]) -> None:
    """With a server it stands for its model, at a location of its own; without one it is none."""
    assert document("error", "resolve", OVERLAY_REPO, status=2)["error"]["code"] == "overlay-not-model"
    found = document("resolve", "resolve", OVERLAY_REPO, "--for", "sglang")
    assert (found["model"], found["state"]) == (VDN, "absent")
    assert found["location"] != document("resolve", "resolve", VDN, "--for", "sglang")["location"]
    assert any(f"--model-path {OVERLAY_REPO}" in note for note in found["notes"])
    assert found["next"] == f"overlay prewarm {OVERLAY_REPO} --for sglang"
    assert run(["prewarm", OVERLAY_REPO, "--for", "sglang", "--stage-source"]) == 0
    assert document("path", "path", OVERLAY_REPO, "--for", "sglang")["path"]
    assert world.main(OVERLAY_REPO).read_text() == world.hub.overlay


def test_two_models_of_one_source_are_built_before_it_is_dropped(
    world: Served, document: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them would take from the second what that is built of."""
    registry = yaml.safe_load(Path(str(world.options().registry)).read_text())
    registry["models"]["acme/second"] = copy.deepcopy(registry["models"][VDN])
    registry["models"]["acme/second"]["source"]["repo"] = VDN
    (world.folder / "two.yaml").write_text(yaml.safe_dump(registry))
    monkeypatch.setenv("OVERLAY_REGISTRY", str(world.folder / "two.yaml"))
    shutil.rmtree(world.folder / "root")
    world.server.forget()
    first, second = document("prewarm", "prewarm", VDN, "acme/second", "--drop-source")["models"]
    assert [first["result"], second["result"]] == ["built", "reused"]
    assert (len(first["dropped"]["commits"]), second["dropped"]["commits"]) == (2, [])
    assert not [request for request in world.server.requests if "/resolve/" in str(request)]


def test_what_a_killed_removal_left_is_said(world: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """No commit is there, and bytes are."""
    shutil.rmtree(world.storage(VDN) / "snapshots" / world.hub.source)
    shutil.rmtree(world.storage(NEEDS_REPO))
    assert run(DROP) == 0
    assert "dropped what a killed run left of the source: the disk gets " in capsys.readouterr().out
