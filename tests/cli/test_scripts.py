"""Commands on models that an overlay's own Python builds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.scripted import MODEL, SCRIPT, StandIn, entry_text, scripted_hub, scripted_options, sha256

from overlay.cli._main import run
from overlay.errors import BrokenInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.sandbox import Job


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with a registry that is found, a hub and a cache."""
    StandIn(monkeypatch)
    scripted_hub(tmp_path / "hub", SCRIPT)
    (tmp_path / "registry.yaml").write_text(entry_text(SCRIPT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OVERLAY_HUB", str(tmp_path / "hub"))
    monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "root"))
    return tmp_path


def test_a_found_registry_takes_a_word(
    work: Path,
    document: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Status 7 names the option; with it the script runs; a dry run, which needs none, says beforehand what would."""
    assert run(["prewarm", MODEL]) == 7
    assert "--allow-script" in capsys.readouterr().err
    assert run(["prewarm", MODEL, "--dry-run"]) == 0
    assert "the run needs --allow-script" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("OVERLAY_PREWARM_ALLOW_SCRIPT", "1")
    assert run(["prewarm", MODEL]) == 7  # a variable is no word
    capsys.readouterr()
    assert run(["prewarm", MODEL, "--allow-script", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert f"runs _overlay/materialize.py of the overlay (sha256 {sha256(SCRIPT)}) in bubblewrap" in told
    [planned] = document("prewarm-dry-run", "prewarm", MODEL, "--allow-script", "--dry-run")["models"]
    assert (planned["bytes_downloaded"], planned["present"]) == (0, False)
    [done] = document("prewarm", "prewarm", MODEL, "--allow-script")["models"]
    assert (done["result"], done["bytes_written"]) == ("built", 16)
    assert run(["verify", MODEL, "-q"]) == 0
    assert not (work / "registry.lock").exists()


@pytest.mark.parametrize("command", [("path",), ("env",), ("verify",), ("resolve",)])
def test_what_brings_it_here_can_be_run(
    work: Path, document: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """The command has the word where the registry was found, and only there; without a pinned script there is none."""
    server = ("--for", "sglang") if command == ("env",) else ()

    def hint(*flags: str) -> str:
        if command == ("resolve",):
            return str(document("resolve", "resolve", MODEL, *flags)["next"])
        return str(document("error", *command, MODEL, *server, *flags, status=3)["error"]["hint"])

    flags = " ".join(["", *server])
    assert hint() == f"overlay prewarm {MODEL} --allow-script{flags}"
    named = str(work / "registry.yaml")
    assert hint("--registry", named) == f"overlay prewarm {MODEL}{flags} --registry {named}"
    scripted_options(work, None)
    assert hint() == f"overlay check {MODEL}"
    assert run(["prewarm", MODEL, "--allow-script"]) == 7


def test_the_digest_to_pin_is_told(
    work: Path, document: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """``resolve`` leads to ``check``, and that says it."""
    scripted_options(work, None)
    found = document("resolve", "resolve", MODEL)
    assert found["next"] == f"overlay check {MODEL}"
    assert "pins no script" in " ".join(found["notes"])
    assert run(["check", MODEL]) == 0
    assert f"has sha256 {sha256(SCRIPT)}" in " ".join(capsys.readouterr().out.split())
    assert run(["prewarm", MODEL]) == 7
    assert f"overlay check {MODEL}" in capsys.readouterr().err
    scripted_options(work, SCRIPT)
    assert document("resolve", "resolve", MODEL)["recipe_options"] == {"script": sha256(SCRIPT)}
    assert run(["lock", MODEL, "-q"]) == 0
    assert json.loads((work / "registry.lock").read_bytes())["models"][MODEL]["script"]["sha256"] == sha256(SCRIPT)


def test_a_changed_script_is_told_once(work: Path, document: Callable[..., dict[str, Any]]) -> None:
    """As what it is, and not once more as what keeps the model from being built."""
    scripted_options(work, "another")
    [model] = document("check", "check", MODEL, status=1)["models"]
    assert [finding["code"] for finding in model["findings"]] == ["lock-missing", "script-changed"]


def test_what_a_script_printed_is_shown_where_asked_for(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of it in the error, the rest with ``-v``, and the hint says so once."""
    registry = work / "registry.yaml"

    def fail(job: Job, *_: Any, **__: Any) -> None:
        path = job.overlay_dir / "_overlay/materialize.py"
        frames = f'Traceback (most recent call last):\n  File "{path}", line 7, in materialize\n'
        output = f"began\n{frames}ValueError: no luck\nreally none\n"
        raised = f"{path}: line 7: ValueError: no luck"
        raise BrokenInput(raised, code="script-failed", where=str(path), status=91, output=output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.sandbox.run", fail)
        assert run(["prewarm", MODEL, "--registry", str(registry)]) == 1
        told = capsys.readouterr().err
        assert run(["prewarm", MODEL, "--registry", str(registry), "-v"]) == 1
        more = capsys.readouterr().err
    assert "_overlay/materialize.py: line 7: ValueError: no luck\n" in told
    assert told.count("what it printed") == 1
    assert "began" not in told
    assert "began\n" in more
    assert "really none\n" in more
    assert "staging" not in more
