"""The documentation: what it shows can be typed, links lead somewhere, generated pages are fresh."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
from pathlib import Path

import generate_docs
import pytest

import overlay
from overlay.cli._main import cli, run

pytestmark = pytest.mark.no_torch

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def identifier(path: Path) -> str:
    return str(path.relative_to(ROOT))


def shown_commands(page: Path) -> list[str]:
    """Every ``overlay …`` command line in a page's code blocks, without prompt, pipe and redirection.

    A line counts when it starts with ``overlay`` or ``$ overlay`` in a shell or console block.
    """
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if language not in {"", "sh", "console"}:
            continue
        joined = block.replace("\\\n", " ")
        for line in joined.splitlines():
            found += re.findall(r"^(?:\$ )?(overlay [^|>&#]*)", line)
            found += re.findall(r"\$\((overlay [^)]*)\)", line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=identifier)
def test_shown_commands_parse(page: Path) -> None:
    """Every command line in the documentation is one that the program accepts."""
    for line in shown_commands(page):
        args = shlex.split(line.replace("…", ""))[1:]
        command = cli
        context = cli.make_context("overlay", args[:1] if args[:1] == ["--version"] else [], resilient_parsing=True)
        while hasattr(command, "get_command") and args and not args[0].startswith("-"):
            command = command.get_command(context, args[0])
            assert command is not None, f"no such command: {line}"
            context = command.make_context(args.pop(0), list(args), parent=context, resilient_parsing=True)
        if "--help" not in args and "--version" not in args:
            command.make_context("overlay", list(args), parent=context.parent)


@pytest.mark.parametrize("page", PAGES, ids=identifier)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of the repository, and its anchor a heading there."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{page}: {target}"


@pytest.mark.parametrize(("path", "text"), generate_docs.pages().items(), ids=lambda value: str(value)[:40])
def test_generated_pages_are_fresh(path: Path, text: str) -> None:
    """The reference says what the program does; `make docs` writes it again."""
    assert (ROOT / path).read_text() == text


def test_no_stale_schemas() -> None:
    """There is no schema of a document that is printed no more."""
    wanted = {ROOT / path for path in generate_docs.pages()}

    assert set((ROOT / "docs/reference/schemas").glob("*.json")) <= wanted


def test_pages_are_reachable() -> None:
    """Every page below docs/ is linked from another page."""
    linked = set()
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            linked.add((page.parent / target).resolve())

    assert set() == {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - linked - {ROOT / "docs/README.md"}


def test_tutorial_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it is and what it would take, on the demo's files; room and ways of copying are this host's."""
    from overlay.demo.checkpoint import SOURCE_REPO, write_hub
    from overlay.demo.registry import write_registry

    hub = write_hub(tmp_path / "hub", spec_name="adapter_config.json")
    write_registry(tmp_path / "registry.yaml", hub)
    for name, place in {"HUB": "hub", "REGISTRY": "registry.yaml", "CACHE_ROOT": "mine"}.items():
        monkeypatch.setenv(f"OVERLAY_{name}", str(tmp_path / place))

    page = (ROOT / "docs/tutorial/first-materialization.md").read_text()
    for args in (["resolve", SOURCE_REPO], ["prewarm", SOURCE_REPO, "--dry-run"]):
        shown = page.split(f"$ {shlex.join(['overlay', *args])}\n", 1)[1].split("```", 1)[0]
        assert run(args) == 0
        printed = capsys.readouterr().out.replace(str(tmp_path), "/tmp/overlay-demo")  # noqa: S108  # the tutorial's
        assert _without_host(printed) == _without_host(shown)


def _without_host(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not re.match(r"  copied +\d+ files?, ", line)]
    return [re.sub(r"of [\d.]+ [kMGTP]B free|reflinked|copied", "…", line) for line in lines]


def test_every_option_of_the_api_is_described() -> None:
    """The table of the API page lists the fields of Options, and every public name is on the page."""
    page = (ROOT / "docs/reference/python-api.md").read_text()
    fields = [field.name for field in dataclasses.fields(overlay.Options)]

    assert fields == re.findall(r"^\| `(\w+)` \| [^|]+ \| ", page.split("## Options")[1].split("##")[0], re.MULTILINE)
    assert [name for name in overlay.__all__ if name not in page] == []


def test_every_variable_is_described() -> None:
    """A variable whose name is a string of the program is on the environment page."""
    named = set()
    for path in Path(overlay.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                continue
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            named |= {text for text in texts if re.fullmatch(r"(OVERLAY|SGLANG|MKL)_[A-Z_]+[A-Z]", str(text))}
    page = (ROOT / "docs/reference/environment.md").read_text()

    assert {"OVERLAY_REGISTRY", "SGLANG_DIFFUSION_CACHE_ROOT"} <= named
    assert sorted(name for name in named if name not in page) == []


@pytest.mark.parametrize(
    ("variables", "args", "message"),
    [
        ({"OVERLAY_PREWARM_JOBS": "many"}, ["prewarm", "a/b"], "many"),
        ({"OVERLAY_CACHE_GC_MAX_AGE": "old"}, ["cache", "gc"], "old"),
    ],
)
def test_options_have_variables(
    variables: dict[str, str],
    args: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """OVERLAY_<COMMAND>_<OPTION> is read, as the environment page says."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert run(args) == 2
    assert message in capsys.readouterr().err
