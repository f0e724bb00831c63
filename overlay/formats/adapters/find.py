"""Which file of a folder is the adapter, and which JSON says what it means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from overlay.errors import BrokenInput, NotHere
from overlay.formats.adapters.community import EMBEDDED, embedded_config, says_its_scale
from overlay.formats.adapters.openvdn import OpenVDNSpec
from overlay.formats.adapters.peft import PeftConfig
from overlay.formats.files import PICKLES, safe_path
from overlay.formats.strict_json import parse_object
from overlay.formats.wording import some

if TYPE_CHECKING:
    from overlay.formats.files import Files

__all__ = ["SPEC_NAMES", "Description", "Found", "find_adapter", "parse_description"]

SPEC_NAMES = ("adapter_spec.json", "adapter_config.json")
"""Looked for in this order; content tells what they are. OpenVDN renamed its file from the second to the first."""

_OTHER_PROJECT = ("format_version", "adapter_kind", "tensors")

Description = OpenVDNSpec | PeftConfig
_Model = TypeVar("_Model", OpenVDNSpec, PeftConfig)


@dataclass(frozen=True, slots=True)
class Found:
    """The files of one adapter.

    Attributes:
        weights: Path of the safetensors file.
        spec: Path of the JSON that describes it, None where only the file itself does.
        description: What that JSON, or the PEFT config in the file's metadata, says.
    """

    weights: str
    spec: str | None
    description: Description | None


def find_adapter(files: Files, path: str) -> Found:
    """The weights at ``path``, a folder or a safetensors file, and their description.

    A JSON in the same folder governs, whichever way the weights were named.

    Raises:
        NotHere: There is neither such a file nor such a folder.
        BrokenInput: No or several weights files, a pickle, no description where one is needed, or an unusable one.
    """
    if path in ("", "."):
        plain, is_file = "", False
    else:
        plain = safe_path(path, files.name)
        is_file = plain in files.paths()
    folder = plain.rpartition("/")[0] if is_file else plain
    inside = [name for name in files.paths() if not folder or name.startswith(f"{folder}/")]
    if not inside:
        raise NotHere(
            f"{files.where(plain)}: no such adapter, neither a folder nor a file",
            code="no-such-adapter",
            hint=f"there is {some(sorted(files.paths()), 8) or 'no file at all'}",
            where=files.where(plain),
        )
    beside = [name for name in inside if "/" not in name.removeprefix(f"{folder}/" if folder else "")]
    specs = [name for name in (f"{folder}/{spec}".lstrip("/") for spec in SPEC_NAMES) if name in beside]
    weights = _the_file(files, plain) if is_file else _only_weights(files, folder, inside, beside, specs)
    header = files.header(weights)
    if not specs:
        if not is_file and not says_its_scale(header):
            raise _no_description(files, folder, inside, beside)
        text = header.metadata.get(EMBEDDED)
        where = f"{files.where(weights)}: metadata {EMBEDDED}"
        config = None if text is None else _peft(embedded_config(text, where), where)
        return Found(weights, None, config)
    if EMBEDDED in header.metadata:
        raise BrokenInput(
            f"{files.where(weights)}: has a config in its metadata ({EMBEDDED}) and another beside it, "
            f"{files.where(specs[0])}; expected one",
            code="adapter-specs-differ",
            hint="keep the one that belongs to this file; move the file to a folder of its own if need be",
            where=files.where(weights),
        )
    descriptions = [_read(files, spec) for spec in specs]
    if any(other != descriptions[0] for other in descriptions):
        raise BrokenInput(
            f"{files.where(folder)}: {' and '.join(SPEC_NAMES)} do not say the same; expected equal content",
            code="adapter-specs-differ",
            hint="remove the one that does not belong to these weights",
            where=files.where(folder),
        )
    return Found(weights, specs[0], descriptions[0])


def parse_description(document: dict[str, Any], where: str) -> Description:
    """A description by its content: OpenVDN's spec or PEFT's config.

    Raises:
        BrokenInput: Neither, or one that cannot be used as it stands.
    """
    if any(key in document for key in _OTHER_PROJECT):
        raise BrokenInput(
            f"{where}: is the adapter_spec.json of another project ({some(sorted(document))}); expected OpenVDN's "
            f"(type, version, config) or PEFT's (peft_type, r, lora_alpha)",
            code="adapter-spec-unknown",
            hint="export the adapter as PEFT or kohya safetensors",
            where=where,
        )
    if "config" in document:
        return _validated(OpenVDNSpec, document, where)
    if any(key in document for key in ("peft_type", "r", "lora_alpha")):
        return _peft(document, where)
    raise BrokenInput(
        f"{where}: has {some(sorted(document)) or 'no keys'}; expected OpenVDN's spec (type, version, config) or "
        f"PEFT's config (peft_type, r, lora_alpha)",
        code="adapter-spec-unknown",
        hint="download the file again",
        where=where,
    )


def _read(files: Files, path: str) -> Description:
    where = files.where(path)
    return parse_description(parse_object(files.read_bytes(path), where), where)


def _peft(document: dict[str, Any], where: str) -> PeftConfig:
    # The method first: other methods have other fields, and their names would say less.
    method = document.get("peft_type", "LORA")
    if isinstance(method, str) and method != "LORA":
        raise BrokenInput(
            f"{where}: peft_type is {method!r}; this reader implements LORA only",
            code="adapter-feature",
            hint="merge this adapter with PEFT",
            where=where,
            field="peft_type",
        )
    config = _validated(PeftConfig, document, where)
    config.check(where)
    return config


def _validated(model: type[_Model], document: dict[str, Any], where: str) -> _Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False)]
    raise BrokenInput(
        f"{where}: {some(problems)}",
        code="adapter-spec-invalid",
        hint="a field that is not known here may change the result; if it is new, this program needs to learn it first",
        where=where,
        problems=problems[:10],
    )


def _the_file(files: Files, path: str) -> str:
    if path.endswith(".safetensors"):
        return path
    where = files.where(path)
    if path.endswith(PICKLES):
        raise _pickle(where)
    raise BrokenInput(
        f"{where}: is no .safetensors file",
        code="adapter-file",
        hint="name the adapter's safetensors file, or its folder",
        where=where,
    )


def _only_weights(files: Files, folder: str, inside: list[str], beside: list[str], specs: list[str]) -> str:
    for name in beside:
        if name.endswith(PICKLES):
            raise _pickle(files.where(name))
    weights = [name for name in beside if name.endswith(".safetensors")]
    if len(weights) == 1:
        return weights[0]
    if not weights and not specs:
        raise _no_description(files, folder, inside, beside)
    where = files.where(folder)
    listed = f": {some(map(_base_name, weights), 8)}" if weights else f"; there is {some(map(_base_name, beside), 8)}"
    raise BrokenInput(
        f"{where}: {len(weights)} safetensors files, expected one{listed}",
        code="adapter-file",
        hint=f"name one of them, such as {files.where(weights[0])}" if weights else "download the adapter again",
        where=where,
        files=weights[:20],
    )


def _no_description(files: Files, folder: str, inside: list[str], beside: list[str]) -> BrokenInput:
    where = files.where(folder)
    there = [_base_name(name) for name in beside] or ["only folders"]
    deeper = sorted(
        {str(PurePosixPath(name).parent) for name in inside if _base_name(name) in SPEC_NAMES and name not in beside}
    )
    weights = [name for name in beside if name.endswith(".safetensors")]
    if deeper:
        hint = f"the files sit deeper: use {some(map(files.where, deeper))}"
    elif weights:
        hint = (
            f"download the missing file; or, if this adapter never had one, name its file: {files.where(weights[0])} "
            "(the scale is then 1)"
        )
    else:
        hint = "name the folder that holds the adapter's safetensors file and its JSON"
    return BrokenInput(
        f"{where}: neither {' nor '.join(SPEC_NAMES)} is there; there is {some(there, 8)}",
        code="adapter-spec-missing",
        hint=hint,
        where=where,
        tried=list(SPEC_NAMES),
        found=beside[:20],
        deeper=deeper,
    )


def _pickle(where: str) -> BrokenInput:
    return BrokenInput(
        f"{where}: is a pickle, which can run code when it is read; only safetensors files are read",
        code="pickle",
        hint="convert it where you trust it (safetensors.torch.save_file), and take it out of the adapter's folder",
        where=where,
    )


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]
