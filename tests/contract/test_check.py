"""The runner: what could not be read is told apart from what is bad, and every cause is said once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import hub_server
import pytest
from hub_server import HubServer
from support.contracts import MODEL, codes, make_hub, next_source, subject_of
from support.hubs import client_of

from overlay.contract import check as runner
from overlay.contract.check import Report, check, check_model
from overlay.contract.facts import lock_model
from overlay.contract.finding import found
from overlay.demo.checkpoint import NEEDS_REPO, OVERLAY_REPO, SOURCE_REPO
from overlay.demo.registry import write_registry
from overlay.demo.revisions import bump_turbo_block
from overlay.errors import BrokenInput, NotHere, Refused, TryAgain
from overlay.fingerprint import DigestMemo
from overlay.hub import Traffic, take_inventory
from overlay.planning.recipes import make_plan
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.demo.checkpoint import HubFolder
    from overlay.hub import Inventory
    from overlay.registry import Resolution
    from overlay.registry.lock import LockedModel

pytestmark = pytest.mark.no_torch


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """Repos that fit together; read them, never write into them."""
    return make_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def server(hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub that has them, and the client turned there."""
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield server


def registry_of(hub: HubFolder, folder: Path) -> Path:
    """A registry that pins the revisions which ``hub`` stands for."""
    path = folder / f"registry-{hub.source[:8]}-{hub.overlay[:8]}.yaml"
    write_registry(path, hub)
    return path


def online(hub: HubFolder, folder: Path, *, offline: bool = False, before: HubFolder | None = None) -> Report:
    """The report on a hub's revisions, opened as the command line does."""

    def resolution(pins: HubFolder) -> Resolution:
        return resolve(MODEL, load_registry(registry_of(pins, folder), environ={}))

    def take(resolution: Resolution, _locked: LockedModel | None) -> Inventory:
        memo = DigestMemo(None, write=False)
        return take_inventory(resolution, hub=None, offline=offline, memo=memo, allow_floating=True, traffic=Traffic())

    return check_model(resolution(hub), take, before=(resolution(before), None) if before else None)


def only(report: Report) -> list[str]:
    """Codes without those that the made repos have in any case: no lock, and a strict manifest."""
    return [code for code in codes(report.findings) if code not in ("lock-missing", "fallback-unreachable")]


def test_what_fits_together_passes(hub: HubFolder, server: HubServer, tmp_path: Path) -> None:
    """A sound entry passes, and it is said what was compared."""
    report = online(hub, tmp_path)

    assert (report.status, only(report), report.trouble, report.cost) == ("passed", [], None, None)
    assert str(report.compared) == "32 pairs, 2 specs, 2 shards"


@pytest.mark.parametrize("repo", [SOURCE_REPO, OVERLAY_REPO, NEEDS_REPO])
def test_gated_is_skipped(hub: HubFolder, server: HubServer, tmp_path: Path, repo: str) -> None:
    """A gated repo is no failure; the finding stands at its pin and says how to get in."""
    server.gated = frozenset([repo])
    report = online(hub, tmp_path)

    assert report.status == "skipped"
    [finding] = [finding for finding in report.findings if finding.code != "lock-missing"]
    assert (finding.code, finding.severity, finding.data["repo"]) == ("skipped", "note", repo)
    assert finding.fix is not None
    assert "accept the terms" in finding.fix
    entry = load_registry(registry_of(hub, tmp_path), environ={}).entries[MODEL]
    assert finding.place == next(pin.place for pin in entry.pins if pin.repo == repo)


def test_files_of_a_gated_repo_whose_listing_is_open_are_skipped_once(
    hub: HubFolder, server: HubServer, tmp_path: Path
) -> None:
    """As on the real Hub: all may list it, and nobody may read it. Many checks meet that; it is said once."""
    server.fault(path=f"/{SOURCE_REPO}/resolve/*", status=403, code="GatedRepo", message="restricted")
    report = online(hub, tmp_path)

    assert report.status == "skipped"
    assert only(report) == ["skipped"]


def test_a_repo_that_wants_a_token_is_skipped(hub: HubFolder, server: HubServer, tmp_path: Path) -> None:
    """Without a token nobody can tell a private repo from none."""
    server.token = "hf_secret"  # noqa: S105  # of a test
    assert only(online(hub, tmp_path)) == ["skipped"]


def test_a_repo_that_is_not_there_is_skipped_without_a_token_only(
    hub: HubFolder, server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token that may see everything it is gone."""
    server.fault(path=f"/api/models/{SOURCE_REPO}/*", status=404, code="RepoNotFound")
    assert online(hub, tmp_path).status == "skipped"
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    report = online(hub, tmp_path)
    assert (report.status, only(report)) == ("failed", ["vanished"])


def test_a_rejected_token_is_unknown(
    hub: HubFolder, server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired token says nothing of the contract; it is neither skipped nor failed."""
    server.token = "hf_secret"  # noqa: S105  # of a test
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    report = online(hub, tmp_path)

    assert report.status == "unknown"
    assert isinstance(report.trouble, Refused)
    assert report.trouble.code == "token-rejected"


def test_a_commit_that_is_gone_has_vanished(hub: HubFolder, server: HubServer, tmp_path: Path) -> None:
    """The pin is named, at its line."""
    server.fault(path=f"/api/models/{SOURCE_REPO}/tree/*", status=404, code="RevisionNotFound")
    report = online(hub, tmp_path)

    assert (report.status, only(report)) == ("failed", ["vanished"])
    [finding] = [finding for finding in report.findings if finding.code == "vanished"]
    assert finding.place.line == 4
    assert hub.source in finding.message


def test_a_commit_that_only_the_cache_has_is_checked_and_has_vanished(
    hub: HubFolder, server: HubServer, tmp_path: Path
) -> None:
    """What is cached is used, as a build would; that the Hub has lost it is an error all the same."""
    online(hub, tmp_path)  # brings small files
    for tree in (tmp_path / "hf/hub").glob(f"models--{SOURCE_REPO.replace('/', '--')}/trees/*"):
        tree.unlink()
    server.fault(path=f"/api/models/{SOURCE_REPO}/tree/*", status=404, code="RevisionNotFound")
    report = online(hub, tmp_path)

    assert report.status == "failed"
    assert only(report).count("vanished") == 1


@pytest.mark.parametrize("path", ["/api/*", "*/resolve/*"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_in_trouble_is_unknown(hub: HubFolder, server: HubServer, tmp_path: Path, path: str, status: int) -> None:
    """A rate limit or an outage is never a failure, wherever it comes."""
    server.fault(path=path, status=status)
    report = online(hub, tmp_path)

    assert report.status == "unknown"
    assert isinstance(report.trouble, TryAgain)
    assert only(report) == []


def test_offline_without_a_cache_is_not_checked(hub: HubFolder, server: HubServer, tmp_path: Path) -> None:
    """No request is made; the status says that nothing is known."""
    report = online(hub, tmp_path, offline=True)

    assert (report.status, only(report)) == ("unknown", ["not-checked"])
    assert isinstance(report.trouble, NotHere)
    assert server.asked() == []


def test_offline_with_a_cached_listing_tells_what_it_can(hub: HubFolder, server: HubServer, tmp_path: Path) -> None:
    """Headers were never kept, so the shards are not checked; nothing is bad."""
    online(hub, tmp_path)
    server.forget()
    report = online(hub, tmp_path, offline=True)

    assert (report.status, only(report)) == ("unknown", ["not-checked"])
    assert server.asked() == []


def test_what_is_damaged_on_this_host_is_not_checked(hub: HubFolder, server: HubServer, tmp_path: Path) -> None:
    """A file that comes damaged is no fault of the repo; once it comes whole, nobody has to remove anything."""
    fault = server.fault(method="GET", path="*/adapter_spec.json", flip=3)
    report = online(hub, tmp_path)
    fault.times = 0

    assert (report.status, only(report)) == ("unknown", ["not-checked"])
    assert report.trouble is not None
    assert (report.trouble.code, report.trouble.exit_status) == ("damaged-in-hub-cache", 3)
    assert online(hub, tmp_path).status == "passed"


@pytest.mark.parametrize("of_former", [False, True])
def test_a_login_page_is_unknown(
    hub: HubFolder, server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_former: bool
) -> None:
    """What is no Hub says nothing of the repo, neither at its pin nor at the one before."""
    former = next_source(hub, "former") if of_former else None
    if of_former:
        assert online(hub, tmp_path).status == "passed"  # and its listings are cached
    monkeypatch.setattr(hub_server, "_json", lambda _document: hub_server._Answer(200, {}, b"<html>log in</html>"))
    report = online(hub, tmp_path, before=former)

    assert (report.status, only(report)) == ("unknown", [])
    assert report.trouble is not None
    assert (report.trouble.code, report.trouble.exit_status) == ("not-a-hub", 6)
    assert server.asked()


def test_a_former_revision_that_is_gone_is_no_obstacle(hub: HubFolder, server: HubServer, tmp_path: Path) -> None:
    """A pin that vanished is replaced by another: there is nothing to compare with, and the new one is checked."""
    server.fault(path=f"*/tree/{'d' * 40}", status=404, code="RevisionNotFound")
    report = online(hub, tmp_path, before=replace(hub, source="d" * 40))

    assert (report.status, report.cost) == ("passed", None)


def test_a_former_revision_that_vanished_since_it_was_cached_is_no_fault_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listing is cached, its headers cannot be had any more: the right bump away from it passes."""
    own = make_hub(tmp_path)
    after = bump_turbo_block(own)
    with HubServer(own.root) as other, client_of(other, monkeypatch, tmp_path / "other/hub"):
        online(own, tmp_path)
        other.fault(path=f"*/resolve/{own.source}/*", status=404, code="RevisionNotFound")
        report = online(after, tmp_path, before=own)

    assert (report.status, only(report), report.cost) == ("passed", [], None)


# The plan at the end


def test_what_no_check_explains_is_refused_by_the_plan(
    hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps the recipe from being carried out is an error with the code of its cause."""
    monkeypatch.setattr(runner, "make_plan", raises(BrokenInput("somewhere: is odd", code="is-odd", hint="mend it")))
    report = check(subject_of(hub, tmp_path))

    [finding] = [finding for finding in report.findings if finding.code == "plan-refused"]
    assert (report.status, finding.message, finding.fix) == ("failed", "somewhere: is odd", "mend it")
    assert finding.data["error"]["code"] == "is-odd"


def test_what_cannot_be_built_is_held_against_its_lock_too(hub: HubFolder, tmp_path: Path) -> None:
    """Of the files that are locked, as far as the repos tell: one that was edited beside a plan that is refused."""
    bumped = next_source(make_hub(tmp_path), "broken")
    whole = subject_of(bumped, tmp_path)
    locked = lock_model(whole, make_plan(whole.inventory))
    (bumped.source_folder / "LICENSE").write_text("Pay first.\n")
    (bumped.source_folder / "h3-base/vae/config.json").unlink()
    report = check(subject_of(bumped, tmp_path, locked=locked))
    [differs] = [finding for finding in report.findings if finding.code == "lock-differs"]

    assert report.compared is None
    assert differs.data["absent"] == ["h3-base/vae/config.json"]
    assert differs.data["different"] == ["LICENSE"]


def test_what_a_check_explains_the_plan_does_not_repeat(
    hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cause, one finding."""
    monkeypatch.setattr(runner, "make_plan", raises(BrokenInput("somewhere: is odd", code="is-odd")))
    finds(monkeypatch, lambda entry: found("file-missing", entry, "README is missing"))

    assert only(check(subject_of(hub, tmp_path))) == ["file-missing"]


@pytest.mark.parametrize("code", ["lock-stale", "fingerprint-differs", "not-fetched", "script-changed"])
def test_findings_about_something_else_explain_no_refusal(
    hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """An error about the lock, the registry, the script or what a server fetches is no reason that a plan has."""
    monkeypatch.setattr(runner, "make_plan", raises(BrokenInput("somewhere: is odd", code="is-odd")))
    finds(monkeypatch, lambda entry: found(code, entry, "is otherwise"))

    assert set(only(check(subject_of(hub, tmp_path)))) == {code, "plan-refused"}


def test_a_check_that_lets_an_error_out_is_no_crash(
    hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found before that is kept, and the error is told where that does not explain it."""

    def failing(subject: Subject) -> Iterator[Finding]:
        yield found("unpinned", subject.entry, "floats")
        raise BrokenInput("a file: is odd", code="is-odd")

    monkeypatch.setattr(runner, "CHECKS", (failing,))
    assert only(check(subject_of(hub, tmp_path))) == ["unpinned", "plan-refused"]


# Order and repetition


def test_findings_are_said_once_and_in_the_order_of_the_file(
    hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By place, the worst first; the same finding of two checks is one."""

    def finding(subject: Subject) -> Iterator[Finding]:
        entry = subject.entry
        yield found("unpinned", entry, "b", place=entry.recipe.place)
        yield found("file-missing", entry, "z", place=entry.recipe.place)
        yield found("file-missing", entry, "a", place=entry.source.place)
        yield found("cost", entry, "first", place=entry.place)

    monkeypatch.setattr(runner, "CHECKS", (finding, finding))
    report = check(subject_of(hub, tmp_path))

    assert [finding.message for finding in report.findings] == ["first", "a", "z", "b"]


def test_entries_of_the_overlays_own_python_have_no_plan(hub: HubFolder, tmp_path: Path) -> None:
    """Their files and pins are checked; what only their script knows is not refused."""
    text = f"""\
schema_version: 1
models:
  {MODEL}:
    source: {{revision: {hub.source}}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {hub.overlay}}}
    needs: []
    recipe: {{name: python}}
"""
    report = check(subject_of(hub, tmp_path, registry=text))

    assert report.compared is None
    assert "plan-refused" not in codes(report.findings)


def test_a_comparison_of_folders_is_told_too(hub: HubFolder, tmp_path: Path) -> None:
    """With a folder in the place of the Hub the cost is that of its content."""
    own = make_hub(tmp_path)
    before = subject_of(own, tmp_path)
    report = check(subject_of(next_source(own, "nothing"), tmp_path, before=before))

    [finding] = [finding for finding in report.findings if finding.code == "cost"]
    assert finding.message == "the change costs 0 bytes (32 pairs, 2 specs, 2 shards compared)"
    assert report.status == "passed"


def raises(error: Exception) -> Callable[..., Any]:
    """A function that raises."""

    def refuse(*_args: Any, **_options: Any) -> Any:
        raise error

    return refuse


def finds(monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], Finding]) -> None:
    """Let one check find one thing, and no other run."""
    monkeypatch.setattr(runner, "CHECKS", (lambda subject: iter([make(subject.entry)]),))
