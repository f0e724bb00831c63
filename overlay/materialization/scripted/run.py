"""The overlay's own Python, before the other steps: it runs, or what it left is found, and the plan is known then.

What it left is remembered under its action key as a list of objects and inputs. So a killed run leaves nothing but
staging, and a second one with the same inputs runs nothing.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from overlay.cache import writing
from overlay.cache.tensors import TensorDigests
from overlay.errors import BrokenInput, Untrusted
from overlay.formats.wording import format_bytes
from overlay.hub import check_digests
from overlay.materialization.inputs import fetch_files, file_identity, input_changed
from overlay.materialization.room import require_room
from overlay.materialization.scripted.output import check_output, take_output
from overlay.materialization.scripted.sandboxed import run_script
from overlay.materialization.scripted.stage import bring_wheels, stage
from overlay.materialization.survey import Counters, downloading_counters, survey
from overlay.planning.outputs import AliasFile, CarriedFile, ScriptedFile
from overlay.planning.plan import finish, overlaid
from overlay.planning.scripted import environment, script_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.cache import Cache
    from overlay.materialization.inputs import Inputs
    from overlay.materialization.job import Job
    from overlay.materialization.survey import Work
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.plan import Plan
    from overlay.planning.scripted import Script
    from overlay.registry import Resolution

__all__ = ["ScriptRun", "known_plan", "require_trusted", "script_notes", "settled_by_script"]


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script that ran.

    Attributes:
        counters: What was downloaded for it.
    """

    path: str
    sha256: str
    sandbox: str
    seconds: float
    peak_memory: int
    counters: Counters

    def to_json(self) -> dict[str, Any]:
        """For the record's ``run``."""
        document = {key: value for key, value in asdict(self).items() if key != "counters"}
        return {**document, "seconds": round(self.seconds, 3), "environment": environment()}


def require_trusted(resolution: Resolution, *, allowed: bool) -> None:
    """Refuse a script that a registry enables which nobody named.

    Args:
        allowed: Whether the user allows scripts of such a registry.

    Raises:
        Untrusted: It does.
    """
    if resolution.script_is_found and not allowed:
        raise Untrusted(
            f"{resolution.model}: {resolution.registry_path} lets the overlay's own Python run, and it was found from"
            " the working directory, not named; allow it if you trust whoever wrote that file",
            code="script-not-allowed",
            hint=f"overlay prewarm {resolution.model} --allow-script",
            model=resolution.model,
            registry=resolution.registry_path,
        )


def known_plan(plan: Plan, cache: Cache) -> Plan:
    """The plan of what a script left before, where the cache still has all of it; else the plan as it is."""
    script = plan.script
    if script is None or (entry := cache.find_action(script_key(script))) is None:
        return plan
    left = _left_before(entry.get("files"), plan, cache)
    return _settled(plan, left) if left is not None else plan


def settled_by_script(plan: Plan, job: Job) -> tuple[Plan, ScriptRun | None]:
    """The plan once it is known what a script leaves, and its run; None where nothing had to run.

    Raises:
        OverlayError: As :func:`_run_script`.
    """
    plan = known_plan(plan, job.cache)
    if plan.script is None:
        return plan, None
    work = survey(plan, job.inventory.repos, job.cache, job.options.link, TensorDigests(job.cache.root))
    return _run_script(work, plan.script, job)


def _run_script(work: Work, script: Script, job: Job) -> tuple[Plan, ScriptRun]:
    """Bring the inputs, run the script, and take over what it left.

    Args:
        work: Of the plan that names the script.

    Returns:
        The plan of what it left.

    Raises:
        Untrusted: No sandbox works here; said before anything is fetched.
        BrokenInput: An input is not what the plan says, or the script failed, reached a limit, or left what may not be
            taken over.
        CannotWrite: There is no room, or the filesystem refused.
    """
    from overlay.sandbox import require_sandbox  # of all commands, only what runs scripts needs it

    sandbox = require_sandbox()
    cache, repos = job.cache, job.inventory.repos
    require_room(work, repos, cache)
    inputs = fetch_files(work.plan.given, work.missing, repos, job.phase)
    seen = _check(work.plan, inputs, job)
    wheels = bring_wheels(script, cache, job.options)
    where = f"{script.overlay_name}/{script.path}"
    with cache.staging() as folder:
        made = stage(folder, script, inputs, wheels, cache)
        with writing(cache.root, "hand a script its folders"):
            ran = run_script(made, script, sandbox, job.phase)
        _require_unchanged(work.plan, inputs, seen, job)
        check_output(ran.files, made, where)
        left = take_output(ran.files, made, cache, job.phase, most=script.limits.disk or 0, where=where)
    plan = _settled(work.plan, left)
    _remember(script_key(script), left, cache)
    counters = downloading_counters(work.missing, repos)
    run = ScriptRun(script.path, script.sha256, ran.sandbox, ran.seconds, ran.peak_memory, counters)
    return plan, run


def script_notes(plan: Plan, resolution: Resolution, *, allowed: bool) -> tuple[str, ...]:
    """What a dry run says of a script that is still to run; the dry run itself needs no permission.

    Args:
        allowed: As of :func:`require_trusted`.

    Raises:
        Untrusted: There is no sandbox here (``sandbox-unavailable``).
    """
    from overlay.sandbox import require_sandbox

    script = plan.script
    if script is None:
        return ()
    wheels = f", with {', '.join(wheel.name for wheel in script.wheels)}" if script.wheels else ""
    most, sandbox = format_bytes(script.limits.disk or 0), require_sandbox().name
    runs = f"runs {script.path} of the overlay (sha256 {script.sha256}) in {sandbox}{wheels}"
    found = f"{resolution.registry_path}, which pins it, was found from the working directory, not named"
    refused = resolution.script_is_found and not allowed
    return (
        f"{runs}: what it writes is known then, at most {most}",
        *([f"{found}: the run needs --allow-script"] if refused else []),
    )


def _check(plan: Plan, inputs: Inputs, job: Job) -> dict[str, tuple[int, ...]]:
    """Hold every input against the plan; gives by its full name what tells that it is still the one that was read."""
    repos, memo = job.inventory.repos, job.memo
    seen = {f"{item.repo}/{item.path}": file_identity(inputs.path(item)) for item in plan.given}

    def check(item: Input) -> None:
        repo = repos[item.repo]
        if repo.shared_store:
            check_digests(repo, {item.path: inputs.path(item)}, memo)
        elif (found := repo.digest(item.path)) != item.digest:
            raise input_changed(repo.where(item.path), f"{found}, expected {item.digest}", item.path)

    with job.phase("check", 0), ThreadPoolExecutor(2, thread_name_prefix="overlay-sha256") as pool:
        for _ in pool.map(check, plan.given):
            pass
    return seen


def _require_unchanged(plan: Plan, inputs: Inputs, seen: Mapping[str, tuple[int, ...]], job: Job) -> None:
    for item in plan.given:
        if file_identity(inputs.path(item)) != seen[f"{item.repo}/{item.path}"]:
            raise input_changed(
                job.inventory.repos[item.repo].where(item.path), "another file than at first", item.path
            )


def _settled(plan: Plan, left: Iterable[OutputFile]) -> Plan:
    """The plan once it is known what a script leaves; the plan's own outputs have the last word."""
    return replace(plan, outputs=finish(overlaid(left, plan.outputs), plan.model), script=None)


def _remember(key: str, left: Iterable[OutputFile], cache: Cache) -> None:
    """Let a run with the same key find all of it; an entry names an object, and one of them stands for all."""
    written = [item for item in left if isinstance(item, ScriptedFile)]
    if written:
        first = written[0]
        files = [_to_json(item) for item in left]
        cache.put_action(key, {"digest": first.digest, "size": first.size, "files": files})


def _to_json(item: OutputFile) -> dict[str, Any]:
    match item:
        case ScriptedFile():
            return {"path": item.path, "digest": item.digest, "size": item.size}
        case CarriedFile():
            return {"path": item.path, "repo": item.input.repo, "input": item.input.path}
        case AliasFile():
            return {"path": item.path, "of": item.of}
    raise TypeError(type(item).__name__)


def _left_before(files: Any, plan: Plan, cache: Cache) -> list[OutputFile] | None:
    """What an entry lists; None where it makes no sense, or an object of it is gone."""
    given = {(item.repo, item.path): item for item in plan.given}
    left: list[OutputFile] = []
    try:
        for item in files:
            if "digest" in item:
                if not cache.has_object(item["digest"], item["size"]):
                    return None
                left.append(ScriptedFile(item["path"], item["digest"], item["size"]))
            elif "of" in item:
                left.append(AliasFile(item["path"], item["of"]))
            else:
                left.append(CarriedFile(item["path"], given[item["repo"], item["input"]]))
        finish(left, plan.model)
    except (TypeError, KeyError, ValueError, BrokenInput):
        return None
    return left
