"""``overlay check`` as it is typed: what it prints, what it ends with, and that it writes nothing."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.contracts import MODEL, make_hub, next_overlay
from support.documents import checked_document
from support.hubs import client_of
from support.models import readable_by_all
from support.users import other_user

from overlay.cli._main import run
from overlay.demo.checkpoint import OVERLAY_REPO
from overlay.demo.registry import write_registry
from overlay.demo.revisions import bump_rename, move_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch


@pytest.fixture
def hub(tmp_path: Path) -> HubFolder:
    """Repos whose descriptions have their former name."""
    return make_hub(tmp_path, spec_name="adapter_config.json")


@pytest.fixture
def project(hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a registry for them, committed; the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    write_registry(folder / "registry.yaml", hub)
    monkeypatch.setenv("OVERLAY_HUB", str(hub.root))
    monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    commit(folder, "init", "-q", "-b", "main")
    commit(folder, "add", ".")
    commit(folder, "commit", "-qm", "one")
    return folder


def commit(folder: Path, *args: str) -> None:
    command = ["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@example.org", *args]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run ``overlay check`` that must end with ``status``; what it prints on stdout and on stderr."""

    def ask(*args: str, status: int = 0) -> tuple[str, str]:
        assert run(["check", *args]) == status
        return capsys.readouterr()

    return ask


def naive_bump(project: Path, hub: HubFolder) -> HubFolder:
    """Pin the source in which the descriptions were renamed, and leave the overlay as it is."""
    bumped = bump_rename(hub)
    text = (project / "registry.yaml").read_text().replace(hub.source, bumped.source)
    (project / "registry.yaml").write_text(text)
    return bumped


# What it says


def test_a_naive_bump_fails_with_the_rename_named(
    project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]]
) -> None:
    """The line is one that editors jump to; the right bump then costs nothing."""
    bumped = naive_bump(project, hub)
    out, err = said("--base", "main", status=1)
    error = next(line for line in out.splitlines() if "error[" in line)

    assert err == ""
    assert error.startswith(f"registry.yaml:5:46: error[file-renamed]: {MODEL}: ")
    assert "adapter_config.json; the source has them as adapter_spec.json" in error
    assert f"{MODEL}  failed" in out
    assert out.splitlines()[-1].startswith("1 error · ")

    write_registry(project / "registry.yaml", bumped)
    out, _ = said("--base", "main")
    assert "the change costs 0 bytes (32 pairs, 2 specs, 2 shards compared)" in out


@pytest.mark.parametrize("width", [80, 120])
def test_findings_are_as_wide_as_the_terminal(
    project: Path, hub: HubFolder, monkeypatch: pytest.MonkeyPatch, said: Callable[..., tuple[str, str]], width: int
) -> None:
    """A person sees no word cut, a program reads one line each."""
    naive_bump(project, hub)
    piped = [line for line in said(status=1)[0].splitlines() if line.startswith("registry.yaml:")]
    assert all(len(line) > width for line in piped if "error[" in line)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    said(status=1)
    shown = terminal.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    for line in piped:
        assert line in " ".join(shown.split())


def test_nothing_changed_is_an_answer(project: Path, said: Callable[..., tuple[str, str]]) -> None:
    """One required status that always reports: no entry was changed, status 0."""
    out, _ = said("--base", "HEAD")
    assert out.splitlines()[0].startswith("nothing to check: 1 entry as at HEAD (")


def test_all_entries_of_the_file_are_checked(project: Path, said: Callable[..., tuple[str, str]]) -> None:
    """Those of the packaged registry below it are not its business, unless they are named."""
    document = json.loads(said("--json")[0])
    assert [model["model"] for model in document["models"]] == [MODEL]
    assert document["base"] is None


def test_an_entry_that_sglangs_variable_changes_is_checked(
    project: Path, hub: HubFolder, monkeypatch: pytest.MonkeyPatch, said: Callable[..., tuple[str, str]]
) -> None:
    """It is still one of the file, with the pins that are in force; the finding stands where these are."""
    moved = next_overlay(hub, "variable")
    told = {MODEL: {"overlay_repo_id": OVERLAY_REPO, "overlay_revision": moved.overlay}}
    monkeypatch.setenv("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", json.dumps(told))
    [model] = json.loads(said("--json")[0])["models"]
    assert model["model"] == MODEL
    assert any(finding["file"] == "SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY" for finding in model["findings"])


def test_a_removed_entry_is_named(project: Path, tmp_path: Path, said: Callable[..., tuple[str, str]]) -> None:
    """It is not checked any more, and it does not go unseen."""
    text = (project / "registry.yaml").read_text()
    more = text[text.index("    source:") :]
    (tmp_path / "old.yaml").write_text(f"{text}  acme/gone:\n{more}")
    assert "removed: acme/gone" in said("--against", str(tmp_path / "old.yaml"))[0]


def test_the_document_is_that_of_its_schema(
    project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]]
) -> None:
    """``--json`` and ``--output json`` print the same fields, findings with line and column."""
    naive_bump(project, hub)
    for form in (["--json"], ["--output", "json"]):
        document = checked_document(said("--base", "main", *form, status=1)[0], "check")
        [model] = document["models"]
        finding = next(f for f in model["findings"] if f["code"] == "file-renamed")
        assert (model["status"], model["cost"], model["trouble"]) == ("failed", None, None)
        assert (finding["file"], finding["line"], finding["column"]) == ("registry.yaml", 5, 46)
        assert finding["severities"] == {"overlay": "error", "sglang": "error"}
        assert document["bytes_fetched"] == 0


def test_a_broken_registry_is_told_in_the_same_form(project: Path, said: Callable[..., tuple[str, str]]) -> None:
    """Every problem has its line and column; the status is that of a registry that cannot be used."""
    text = (project / "registry.yaml").read_text()
    (project / "registry.yaml").write_text(text.replace("schema_version: 1", "schema_version: 1\nmode: x"))
    out, _ = said(status=2)
    assert out.splitlines()[0] == "registry.yaml:2:1: error[unknown-key]: unknown key mode"
    assert out.splitlines()[-1] == "1 error · nothing was checked"

    out, _ = said("--output", "github", status=2)
    assert out.splitlines()[0].startswith("::error file=registry.yaml,line=2,col=1,title=unknown-key::unknown key mode")

    out, err = said("--output", "json", status=2)
    assert json.loads(out)["error"]["data"]["problems"][0]["line"] == 2
    assert err.startswith("error[unknown-key]")


def test_a_broken_lock_is_told_in_the_same_form(project: Path, said: Callable[..., tuple[str, str]]) -> None:
    """A lock with the markers of a merge says so, not that a model is bad."""
    (project / "registry.lock").write_text("<<<<<<< ours\n{}\n=======\n{}\n>>>>>>> theirs\n")
    out, _ = said(status=2)
    assert out.startswith("registry.lock: error[lock-invalid]: ")


@pytest.mark.parametrize("form", ["text", "json", "github"])
@pytest.mark.parametrize(
    ("name", "code"), [("registry.yaml", "registry-unreadable"), ("registry.lock", "lock-unreadable")]
)
def test_a_link_to_itself_is_told_in_every_form(
    project: Path, said: Callable[..., tuple[str, str]], name: str, code: str, form: str
) -> None:
    """With one status, by the name that it has in the project."""
    (project / name).unlink(missing_ok=True)
    (project / name).symlink_to(name)

    out, err = said("--output", form, status=2)

    assert code in out + err
    beginning = {"text": f"{name}: error[{code}]: ", "json": "{", "github": f"::error file={name},title={code}::"}[form]
    assert out.startswith(beginning)


# How it ends


@pytest.mark.parametrize(("fail_on", "warns", "fails"), [("error", 0, 1), ("warning", 1, 1), ("never", 0, 0)], ids=str)
def test_fail_on(
    project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]], fail_on: str, warns: int, fails: int
) -> None:
    """Status 1 at or above the severity that is asked for; a missing lock is a warning."""
    [model] = json.loads(said("--fail-on", fail_on, "--json", status=warns)[0])["models"]
    assert model["status"] == ("failed" if warns else "passed")
    naive_bump(project, hub)
    out, _ = said("--fail-on", fail_on, status=fails)
    assert f"{MODEL}  {'failed' if fails else 'passed'}" in out


@pytest.fixture
def server(project: Path, hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub in the place of the folder."""
    monkeypatch.delenv("OVERLAY_HUB")
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield server


def test_could_not_tell_is_never_bad(server: HubServer, said: Callable[..., tuple[str, str]]) -> None:
    """An outage ends with 5, offline without anything with 3, gated without a token with 0."""
    server.fault(path="/api/*", status=503)
    checked_document(said("--json", status=5)[0], "check")
    out, _ = said(status=5)
    assert f"{MODEL}: not told[hub-unavailable]: " in out
    assert "1 unknown" in out
    server.faults.clear()

    out, _ = said("--offline", status=3)
    assert "note[not-checked]" in out

    server.gated = frozenset([MODEL])
    out, _ = said()
    assert "note[skipped]" in out
    assert "1 skipped" in out


def test_offline_out_of_the_lock(
    server: HubServer, project: Path, hub: HubFolder, tmp_path: Path, said: Callable[..., tuple[str, str]]
) -> None:
    """With the lock and what it left in the cache root, everything is told without the Hub and its cache."""
    assert run(["lock", "-q"]) == 0
    said()
    shutil.rmtree(tmp_path / "hf")
    server.forget()
    document = json.loads(said("--offline", "--json")[0])
    [model] = document["models"]
    assert (model["status"], model["compared"]["pairs"], document["bytes_fetched"]) == ("passed", 32, 0)
    assert server.asked() == []

    naive_bump(project, hub)
    [model] = json.loads(said("--offline", "--json", status=1)[0])["models"]
    assert {finding["code"] for finding in model["findings"]} == {"lock-stale", "not-checked"}


@pytest.mark.parametrize("online", [True, False])
def test_an_edited_lock_is_told_as_a_build_tells_it(
    project: Path,
    hub: HubFolder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    online: bool,  # noqa: FBT001  # a table
) -> None:
    """A change of the lock alone: the same code and hint as of prewarm, and no cost that reads like a clean bill."""
    lock = project / "registry.lock"
    assert run(["lock", "-q"]) == 0
    commit(project, "add", ".")
    commit(project, "commit", "-qm", "locked")
    text = lock.read_text()
    line = next(line for line in text.splitlines() if '"LICENSE": {' in line)
    lock.write_text(text.replace(line, re.sub("[0-9a-f]{64}", "0" * 64, line)))
    capsys.readouterr()
    with ExitStack() as stack:
        if online:
            monkeypatch.delenv("OVERLAY_HUB")
            server = stack.enter_context(HubServer(hub.root))
            stack.enter_context(client_of(server, monkeypatch, tmp_path / "hf/hub"))
        assert run(["check", "--base", "HEAD"]) == 1
        out = capsys.readouterr().out
        assert "error[lock-differs]" in out
        assert "LICENSE (sha256)" in out
        assert "cost" not in out
        [fix] = [line.strip().removeprefix("fix: ") for line in out.splitlines() if "fix: " in line and "lock " in line]
    monkeypatch.setenv("OVERLAY_HUB", str(hub.root))
    lock.write_text(re.sub(r'(adapter_config.json": {"size": \d+, "sha256": )"[0-9a-f]{64}"', f'\\1"{"0" * 64}"', text))
    assert run(["prewarm", MODEL, "--dry-run"]) == 1
    err = capsys.readouterr().err
    assert "lock-differs" in err
    assert fix in err


def test_a_change_of_the_lock_that_is_right_costs_nothing(project: Path, said: Callable[..., tuple[str, str]]) -> None:
    """Then the note stands."""
    assert run(["lock", "-q"]) == 0
    assert "the change costs 0 bytes" in said("--base", "HEAD")[0]


def test_an_error_beside_an_outage_is_an_error(
    server: HubServer, project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]]
) -> None:
    """What was found before the Hub went away counts."""
    naive_bump(project, hub)
    checked_document(said("--json", status=1)[0], "check")
    server.fault(path="/api/models/*/tree/*", status=503)
    said(status=1)  # listings are cached; nothing more is asked for


def test_the_bytes_are_those_that_came(server: HubServer, said: Callable[..., tuple[str, str]]) -> None:
    """Listings, headers and small files, exactly; a second run asks for the headers alone."""
    first = checked_document(said("--json")[0], "check")["bytes_fetched"]
    assert first == sum(request.sent for request in server.asked())
    server.forget()
    second = json.loads(said("--json")[0])["bytes_fetched"]
    assert second == sum(request.sent for request in server.asked()) < first
    assert {request.path.rpartition(".")[2] for request in server.asked()} == {"safetensors"}
    assert server.payload() == 0


def tree(*folders: Path) -> dict[str, Any]:
    """Everything below folders, with what would change if it were written to."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino, path.lstat().st_size)
        for folder in folders
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("args", [[], ["--base", "main"], ["--json"], ["--offline"]], ids=str)
def test_nothing_is_written(
    project: Path, hub: HubFolder, tmp_path: Path, said: Callable[..., tuple[str, str]], args: list[str]
) -> None:
    """Not in the project, not in the cache root, whether that is there or not."""
    naive_bump(project, hub)
    before = tree(project)
    said(*args, status=1)
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache/.overlay").mkdir(parents=True)
    (tmp_path / "cache/.overlay/version").write_text("1\n")
    cache = tree(tmp_path / "cache")
    said(*args, status=1)

    assert tree(project) == before
    assert tree(tmp_path / "cache") == cache


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user reaches."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_read_only_places_are_enough(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A project and a cache root that the user may not write are checked all the same."""
    hub = make_hub(shared)
    write_registry(shared / "registry.yaml", hub)
    (shared / "cache/.overlay").mkdir(parents=True)
    readable_by_all(shared)
    places = ["--registry", str(shared / "registry.yaml"), "--cache-root", str(shared / "cache")]
    assert run(["check", *places, "--hub", str(hub.root)]) == 0  # imports what the other user may not read
    before = capsys.readouterr().out
    with other_user():
        assert run(["check", *places, "--hub", str(hub.root)]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == before.splitlines()[:-1]


def test_a_repository_of_somebody_else_is_named(
    project: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """git does not trust it, as in many containers; the hint is git's own remedy."""
    if os.geteuid() != 0:
        pytest.skip("only root makes files of somebody else")
    copy = shared / "project"
    shutil.copytree(project, copy)
    readable_by_all(copy)
    check = ["check", "--registry", str(copy / "registry.yaml"), "--base", "main"]
    assert run(check) == 0  # imports what the other user may not read
    with other_user():
        assert run(check) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error[not-a-repository]: {copy}: git does not trust its owner")
    assert f"safe.directory {copy}" in err


# Questions that make no sense


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--base", "main", "--against", "registry.yaml"], "usage"),
        (["--same", MODEL], "usage"),
        (["--revision", "a" * 40, "b" * 40], "usage"),
        (["--same", MODEL, "--revision", "a" * 40, "b" * 40, "--base", "main"], "usage"),
        (["--same", MODEL, "--revision", "HEAD~1", "b" * 40], "not-a-commit"),
        (["--base=--output=/tmp/x"], "bad-revision"),
        (["--base", ""], "bad-revision"),
        (["--base", "nonsense"], "unknown-revision"),
        (["--against", "none.yaml"], "no-such-file"),
        (["acme/none"], "unknown-model"),
    ],
    ids=str,
)
def test_refusals(project: Path, said: Callable[..., tuple[str, str]], args: list[str], code: str) -> None:
    """Each has a code and says what to do."""
    _, err = said(*args, status=3 if code == "no-such-file" else 2)
    assert err.startswith(f"error[{code}]: ")
    assert "hint: " in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--same", MODEL], "--same needs the two commits as well: --revision A B"),
        (["--revision", "main", "main"], "--revision needs the repo as well: --same REPO"),
        (["--base", "main", "--against", "registry.yaml"], "--base and --against exclude each other"),
        (
            ["--same", MODEL, "--revision", "main", "main", "--base", "main"],
            "--same compares a repo and no registry: leave out --base and --against",
        ),
    ],
    ids=str,
)
def test_what_is_missing_is_named(
    project: Path, said: Callable[..., tuple[str, str]], args: list[str], message: str
) -> None:
    """Options that do not go together are told by what to add or to leave out."""
    assert said(*args, status=2)[1].splitlines()[0] == f"error[usage]: {message}"


def test_a_registry_without_entries_says_so(project: Path, said: Callable[..., tuple[str, str]]) -> None:
    """Nothing was checked, and that is not "nothing found"; what the packaged registry has is checked by name."""
    (project / "registry.yaml").write_text("schema_version: 1\nmodels: {}\n")
    commit(project, "commit", "-qam", "none")
    for args in ([], ["--base", "main"]):
        first = said(*args)[0].splitlines()[0]
        assert first == "registry.yaml: has no models of its own, so nothing was checked"


def test_an_entry_that_falls_back_on_the_packaged_one_is_a_change(
    project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The pins that are in force now are checked, and what became of the entry is said; a lock of it is to go."""
    write_registry(project / "registry.yaml", next_overlay(hub, "other"))
    assert run(["lock", "-q"]) == 0
    capsys.readouterr()
    commit(project, "add", ".")
    commit(project, "commit", "-qm", "locked")
    (project / "registry.yaml").write_text("schema_version: 1\nmodels: {}\n")
    document = json.loads(said("--base", "main", "--json", status=1)[0])
    [model] = document["models"]
    assert model["model"] == MODEL
    stale = next(finding for finding in model["findings"] if finding["code"] == "lock-stale")
    assert stale["fix"] == "overlay lock"
    gone = "registry.yaml any more: the entry that ships with this program is in force"
    assert [note for note in document["notes"] if note.startswith(f"{MODEL} is not in ") and note.endswith(gone)]

    assert run(["lock", "-q"]) == 0
    capsys.readouterr()
    # The made overlay has another fingerprint than the published one.
    [model] = json.loads(said("--base", "main", "--json", status=1)[0])["models"]
    assert not [finding for finding in model["findings"] if finding["code"].startswith("lock-")]


@pytest.fixture
def nowhere(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a registry, as of an installed program."""
    folder = tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_without_a_project_no_revision_is_asked_for(nowhere: Path, said: Callable[..., tuple[str, str]]) -> None:
    """git would be asked of the folder that the program is installed in."""
    _, err = said("--base", "HEAD", status=2)
    assert err.startswith("error[no-project]: ")
    assert "overlay init" in err
    assert "--registry" in err


def test_without_a_project_the_packaged_registry_is_checked_and_that_is_said(
    nowhere: Path, said: Callable[..., tuple[str, str]]
) -> None:
    """First of all; and nothing tells to lock what ships with the program."""
    out, err = said(status=1)  # what the made hub has at these commits is not what ships
    assert err.splitlines()[0].startswith("no registry.yaml of a project is here: the one that ships with this program")
    assert "overlay lock" not in out + err
    assert "lock-missing" not in out


# In a workflow


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[str, dict[str, str]]]:
    """The summary and the outputs that a workflow's step wrote."""
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    return lambda: (summary.read_text(), dict(line.split("=") for line in output.read_text().splitlines()))


def test_a_workflow_of_a_broken_registry_gets_a_status_and_the_place(
    project: Path, said: Callable[..., tuple[str, str]], written: Callable[[], tuple[str, dict[str, str]]]
) -> None:
    """A step without outputs would read as one that never ran."""
    text = (project / "registry.yaml").read_text()
    (project / "registry.yaml").write_text(text.replace("recipe:", "recepi:"))
    said(status=2)
    summary, values = written()
    assert (values["status"], values["errors"], values["warnings"]) == ("failed", "1", "0")
    assert "| registry.yaml | failed |" in summary
    assert "| registry.yaml:" in summary
    assert "recepi" in summary


def test_a_workflow_in_an_outage_is_told_why(
    server: HubServer, said: Callable[..., tuple[str, str]], written: Callable[[], tuple[str, dict[str, str]]]
) -> None:
    """The status alone does not say what to wait for."""
    server.fault(path="/api/*", status=503)
    said(status=5)
    summary, values = written()
    assert values["status"] == "unknown"
    assert f"{MODEL}: not told, `hub-unavailable`: " in summary


def test_the_status_of_a_workflow_follows_fail_on(
    project: Path, said: Callable[..., tuple[str, str]], written: Callable[[], tuple[str, dict[str, str]]]
) -> None:
    """A step that fails says so in its output, too."""
    said("--fail-on", "warning", status=1)
    summary, values = written()
    assert (values["status"], values["errors"]) == ("failed", "0")
    assert f"| {MODEL} | failed |" in summary


def test_a_workflow_gets_annotations_a_summary_and_outputs(
    project: Path, hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., tuple[str, str]]
) -> None:
    """GITHUB_ACTIONS alone chooses that form; what other steps wrote into the files stays."""
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    output.write_text("earlier=1\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    naive_bump(project, hub)
    out, _ = said("--base", "main", status=1)

    assert f"::error file=registry.yaml,line=5,col=46,title=file-renamed%3A {MODEL}::the overlay requires" in out
    assert "error[file-renamed]" not in out
    assert f"| error | `file-renamed` | registry.yaml:5:46 | {MODEL}: the overlay requires" in summary.read_text()
    values = dict(line.split("=") for line in output.read_text().splitlines())
    assert values == {"earlier": "1", "status": "failed", "errors": "1", "warnings": "1", "bytes-fetched": "0"}

    assert "file-renamed]" in said("--base", "main", "--output", "text", status=1)[0]


def test_a_workflow_in_which_nothing_changed_reports_that(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., tuple[str, str]]
) -> None:
    """The outputs are there too, so that a required status never waits."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no/such/folder"))
    out, err = said("--base", "main")

    assert out.startswith("nothing to check: ")
    assert "status=passed\n" in (tmp_path / "output").read_text()
    assert "GITHUB_STEP_SUMMARY: " in err


# The same at two revisions


def test_same_tells_each_path(project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]]) -> None:
    """Files and folders, equal, different or absent; all of the repo where none is named."""
    other = move_source(hub)
    (other.source_folder / "README.md").write_text("other\n")
    both = ["--same", MODEL, "--revision", hub.source, other.source]
    out, _ = said(*both, "h3-base", "stage-dmd-step-250/model_spec.json")
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [
        ["h3-base", "equal"],
        ["stage-dmd-step-250/model_spec.json", "equal"],
    ]
    out, _ = said(*both, "README.md", "h3", status=1)
    assert "differs  1 of 1 file: README.md" in out
    assert f"nothing there at {hub.source[:12]} and {other.source[:12]}" in out
    document = checked_document(said(*both, "--json", status=1)[0], "check-same")
    assert (document["equal"], document["paths"][0]["differing"]) == (False, ["README.md"])


def test_same_takes_first_digits_and_main(project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]]) -> None:
    """As ``bump`` does; what it says has the commits."""
    other = move_source(hub)
    (hub.source_folder.parent / "main").symlink_to(other.source)
    document = json.loads(said("--same", MODEL, "--revision", hub.source[:7], "main", "h3-base", "--json")[0])
    assert document["revisions"] == [hub.source, other.source]


def test_a_changed_overlay_is_a_change(project: Path, hub: HubFolder, said: Callable[..., tuple[str, str]]) -> None:
    """The entry is checked although its source stayed."""
    moved = next_overlay(hub, "nothing")
    text = (project / "registry.yaml").read_text().replace(hub.overlay, moved.overlay)
    (project / "registry.yaml").write_text(text)
    document = json.loads(said("--base", "main", "--json")[0])
    assert [model["status"] for model in document["models"]] == ["passed"]
    assert document["models"][0]["cost"]["downloaded"] == 0
