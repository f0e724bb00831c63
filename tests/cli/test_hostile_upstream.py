"""What strangers control upstream, and what a proxy answers in its place: names and answers that mean to do harm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import hub_server
import pytest
from support.contracts import edit_json
from support.upstream import Upstream, upstream_hub

from overlay.cli._main import run
from overlay.demo.checkpoint import NEEDS_REPO
from overlay.formats.overlay_repo import MANIFEST_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.no_torch

NAMES = [
    "a\n::warning title=x::INJECTED",
    "b\r::stop-commands::token",
    "c\u2028::error::x",
    "::error::d",
    "e##[error]f",
]


@pytest.fixture
def world(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """A project in a job of a GitHub workflow, locked."""
    with upstream_hub(tmp_path, monkeypatch) as upstream:
        monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "cache"))
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.chdir(upstream.project)
        assert run(["lock", "--quiet"]) == 0
        yield upstream


def commands(text: str) -> list[str]:
    """The lines that a workflow would obey."""
    return [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_names_of_new_files_command_no_workflow(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """As the nightly job prints them."""
    folder = world.commit_source("Say more").source_folder / "h3-base/audio_vae"
    for name in NAMES:
        (folder / name).write_text("x")
    capsys.readouterr()

    assert run(["outdated"]) == 0
    captured = capsys.readouterr()
    assert "INJECTED" in captured.out
    assert "stop-commands" in captured.out
    assert commands(captured.out + captured.err) == []


@pytest.mark.parametrize("name", NAMES)
def test_names_in_errors_command_no_workflow(world: Upstream, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """As the job that locks again prints them."""
    hub = world.commit_overlay("Ask for more")
    edit_json(hub.overlay_folder / MANIFEST_PATH, lambda manifest: manifest["required_source_files"].append(name))
    text = world.registry.read_text().replace(world.first.overlay, hub.overlay)
    fingerprint = str(world.resolution().entry.overlay_fingerprint)
    world.registry.write_text(text.replace(f", fingerprint: {fingerprint}", ""))
    capsys.readouterr()

    assert run(["lock"]) != 0
    captured = capsys.readouterr()
    assert commands(captured.out + captured.err) == []
    assert "error[" in captured.err


@pytest.mark.parametrize("cause", ["login page", "gated need"])
def test_what_cannot_be_told_is_said_alike(
    world: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cause: str
) -> None:
    """By ``outdated`` and by ``bump``, to the newest and to a named commit: unknown, with the status of the refusal."""
    commit = world.commit_source("Say more").source
    if cause == "gated need":
        world.server.gated = frozenset({NEEDS_REPO})
        for path in world.root.rglob("models--*/trees/*"):
            path.unlink()
        for path in world.root.rglob("models--*/snapshots"):
            path.rename(path.with_name("gone"))
    else:
        answer = hub_server._Handler._answer

        def login_page(handler: Any, path: str, query: str, fault: Any) -> Any:
            page = hub_server._Answer(200, {}, b"<html>log in</html>")
            return page if path.endswith(f"/tree/{commit}") else answer(handler, path, query, fault)

        monkeypatch.setattr(hub_server._Handler, "_answer", login_page)
    before = world.registry.read_text()
    found = {}
    for words in (["outdated"], ["bump", "--all"], ["bump", world.resolution().model, "--source-to", "main"]):
        capsys.readouterr()
        status = run([*words, "--json"])
        [model] = json.loads(capsys.readouterr().out)["models"]
        found[" ".join(words[::2])] = (status, model.get("result") or model["advice"], model["trouble"]["code"])

    code = "gated" if cause == "gated need" else "not-a-hub"
    assert set(found.values()) == {(6, "unknown", code)}
    assert world.registry.read_text() == before
