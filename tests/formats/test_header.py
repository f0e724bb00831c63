"""Reading headers: what is refused, and how; what is odd and passes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.tensors import entry, f32, lfs_pointer, raw_file, tensors_file, u8, write_tensors

from overlay.errors import BrokenInput, NotHere
from overlay.formats.header import TensorInfo, needed_prefix, parse_header, read_header

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

VALID = tensors_file({"a": u8(1, 2), "b": u8(3)}, {"format": "pt"})


def _tensors(*entries: tuple[str, object], data: bytes = b"") -> bytes:
    return raw_file(json.dumps(dict(entries)), data)


def _shape(text: str, size: int) -> bytes:
    return raw_file(f'{{"a":{{"dtype":"U8","shape":[{text}],"data_offsets":[0,{size}]}}}}', bytes(size))


def _offsets(text: str) -> bytes:
    return raw_file(f'{{"a":{{"dtype":"U8","shape":[2],"data_offsets":{text}}}}}', b"ab")


def _metadata(text: str) -> bytes:
    return raw_file(f'{{"__metadata__":{text}}}')


U8_AT = {(start, end): entry("U8", [end - start], start, end) for start in range(8) for end in range(start, 8)}

MALFORMED = {
    "h13 empty file": (b"", "truncated", "an empty file, expected at least 8 bytes"),
    "shorter than the length": (VALID[:7], "truncated", "7 bytes, expected at least 8"),
    "h13 header longer than the file": (VALID[:40], "truncated", "40 bytes, expected at least 144"),
    "h13 cut by one byte": (VALID[:-1], "truncated", "146 bytes, expected 147: 1 bytes are missing"),
    "cut at the data": (VALID[:-3], "truncated", "144 bytes, expected 147: 3 bytes are missing"),
    "trailing bytes": (VALID + b"xy", "trailing-bytes", "149 bytes, expected 147: 2 bytes follow"),
    "trailing bytes, no tensor": (raw_file("{}", b"x"), "trailing-bytes", "17 bytes, expected 16"),
    "header too large": (raw_file("{}", length=100_000_001), "header-too-large", "header length 100000001, expected"),
    "an error page": (b"<!DOCTYPE html><html>no</html>", "header-too-large", "begins with '<!DOCTYP'"),
    "a zip (pickled weights)": (b"PK\x03\x04" + bytes(200), "truncated", "expected at least 67324760"),
    "version but no pointer": (b"version 1 of nothing", "bad-header", "begins with 'version '"),
    "header of no byte": (raw_file(""), "bad-header", "header begins with b''"),
    "leading space": (raw_file(" {}"), "bad-header", "expected '{'"),
    "byte order mark": (raw_file("\ufeff{}"), "bad-header", "expected '{'"),
    "not JSON": (raw_file('{"a":'), "bad-json", "(header): line 1, column 9"),
    "two documents": (raw_file("{}{}"), "bad-json", "Extra data"),
    "NUL padding": (raw_file("{}\0\0\0\0\0\0"), "bad-json", "Extra data"),
    "not UTF-8": (raw_file(b'{"\xff":1}'), "bad-json", "not UTF-8 at byte 2"),
    "NaN": (raw_file('{"a":NaN}'), "bad-json", "NaN is not JSON"),
    "deep nesting": (raw_file('{"a":' + "[" * 100_000), "bad-json", "nested too deeply"),
    "lone surrogate": (raw_file('{"\\ud800":1}'), "bad-json", "lone surrogate"),
    "duplicate tensor": (
        raw_file(f'{{"a":{json.dumps(U8_AT[0, 1])},"a":{json.dumps(U8_AT[1, 2])}}}', b"ab"),
        "duplicate-key",
        "key 'a' is given twice",
    ),
    "duplicate field": (
        raw_file('{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"a"),
        "duplicate-key",
        "key 'dtype' is given twice",
    ),
    "duplicate metadata": (_metadata('{"k":"1","k":"2"}'), "duplicate-key", "key 'k' is given twice"),
    "metadata null": (_metadata("null"), "bad-metadata", "__metadata__ is None, expected an object of strings"),
    "metadata list": (_metadata("[]"), "bad-metadata", "expected an object of strings"),
    "metadata number": (_metadata('{"step":250}'), "bad-metadata", "{'step': 250}"),
    "metadata object": (_metadata('{"a":{}}'), "bad-metadata", "expected an object of strings"),
    "entry null": (_tensors(("a", None)), "bad-tensor", "tensor 'a': entry is None"),
    "entry list": (_tensors(("a", ["U8", [0], [0, 0]])), "bad-tensor", "expected exactly dtype, shape"),
    "field missing": (_tensors(("a", {"dtype": "U8", "shape": [0]})), "bad-tensor", "expected exactly dtype"),
    "field unknown": (_tensors(("a", {**U8_AT[0, 0], "scale": 2})), "bad-tensor", "expected exactly dtype"),
    "dtype unknown": (_tensors(("a", entry("F8_E3M4", [0], 0, 0))), "unknown-dtype", "'F8_E3M4', expected one of U64"),
    "dtype lower case": (_tensors(("a", entry("f32", [0], 0, 0))), "unknown-dtype", "unknown dtype 'f32'"),
    "dtype number": (
        raw_file('{"a":{"dtype":16,"shape":[0],"data_offsets":[0,0]}}'),
        "unknown-dtype",
        "dtype is 16, expected a string",
    ),
    "shape null": (
        raw_file('{"a":{"dtype":"U8","shape":null,"data_offsets":[0,0]}}'),
        "bad-shape",
        "shape is None",
    ),
    "shape negative": (_shape("-1,-2", 2), "bad-shape", "shape is [-1, -2], expected whole numbers from 0"),
    "shape bool": (_shape("true", 1), "bad-shape", "shape is [True]"),
    "shape float": (_shape("2.0", 2), "bad-shape", "shape is [2.0]"),
    "shape exponent": (_shape("2e0", 2), "bad-shape", "shape is [2.0]"),
    "shape string": (_shape('"2"', 2), "bad-shape", "shape is ['2']"),
    "shape nested": (_shape("[2]", 2), "bad-shape", "shape is [[2]]"),
    "shape minus zero": (_shape("-0", 0), "bad-json", "number -0 is no usable integer"),
    "shape huge": (_shape("18446744073709551616", 0), "bad-shape", "expected whole numbers"),
    "shape of 5000 digits": (_shape("9" * 5000, 0), "bad-json", "is no usable integer"),
    "number overflows": (_shape("1e999", 0), "bad-json", "does not fit a float64"),
    "shape overflows before a zero": (_shape(f"{2**40},{2**40},0", 0), "bad-shape", "more than 2^60 elements"),
    "offsets null": (_offsets("null"), "bad-offsets", "data_offsets are None"),
    "offsets of one": (_offsets("[0]"), "bad-offsets", "expected [begin, end]"),
    "offsets of three": (_offsets("[0,2,2]"), "bad-offsets", "data_offsets are [0, 2, 2]"),
    "offsets negative": (_offsets("[-2,0]"), "bad-offsets", "data_offsets are [-2, 0]"),
    "offsets bool": (_offsets("[false,2]"), "bad-offsets", "data_offsets are [False, 2]"),
    "offsets float": (_offsets("[0,2.0]"), "bad-offsets", "data_offsets are [0, 2.0]"),
    "offsets huge": (_offsets(f"[0,{2**64}]"), "bad-offsets", f"[0, {2**64}]"),
    "offsets backwards": (_offsets("[2,0]"), "bad-offsets", "data_offsets are [2, 0]"),
    "shape larger than offsets": (_shape("3,1", 2), "size-mismatch", "span 2 bytes, expected 3 for U8 [3, 1]"),
    "shape smaller than offsets": (_shape("1", 2), "size-mismatch", "span 2 bytes, expected 1 for U8 [1]"),
    "dtype wider than offsets": (
        raw_file(json.dumps({"a": entry("F32", [2], 0, 2)}), b"ab"),
        "size-mismatch",
        "data_offsets [0, 2] span 2 bytes, expected 8 for F32 [2]",
    ),
    "half a byte": (_tensors(("a", entry("F4", [3], 0, 2)), data=b"ab"), "bad-shape", "is 12 bits, expected whole"),
    "six bits": (_tensors(("a", entry("F6_E2M3", [5], 0, 4)), data=b"abcd"), "bad-shape", "is 30 bits"),
    "overlap": (
        _tensors(("a", U8_AT[0, 2]), ("b", U8_AT[1, 3]), data=b"abc"),
        "overlap",
        "tensor 'b': begins at byte 1 of the data and overlaps 'a', expected byte 2",
    ),
    "same range twice": (_tensors(("a", U8_AT[0, 2]), ("b", U8_AT[0, 2]), data=b"ab"), "overlap", "overlaps"),
    "gap": (
        _tensors(("a", U8_AT[0, 1]), ("b", U8_AT[2, 3]), data=b"abc"),
        "gap",
        "tensor 'b': begins at byte 2 of the data and leaves a gap after 'a', expected byte 1",
    ),
    "gap at the start": (_tensors(("a", U8_AT[1, 2]), data=b"ab"), "gap", "leaves a gap after the header"),
    "empty tensor inside another": (
        _tensors(("a", U8_AT[0, 2]), ("e", U8_AT[1, 1]), data=b"ab"),
        "overlap",
        "tensor 'e': begins at byte 1",
    ),
    "empty tensor past the end": (_tensors(("a", U8_AT[0, 1]), ("e", U8_AT[2, 2]), data=b"a"), "gap", "tensor 'e'"),
}


@pytest.mark.parametrize(("content", "code", "text"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_refused_by_name(tmp_path: Path, content: bytes, code: str, text: str) -> None:
    """Every error names the file, what was found and what was expected, and says what to do."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)

    with pytest.raises(BrokenInput) as caught:
        read_header(path)

    assert code == caught.value.code
    assert str(caught.value).startswith(str(path))
    assert text in str(caught.value)
    assert caught.value.hint
    assert str(path) in caught.value.data["where"]


def test_h13_a_shard_cut_by_five_bytes_names_real_and_expected_size(tmp_path: Path) -> None:
    """A short shard is reported with both sizes and the advice to download it again."""
    content = tensors_file({"w": f32([4, 4], range(16))})
    path = tmp_path / "model-00002-of-00003.safetensors"
    path.write_bytes(content[:-5])

    with pytest.raises(BrokenInput, match=r"model-00002-of-00003\.safetensors: .* 5 bytes are missing") as caught:
        read_header(path)

    assert (len(content) - 5, len(content)) == (caught.value.data["size"], caught.value.data["expected_size"])
    assert "download it again" in caught.value.hint


def test_h14_a_git_lfs_pointer_is_named_with_its_real_size_and_the_command(tmp_path: Path) -> None:
    """A pointer is not called a header that is too large: the message has the real size, the hint the way out."""
    path = tmp_path / "clone of it" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(lfs_pointer(4_279_428_112))

    with pytest.raises(BrokenInput, match="Git LFS pointer of 135 bytes, expected the file itself") as caught:
        read_header(path)

    assert caught.value.code == "lfs-pointer"
    assert "(4279428112 bytes)" in str(caught.value)
    assert caught.value.data["real_size"] == 4_279_428_112
    assert f"git -C '{path.parent}' lfs pull --include model.safetensors" == caught.value.hint


def test_h14_a_pointer_of_a_remote_file_has_no_folder_in_its_command() -> None:
    """Where the place is not a path of this host, the command is still one that runs inside a clone."""
    data = lfs_pointer(7)

    with pytest.raises(BrokenInput, match="org/repo@abc: found a Git LFS pointer") as caught:
        parse_header(data, needed_prefix(data[:8], len(data), "org/repo@abc"), "org/repo@abc")

    assert caught.value.hint.startswith("git lfs pull --include ")


def test_a_missing_file_is_not_here(tmp_path: Path) -> None:
    """Absence has a class of its own, since a download would help."""
    with pytest.raises(NotHere, match="no such file"):
        read_header(tmp_path / "none.safetensors")


def test_a_dangling_link_is_named_with_its_target(tmp_path: Path) -> None:
    """A link into a pruned cache says where it points."""
    path = tmp_path / "model.safetensors"
    path.symlink_to("../../blobs/58558fef")

    with pytest.raises(BrokenInput, match=r"model\.safetensors: link to \.\./\.\./blobs/58558fef, which is not there"):
        read_header(path)


def test_a_link_to_a_good_file_is_followed(tmp_path: Path) -> None:
    """Snapshots of the Hub's cache are links to blobs."""
    blob = write_tensors(tmp_path / "blobs" / "58558fef", {"a": u8(1)})
    link = tmp_path / "snapshots" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(blob)

    assert {"a"} == set(read_header(link).tensors)


VALID_ODD = {
    "no tensor, no metadata": (raw_file("{}"), []),
    "no tensor, metadata": (raw_file('{"__metadata__":{"a":"b"}}'), []),
    "header only, unpadded": (raw_file("{}", pad=1), []),
    "empty metadata": (tensors_file({"a": u8(1)}, {}), ["a"]),
    "metadata last": (raw_file(f'{{"a":{json.dumps(U8_AT[0, 1])},"__metadata__":{{"k":"v"}}}}', b"a"), ["a"]),
    "unpadded": (raw_file(json.dumps({"a": U8_AT[0, 1]}), b"a", pad=1), ["a"]),
    "spaces and line ends": (raw_file(json.dumps({"a": U8_AT[0, 1]}, indent=1) + "\r\n\t", b"a"), ["a"]),
    "scalar": (tensors_file({"s": f32([], [1.5])}), ["s"]),
    "empty tensors": (tensors_file({"e": u8(), "a": u8(1), "f": ("F32", [0, 7], b"")}), ["e", "a", "f"]),
    "only empty tensors": (tensors_file({"e": u8(), "f": u8()}), ["e", "f"]),
    "empty name": (tensors_file({"": u8(1)}), [""]),
    "names that need care": (
        tensors_file({'a"b\\c\n': u8(1), "é😀": u8(2), "../x": u8(3)}),
        ['a"b\\c\n', "é😀", "../x"],
    ),
    "fp8": (tensors_file({t: (t, [2], b"ab") for t in ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ")}), None),
    "fp4": (tensors_file({"q": ("F4", [2, 4], b"abcd")}), ["q"]),
    "fp6": (tensors_file({"q": ("F6_E2M3", [4], b"abc"), "r": ("F6_E3M2", [8], b"abcdef")}), ["q", "r"]),
    "complex": (tensors_file({"c": ("C64", [1], bytes(8))}), ["c"]),
    "empty tensor listed after its neighbour": (
        _tensors(("a", U8_AT[0, 1]), ("e", U8_AT[0, 0]), data=b"a"),
        ["e", "a"],
    ),
    "listed out of file order": (
        _tensors(("b", U8_AT[1, 2]), ("c", U8_AT[2, 4]), ("a", U8_AT[0, 1]), data=b"abcd"),
        ["a", "b", "c"],
    ),
}


@pytest.mark.parametrize(("content", "names"), VALID_ODD.values(), ids=VALID_ODD)
def test_odd_but_valid_files_pass_in_file_order(content: bytes, names: list[str] | None) -> None:
    """What the format allows is read, however unusual, with tensors in the order of their bytes."""
    header = parse_header(content, len(content), "x")

    if names is not None:
        assert names == list(header.tensors)
    ends = [tensor.end for tensor in header.tensors.values()]
    assert ends == sorted(ends)
    assert len(content) == header.file_size == header.data_start + max(ends, default=0)


def test_fields_and_absolute_offsets() -> None:
    """A header gives each tensor's place, relative and absolute, and the file's metadata."""
    content = tensors_file({"b": u8(1, 2, 3), "a": f32([1, 2], [1, 2])}, {"format": "pt"})

    header = parse_header(content, len(content), "x")

    assert TensorInfo("a", "F32", (1, 2), 3, 11) == header.tensors["a"]
    assert header.tensors["a"].nbytes == 8
    assert header.metadata == {"format": "pt"}
    assert f32([1, 2], [1, 2])[2] == content[header.offset("a") :][:8]


CANONICAL = {
    "sorted, padded": (tensors_file({"a": u8(1), "b": u8(2)}), True),
    "names out of order": (tensors_file({"b": u8(1), "a": u8(2)}), False),
    "dtypes out of order": (tensors_file({"a": u8(1), "b": f32([1], [1])}), False),
    "dtypes in order": (tensors_file({"b": f32([1], [1]), "a": u8(1)}), True),
    "two metadata keys, sorted": (tensors_file({"a": u8(1)}, {"a": "1", "b": "2"}), True),
    "two metadata keys, not sorted": (tensors_file({"a": u8(1)}, {"b": "2", "a": "1"}), False),
    "empty metadata": (tensors_file({"a": u8(1)}, {}), False),
    "wide JSON": (raw_file(json.dumps({"a": U8_AT[0, 1]}), b"a"), False),
    "unpadded": (raw_file(json.dumps({"a": U8_AT[0, 2]}, separators=(",", ":")), b"ab", pad=1), False),
    "padded to 512": (raw_file(json.dumps({"a": U8_AT[0, 1]}, separators=(",", ":")), b"a", pad=512), False),
    "no tensor": (raw_file("{}"), True),
}


@pytest.mark.parametrize(("content", "canonical"), CANONICAL.values(), ids=CANONICAL)
def test_canonical_says_whether_the_header_is_the_one_we_would_write(content: bytes, canonical: bool) -> None:  # noqa: FBT001  # a column of the table
    """Only a file that starts with the canonical bytes may be linked instead of rewritten."""
    assert canonical is parse_header(content, len(content), "x").canonical


def test_more_of_the_file_than_needed_is_welcome() -> None:
    """A reader over HTTP asks for a round number of bytes and may get data behind the header."""
    content = tensors_file({"a": u8(*range(100))})
    needed = needed_prefix(content[:8], len(content), "x")

    assert needed < len(content)
    assert parse_header(content[:needed], len(content), "x") == parse_header(content, len(content), "x")


def test_less_of_the_file_than_needed_is_refused() -> None:
    """A short answer is not taken for a short header."""
    with pytest.raises(BrokenInput, match="only 20 bytes came, expected the first 144"):
        parse_header(VALID[:20], len(VALID), "x")


def test_a_header_of_exactly_the_limit_is_asked_for() -> None:
    """The library's limit of 100 MB is inclusive."""
    length = 100_000_000

    assert length + 8 == needed_prefix(length.to_bytes(8, "little"), 2**40, "x")


def test_a_header_may_end_with_the_file_and_not_one_byte_later() -> None:
    """Nothing is asked for beyond the end of the file."""
    first8 = (40).to_bytes(8, "little")

    assert needed_prefix(first8, 48, "x") == 48
    with pytest.raises(BrokenInput, match="47 bytes, expected at least 48"):
        needed_prefix(first8, 47, "x")


def test_hostile_values_do_not_flood_the_message() -> None:
    """A megabyte in a header does not become a megabyte on the terminal."""
    content = _tensors(("n" * 10**6, ["v" * 10**6]))

    with pytest.raises(BrokenInput) as caught:
        parse_header(content, len(content), "x")

    assert len(str(caught.value)) < 400
