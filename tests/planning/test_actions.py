"""Action keys: what enters them, what does not, and golden values that hold the writer's version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import copy_hub, tiny_hub
from support.models import VDN, options

from overlay.demo.revisions import bump_alpha, bump_readme, bump_rename, bump_turbo_block
from overlay.materialization.materialize import materialize
from overlay.planning.actions import WRITER_VERSION, action_of, factor_action_of, factors_of
from overlay.planning.outputs import (
    AliasFile,
    CarriedFile,
    Fused,
    GeneratedFile,
    Input,
    Literal,
    OutputTensor,
    Range,
    SafetensorsFile,
    Term,
    Zeros,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Planner

    from overlay.demo.checkpoint import HubFolder

GOLDEN = Path(__file__).with_name("golden.json")


def source(letter: str, **changes: Any) -> Input:
    return replace(Input("org/repo", "0" * 40, f"{letter}.safetensors", 1000, f"sha256:{letter * 64}"), **changes)


BASE, ADAPTER = source("b"), source("a")
TERM = Term("default", "x.A", "x.B", Range(ADAPTER, 100, 16), Range(ADAPTER, 116, 24), "BF16", 2, 0.5)
FUSED = Fused.whole(Range(BASE, 8, 48), "BF16", 6, 4, (TERM,))
TENSORS = (
    OutputTensor("x.weight", "BF16", (6, 4), (FUSED,)),
    OutputTensor("y", "F32", (3,), (Range(BASE, 56, 4), Zeros(4), Literal(b"1234"))),
)
FILE = SafetensorsFile("transformer/a.safetensors", {"format": "pt"}, TENSORS)


def with_term(**changes: Any) -> SafetensorsFile:
    fused = replace(FUSED, terms=(replace(TERM, **changes),))
    return replace(FILE, tensors=(replace(TENSORS[0], pieces=(fused,)), TENSORS[1]))


def with_pieces(*pieces: Any) -> SafetensorsFile:
    return replace(FILE, tensors=(TENSORS[0], replace(TENSORS[1], pieces=pieces)))


def with_rows(*spans: tuple[int, int]) -> SafetensorsFile:
    """The fused weight cut into rows."""
    pieces = tuple(replace(FUSED, first_row=first, num_rows=count) for first, count in spans)
    return replace(FILE, tensors=(replace(TENSORS[0], pieces=pieces), TENSORS[1]))


def with_input(**changes: Any) -> SafetensorsFile:
    """The base by other names."""
    base = replace(BASE, **changes)
    fused = replace(FUSED, weight=Range(base, 8, 48))
    pieces = (Range(base, 56, 4), *TENSORS[1].pieces[1:])
    return replace(FILE, tensors=(replace(TENSORS[0], pieces=(fused,)), replace(TENSORS[1], pieces=pieces)))


@pytest.mark.no_torch
@pytest.mark.parametrize(
    "same",
    [
        replace(FILE, path="elsewhere/b.safetensors"),
        replace(FILE, tensors=FILE.tensors[::-1]),
        with_input(repo="other/repo"),
        with_input(revision="f" * 40),
        with_input(path="renamed.safetensors"),
        with_term(adapter="turbo"),
        with_term(a_name="renamed.A", b_name="renamed.B"),
        replace(FILE, metadata={"format": "pt"}),
    ],
    ids=["path", "order", "repo", "commit", "file-name", "adapter-name", "key-spelling", "metadata"],
)
def test_names_commits_and_spelling_do_not_enter_a_key(same: SafetensorsFile) -> None:
    """What leaves the bytes as they are leaves the key as it is."""
    assert action_of(same, "fp32-once") == action_of(FILE, "fp32-once")


OTHER_BYTES = [
    with_input(digest=f"sha256:{'c' * 64}"),
    with_term(scale=0.25),
    with_term(scale=0.5000000596046448),
    with_term(rank=1),
    with_term(dtype="F16"),
    replace(FILE, metadata={}),
    replace(FILE, metadata={"format": "np"}),
    replace(FILE, tensors=FILE.tensors[:1]),
    replace(FILE, tensors=(TENSORS[0], replace(TENSORS[1], name="z"))),
    replace(FILE, tensors=(TENSORS[0], replace(TENSORS[1], shape=(1, 3)))),
    replace(FILE, tensors=(TENSORS[0], replace(TENSORS[1], dtype="I32"))),
    replace(FILE, tensors=(replace(TENSORS[0], pieces=(replace(FUSED, terms=(TERM, TERM)),)), TENSORS[1])),
    with_pieces(Range(BASE, 60, 4), Zeros(4), Literal(b"1234")),
    with_pieces(Zeros(4), Range(BASE, 56, 4), Literal(b"1234")),
    with_pieces(Range(BASE, 56, 4), Zeros(4), Literal(b"1235")),
    with_pieces(Range(BASE, 56, 4), Literal(bytes(4)), Literal(b"1234")),
    with_rows((0, 3), (3, 3)),
    with_rows((3, 3), (0, 3)),
    with_rows((0, 2), (2, 4)),
]
"""Files that differ from FILE in what their bytes depend on, wherever the factors lie."""


@pytest.mark.no_torch
@pytest.mark.parametrize(
    "other",
    [
        *OTHER_BYTES,
        replace(FILE, tensors=(replace(TENSORS[0], pieces=(FUSED.weight,)), TENSORS[1])),
        with_term(a=Range(ADAPTER, 101, 16)),
        with_term(b=Range(source("d"), 116, 24)),
    ],
)
def test_whatever_changes_bytes_changes_the_key(other: SafetensorsFile) -> None:
    """Content, ranges, layout, scales to the last bit, ranks, dtypes, order of terms, metadata."""
    assert action_of(other, "fp32-once") != action_of(FILE, "fp32-once")


@pytest.mark.no_torch
def test_every_cut_of_a_fused_weight_has_a_key_of_its_own() -> None:
    """Where rows begin, how many they are, and how many the whole has."""
    whole_of_three = replace(FUSED, rows=3, num_rows=3, weight=Range(BASE, 8, 24))
    three_of_six = replace(FUSED, num_rows=3)
    others = [with_rows(*spans) for spans in (((0, 3), (3, 3)), ((3, 3), (0, 3)), ((0, 2), (2, 4)), ((0, 6),))]
    others += [
        replace(FILE, tensors=(replace(TENSORS[0], pieces=(piece,)),)) for piece in (whole_of_three, three_of_six)
    ]
    assert len({action_of(other, "fp32-once") for other in others}) == len(others)
    assert action_of(with_rows((0, 6)), "fp32-once") == action_of(FILE, "fp32-once")


@pytest.mark.no_torch
def test_the_order_of_two_adapters_enters_the_key() -> None:
    """fp32 sums depend on it."""
    two = replace(TERM, a=Range(ADAPTER, 200, 16), b=Range(ADAPTER, 216, 24))

    def file(*terms: Term) -> SafetensorsFile:
        return replace(FILE, tensors=(replace(TENSORS[0], pieces=(replace(FUSED, terms=terms),)),))

    assert action_of(file(TERM, two), "fp32-once") != action_of(file(two, TERM), "fp32-once")


@pytest.mark.no_torch
def test_the_rule_enters_the_key_only_where_something_is_fused() -> None:
    """A re-laid VAE is the same under every rule."""
    assert action_of(FILE, "fp32-once") != action_of(FILE, "openvdn")
    copied = replace(FILE, tensors=FILE.tensors[1:])
    assert action_of(copied, "fp32-once") == action_of(copied, "openvdn")


@pytest.mark.no_torch
def test_keys_of_other_kinds() -> None:
    """Carried files are known by content; what is generated or an alias has no key."""
    one, two = (CarriedFile(path, replace(BASE, path=path)) for path in ("x", "y"))
    assert action_of(one, "fp32-once") == action_of(two, "openvdn")
    assert action_of(one, "fp32-once") != action_of(CarriedFile("x", ADAPTER), "fp32-once")
    assert action_of(GeneratedFile("x", b""), "fp32-once") is None
    assert action_of(AliasFile("x", "y"), "fp32-once") is None


FACTORS = {TERM.a: f"sha256:{'1' * 64}", TERM.b: f"sha256:{'2' * 64}"}


def by_factors(file: SafetensorsFile, *digests: str, rule: str = "fp32-once") -> str:
    """The second key, the factors having these digests in their order."""
    known = digests or tuple(FACTORS.values())
    return factor_action_of(file, rule, dict(zip(factors_of(file), known, strict=True)))


@pytest.mark.no_torch
@pytest.mark.parametrize(
    "same",
    [
        replace(FILE, path="elsewhere/b.safetensors"),
        replace(FILE, tensors=FILE.tensors[::-1]),
        with_input(repo="other/repo", revision="f" * 40, path="renamed.safetensors"),
        with_term(adapter="turbo", a_name="renamed.A", b_name="renamed.B"),
        with_term(a=Range(source("c"), 100, 16), b=Range(source("c"), 116, 24)),
        with_term(a=Range(ADAPTER, 700, 16)),
        with_term(b=Range(source("c"), 8, 24)),
    ],
    ids=["path", "order", "base-names", "spelling", "adapter-content-elsewhere", "offset", "another-file"],
)
def test_factors_are_known_by_their_bytes_alone(same: SafetensorsFile) -> None:
    """Not by the file that they are in, nor by their place in it."""
    assert by_factors(same) == by_factors(FILE)


@pytest.mark.no_torch
@pytest.mark.parametrize(
    "other",
    [
        *OTHER_BYTES,
        replace(FILE, tensors=(replace(TENSORS[0], shape=(4, 6)), TENSORS[1])),
        replace(FILE, tensors=(replace(TENSORS[0], pieces=(replace(FUSED, weight=Range(BASE, 16, 48)),)), TENSORS[1])),
    ],
)
def test_whatever_changes_bytes_changes_the_key_of_the_factors(other: SafetensorsFile) -> None:
    """The base by content and place, the layout, dtypes, ranks and scales."""
    assert by_factors(other) != by_factors(FILE)


@pytest.mark.no_torch
def test_other_factors_or_another_order_are_another_key() -> None:
    """A is not B, the first pair is not the second, and neither key is ever the other kind's."""
    one, two, three, four = (f"sha256:{digit * 64}" for digit in "1234")
    assert by_factors(FILE, one, two) != by_factors(FILE, two, one)
    assert by_factors(FILE, one, two) != by_factors(FILE, one, three)
    second = replace(TERM, a=Range(ADAPTER, 200, 16), b=Range(ADAPTER, 216, 24))
    pair = replace(FILE, tensors=(replace(TENSORS[0], pieces=(replace(FUSED, terms=(TERM, second)),)), TENSORS[1]))
    assert by_factors(pair, one, two, three, four) != by_factors(pair, three, four, one, two)
    assert by_factors(FILE, rule="openvdn") != by_factors(FILE)
    assert by_factors(FILE) != action_of(FILE, "fp32-once")


@pytest.mark.no_torch
def test_factors_of_a_file() -> None:
    """Each range once; none where nothing is fused."""
    twice = replace(FILE, tensors=(replace(TENSORS[0], pieces=(replace(FUSED, terms=(TERM, TERM)),)), TENSORS[1]))
    assert factors_of(FILE) == factors_of(twice) == (TERM.a, TERM.b)
    assert factors_of(replace(FILE, tensors=TENSORS[1:])) == ()


def keys(plan_of: Planner, hub: HubFolder, folder: Path) -> dict[str, str]:
    plan = plan_of(VDN, options(hub, folder / "root"))
    found = {output.path: action_of(output, plan.rule) for output in plan.outputs}
    return {path: key for path, key in found.items() if key is not None}


@pytest.mark.no_torch
@pytest.mark.parametrize("bump", [bump_rename, bump_readme])
def test_a_bump_that_changes_no_weight_changes_no_key(
    plan_of: Planner,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    bump: Callable[[HubFolder], HubFolder],
) -> None:
    """A renamed spec, another commit."""
    old = copy_hub(tmp_path_factory, "adapter_config.json")
    assert keys(plan_of, bump(old), tmp_path) == keys(plan_of, old, tmp_path)


@pytest.mark.no_torch
@pytest.mark.parametrize(
    "bump", [lambda hub: bump_alpha(hub, 4.0), lambda hub: bump_turbo_block(hub, 1)], ids=["alpha", "turbo-block"]
)
def test_a_bump_of_an_adapter_changes_keys_of_the_transformer_alone(
    plan_of: Planner,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    bump: Callable[[HubFolder], HubFolder],
) -> None:
    """VAE, rope and whatever is carried keep theirs."""
    hub = copy_hub(tmp_path_factory)
    before, after = keys(plan_of, hub, tmp_path), keys(plan_of, bump(hub), tmp_path)
    changed = {path for path in before if before[path] != after[path]}
    assert changed
    assert all(path.startswith("transformer/diffusion_pytorch_model-") for path in changed)


def test_golden_bytes_and_keys(plan_of: Planner, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Recorded sha256 of every written file of the tiny tree, and the keys of its actions.

    Other bytes under an old key would be taken from an old cache: whoever changes either raises ``WRITER_VERSION`` and
    writes down what this test shows. (If only the made checkpoint has changed, the version stays.)
    """
    found = golden(plan_of, tiny_hub(tmp_path_factory), tmp_path)
    assert found == json.loads(GOLDEN.read_text()), f"now: {json.dumps(found, indent=1)}"


def digests_in(hub: HubFolder, output: SafetensorsFile) -> dict[Range, str]:
    """Of the factors of an output, read from their files."""
    found = {}
    for factor in factors_of(output):
        data = (hub.source_folder / factor.input.path).read_bytes()[factor.offset : factor.offset + factor.nbytes]
        found[factor] = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return found


def golden(plan_of: Planner, hub: HubFolder, folder: Path) -> dict[str, Any]:
    plan = plan_of(VDN, options(hub, folder / "root"))
    written = [output.path for output in plan.outputs if isinstance(output, SafetensorsFile)]
    tree = materialize(VDN, options(hub, folder / "root")).path
    assert tree is not None
    found = keys(plan_of, hub, folder)
    by_factors = {
        output.path: factor_action_of(output, plan.rule, digests_in(hub, output))
        for output in plan.outputs
        if isinstance(output, SafetensorsFile) and output.is_fused
    }
    known = {path.stem for path in (folder / "root/.overlay/actions").glob("*/*.json")}
    assert known == {*by_factors.values(), *found.values()}
    return {
        "writer_version": WRITER_VERSION,
        "actions": {path: found[path] for path in written},
        "factor_actions": by_factors,
        "sha256": {path: hashlib.sha256((tree / path).read_bytes()).hexdigest() for path in written},
    }
