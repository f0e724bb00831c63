"""Laying one registry file over another, field by field, and checking that the entries that come out are complete.

A pin is one field: a repo with its commit, or with the reason why it has none. So a new repo never inherits an old
commit, and what was known of the old pin's content goes with it. Needs, recipe and launch data are replaced whole;
a new recipe drops the launch data of the old one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from overlay.registry.entries import (
    CONSUMERS,
    DEFAULT_MATERIALIZER_VERSION,
    NOWHERE,
    Entry,
    Launch,
    Need,
    Pin,
    Place,
    Recipe,
    Wheel,
)
from overlay.registry.launch_fields import launch_problems
from overlay.registry.problems import did_you_mean, refuse
from overlay.registry.recipe_words import recipe_text, serve_text
from overlay.registry.schema import NeedFields, PinFields
from overlay.registry.script_fields import PythonFields, WheelFields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.registry.problems import Problem
    from overlay.registry.schema import EntryFields, RecipeFields
    from overlay.registry.strict_yaml import Document

__all__ = ["lay_over"]

VDN_H3_COMPONENTS = ("text_encoder", "tokenizer", "processor")
_REVISION_HINT = 'revision: the 40 hex digits of a commit, or floating: "<reason>"'


def lay_over(
    below: Mapping[str, Entry], models: Mapping[str, EntryFields], document: Document, origin: str
) -> tuple[dict[str, Entry], dict[str, tuple[str, ...]]]:
    """Entries of both layers, and by model what the upper one replaced.

    Args:
        below: Complete entries.
        models: What the upper layer says; only what it changes, or whole new entries.
        document: Where it says so, for messages.
        origin: The upper layer's file or variable.

    Raises:
        InvalidRegistry: With every entry that is not complete or not consistent.
    """
    problems: list[Problem] = []
    entries, replaced = dict(below), {}
    for model, fields in models.items():
        layer = _Layer(model, below.get(model), document, origin, problems)
        entry = layer.entry(fields, below)
        if entry is not None:
            entries[model] = entry
            replaced[model] = layer.changes(entry)
    if problems:
        refuse(problems)
    return entries, {model: notes for model, notes in replaced.items() if notes}


@dataclass(frozen=True, slots=True)
class _Layer:
    """One entry of the upper layer, above ``below``."""

    model: str
    below: Entry | None
    document: Document
    origin: str
    problems: list[Problem]

    def report(self, path: tuple[str | int, ...], code: str, message: str, hint: str | None = None) -> None:
        place = ("models", self.model, *path)
        self.problems.append(self.document.problem(place, code, f"{self.model}: {message}", hint))

    def place(self, *path: str | int) -> Place:
        """Where this layer says something of its entry."""
        return Place(self.origin, *self.document.find(("models", self.model, *path)))

    def entry(self, fields: EntryFields, others: Mapping[str, Entry]) -> Entry | None:
        """The complete entry; None where problems were reported."""
        before, below = len(self.problems), self.below
        source = self.pin(("source",), fields.source, below.source if below else None, self.model)
        overlay = self.pin(("overlay",), fields.overlay, below.overlay if below else None, None)
        needs, wheels = (below.needs, below.wheels) if below else ((), ())
        if fields.needs is not None:
            needs, wheels = tuple(self.needs(fields.needs)), tuple(_wheels(fields.needs))
        recipe = below.recipe if below else None
        if fields.recipe is not None:
            recipe = _recipe(fields.recipe, self.place("recipe"))
        for key, value in {"source": fields.source, "recipe": fields.recipe}.items():
            if below is None and value is None:
                self.report((), "missing-key", f"{key} is missing", did_you_mean(self.model, others))
        if len(self.problems) > before or source is None or recipe is None:
            return None

        recipe = _bound(recipe, source, below.source if below and fields.recipe is None else None, wheels)
        known = below if below and below.overlay == overlay else None
        said = fields.overlay
        fingerprint, at = (known.overlay_fingerprint, known.fingerprint_place) if known else (None, NOWHERE)
        if said and said.fingerprint:
            fingerprint, at = said.fingerprint, self.place("overlay", "fingerprint")
        entry = Entry(
            model=self.model,
            source=source,
            overlay=overlay,
            overlay_fingerprint=fingerprint,
            needs=needs,
            wheels=wheels,
            recipe=recipe,
            place=self.place(),
            materializer_version=(said.materializer_version if said else None)
            or (known.materializer_version if known else DEFAULT_MATERIALIZER_VERSION),
            consumers=fields.consumers or (below.consumers if below else CONSUMERS),
            fingerprint_place=at,
            serve=self.serve(fields, recipe),
        )
        self.check(entry)
        return entry if len(self.problems) == before else None

    def pin(
        self, path: tuple[str | int, ...], given: PinFields | None, below: Pin | None, default_repo: str | None
    ) -> Pin | None:
        if given is None:
            return below
        name = path[0]
        repo = given.repo or (below.repo if below else default_repo)
        if repo is None:
            self.report(path, "missing-key", f"{name} has no repo")
        elif given.revision or given.floating:
            return Pin(
                repo, given.revision, given.floating, self.place(*path, "revision" if given.revision else "floating")
            )
        elif below is None:
            self.report(path, "no-revision", f"{name} has no revision", _REVISION_HINT)
        elif repo != below.repo:
            message = f"{name}.repo changes from {below.repo} to {repo} without giving its revision"
            self.report((*path, "repo"), "repo-without-revision", message, _REVISION_HINT)
        else:
            return below
        return None

    def needs(self, given: tuple[NeedFields | WheelFields, ...]) -> list[Need]:
        needs = []
        for number, fields in enumerate(given):
            pin = self.pin(("needs", number), fields, None, None) if isinstance(fields, PinFields) else None
            if pin is not None and isinstance(fields, NeedFields):
                needs.append(Need(pin, fields.components))
        return needs

    def serve(self, fields: EntryFields, recipe: Recipe) -> Mapping[str, Launch]:
        if fields.serve is not None:
            for name, launch in fields.serve.items():
                for path, code, message, hint in launch_problems(name, launch):
                    self.report(("serve", name, *path), code, message, hint)
            return {
                name: Launch(**launch.model_dump(), place=self.place("serve", name))
                for name, launch in fields.serve.items()
            }
        below = self.below
        # Steps and backends are those of what the recipe makes.
        return below.serve if below and (fields.recipe is None or below.recipe == recipe) else {}

    def check(self, entry: Entry) -> None:
        """Report what does not fit together."""
        repos = [pin.repo for pin in entry.pins]
        for repo in sorted({repo for repo in repos if repos.count(repo) > 1}):
            self.report((), "repo-twice", f"{repo} is named twice among source, overlay and needs")
        components = [component for need in entry.needs for component in need.components]
        for component in sorted({name for name in components if components.count(name) > 1}):
            self.report(("needs",), "component-twice", f"component {component} is named twice in needs")

        recipe = entry.recipe
        if entry.wheels and recipe.name != "python":
            message = f"the recipe {recipe.name} runs no script, so it needs no wheel"
            self.report(("needs",), "wheel-without-script", message)
        names = [wheel.name.partition("-")[0].lower().replace("_", "-") for wheel in entry.wheels]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.report(("needs",), "wheel-twice", f"two wheels of {name} are named in needs")
        if recipe.name not in ("lora", "compose") and entry.overlay is None:
            self.report((), "missing-key", f"overlay is missing; the recipe {recipe.name} needs one")
        if recipe.name == "vdn-h3":
            absent = [name for name in VDN_H3_COMPONENTS if name not in components]
            if absent:
                message = f"the recipe vdn-h3 needs the components {', '.join(absent)}"
                others = [name for name in components if name not in VDN_H3_COMPONENTS]
                near = [f"{name}: {meant}" for name in others if (meant := did_you_mean(name, absent))]
                hint = ", ".join(near) or "name them under components of the repo in needs"
                self.report(("needs",), "missing-component", message, hint)
        allowed = {entry.source.repo, *(need.pin.repo for need in entry.needs)}
        for repo in dict.fromkeys(place["repo"] for place in recipe.places if place["repo"] not in allowed):
            message = f"the recipe takes files of {repo}, which is neither the source nor among needs"
            self.report(("recipe",), "repo-without-revision", message, "pin it under needs")

    def changes(self, entry: Entry) -> tuple[str, ...]:
        """One sentence for each value that this layer replaces."""
        below = self.below
        if below is None:
            return ()
        pairs: dict[str, tuple[object, object]] = {
            "source": (below.source, entry.source),
            "overlay": (below.overlay, entry.overlay),
            "needs": (_listed(below.needs), _listed(entry.needs)),
            "limits": (_limits(below.recipe), _limits(entry.recipe)),
            "recipe": (_in_words(below.recipe), _in_words(entry.recipe)),
            "consumers": (", ".join(below.consumers), ", ".join(entry.consumers)),
            "serve": (serve_text(below.serve), serve_text(entry.serve)),
        }
        if below.overlay == entry.overlay:  # else it is plain that what was known of the old overlay is gone
            pairs["fingerprint"] = (_short(below.overlay_fingerprint), _short(entry.overlay_fingerprint))
            pairs["materializer_version"] = (below.materializer_version, entry.materializer_version)
        return tuple(
            f"{name} {new or 'none'} replaces {old or 'none'} ({self.place()})"
            for name, (old, new) in pairs.items()
            if old != new
        )


def _recipe(given: RecipeFields, place: Place) -> Recipe:
    if isinstance(given, PythonFields):
        return Recipe(given.name, given.options, place, given.script_limits)
    return Recipe(given.name, given.model_dump(mode="json", exclude={"name"}), place)


def _bound(recipe: Recipe, source: Pin, old_source: Pin | None, wheels: tuple[Wheel, ...]) -> Recipe:
    """The recipe with every place's repo filled in; a place in the source moves with the source to another repo.

    That of a script has the wheels of the needs, because its output hangs on them.
    """
    of_source = {None, old_source.repo if old_source else None}

    def bound(place: Mapping[str, Any]) -> dict[str, Any]:
        return {**place, "repo": source.repo if place["repo"] in of_source else place["repo"]}

    def part(given: Mapping[str, Any]) -> dict[str, Any]:
        found = bound({key: value for key, value in given.items() if key != "same_as"})
        found["to"] = given["path"] if given["to"] is None else given["to"]
        return {**found, "same_as": bound(given["same_as"])} if given.get("same_as") else found

    options = recipe.options
    match recipe.name:
        case "lora":
            places = {"base": bound(options["base"]), "adapters": [bound(place) for place in options["adapters"]]}
            if output := options.get("output"):
                places["output"] = {**output, "siblings": bound(output["siblings"])}
            return replace(recipe, options=places)
        case "compose":
            return replace(recipe, options={"parts": [part(given) for given in options["parts"]]})
        case "python":
            own = {key: value for key, value in options.items() if key != "wheels"}
            return replace(recipe, options={**own, **({"wheels": [str(wheel) for wheel in wheels]} if wheels else {})})
    return recipe


def _short(fingerprint: str | None) -> str | None:
    return fingerprint[:16] if fingerprint else None


def _in_words(recipe: Recipe) -> str:
    return recipe_text(recipe.name, recipe.options)


def _limits(recipe: Recipe) -> str:
    said = {name: value for name, value in asdict(recipe.limits).items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in said.items())


def _wheels(needs: tuple[NeedFields | WheelFields, ...]) -> Iterator[Wheel]:
    return (Wheel(item.wheel, item.sha256, item.url) for item in needs if isinstance(item, WheelFields))


def _listed(needs: tuple[Need, ...]) -> str:
    return ", ".join(f"{need.pin} ({', '.join(need.components) or 'as the recipe names'})" for need in needs)
