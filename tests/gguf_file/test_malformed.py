"""Damaged and hostile files: each gives a valid file or one of minfer's errors, and never an allocation it asks for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_bytes import F32, Q8_0, Draft, pair, raw_pair, string, tensor_info, u32, u64
from minfer.errors import GGUFError, MinferError, UnsupportedError
from minfer.gguf import GGUFArray, GGUFValueType, TypedValue, open_gguf

T = GGUFValueType
MAX_PEAK_BYTES = 2**20


def read_everything(path: Path) -> None:
    with open_gguf(path) as file:
        for name in file.tensors:
            file.tensor_data(name).sum()
        for value in file.metadata.values():
            if isinstance(value, GGUFArray):
                value.tolist()


def outcome(path: Path, content: bytes) -> MinferError | None:
    """Reads all of a file, within the memory limit. Any exception but minfer's own fails the test."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        read_everything(path)
    except MinferError as error:
        return error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MAX_PEAK_BYTES
    return None


def small_file() -> Draft:
    nested = TypedValue(T.ARRAY, [TypedValue(T.ARRAY, [1, 2], T.UINT8), TypedValue(T.ARRAY, ["q"], T.STRING)], T.ARRAY)
    return Draft(
        pairs=[
            pair("general.alignment", TypedValue(T.UINT32, 32)),
            pair("name", TypedValue(T.STRING, "toy")),
            pair("f", TypedValue(T.FLOAT64, 0.5)),
            pair("b", TypedValue(T.BOOL, True)),
            pair("words", TypedValue(T.ARRAY, ["ab", "", "é"], T.STRING)),
            pair("ints", TypedValue(T.ARRAY, [1, 2, 3], T.INT16)),
            pair("flags", TypedValue(T.ARRAY, [True, False], T.BOOL)),
            pair("nested", nested),
        ],
        infos=[tensor_info("a", (2, 3)), tensor_info("q", (32, 1), Q8_0, 32)],
        data=bytes(range(24)).ljust(32, b"\0") + bytes(range(34)),
    )


def test_a_file_cut_short_at_any_length_is_refused(tmp_path: Path) -> None:
    content = small_file().encode()
    assert outcome(tmp_path / "whole.gguf", content) is None
    for length in range(len(content)):
        error = outcome(tmp_path / "cut.gguf", content[:length])
        assert isinstance(error, GGUFError), length
        assert error.offset is not None or length == 0
        assert error.field


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda byte: 0, id="0"),
        pytest.param(lambda byte: 0xFF, id="0xff"),
        pytest.param(lambda byte: 0x80, id="0x80"),
        pytest.param(lambda byte: (byte + 1) & 0xFF, id="+1"),
        pytest.param(lambda byte: byte ^ 0xFF, id="flipped"),
        pytest.param(lambda byte: byte ^ 0x20, id="bit 5 flipped"),
    ],
)
def test_a_file_with_any_byte_changed_is_valid_or_refused(tmp_path: Path, change: Callable[[int], int]) -> None:
    content = bytearray(small_file().encode())
    outcomes = set()
    for position in range(len(small_file().header())):
        original = content[position]
        content[position] = change(original)
        outcomes.add(type(outcome(tmp_path / "changed.gguf", bytes(content))))
        content[position] = original
    assert {GGUFError, type(None)} <= outcomes


def test_two_bytes_changed_in_every_length_and_count(tmp_path: Path) -> None:
    """Lengths that are wrong in their low and their high half, to reach sums that would overflow 64 bits."""
    content = small_file().encode()
    for position in range(8, len(small_file().header()) - 8):
        changed = (
            content[:position] + b"\xf8" + content[position + 1 : position + 7] + b"\xff" + content[position + 8 :]
        )
        outcome(tmp_path / "changed.gguf", changed)


def refused(tmp_path: Path, draft: Draft, message: str) -> GGUFError:
    error = outcome(tmp_path / "hostile.gguf", draft.encode())
    assert isinstance(error, GGUFError)
    assert message in str(error)
    assert str(tmp_path / "hostile.gguf") in str(error)
    return error


@pytest.mark.parametrize("count", [1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1])
def test_counts_that_the_file_cannot_hold(tmp_path: Path, count: int) -> None:
    error = refused(tmp_path, Draft(n_tensors=count), f"{count} tensors")
    assert (error.field, error.offset) == ("tensor count", 8)
    error = refused(tmp_path, Draft(n_pairs=count), f"{count} metadata pairs")
    assert (error.field, error.offset) == ("metadata count", 16)


def test_a_tensor_count_that_the_metadata_leaves_no_room_for(tmp_path: Path) -> None:
    error = refused(tmp_path, Draft(pairs=[pair("k" * 500, TypedValue(T.UINT8, 1))], n_tensors=10), "10 tensors, but")
    assert error.field == "tensor count"


@pytest.mark.parametrize("length", [100, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1])
def test_string_lengths_past_the_end(tmp_path: Path, length: int) -> None:
    for value_type, data in ((T.STRING, u64(length)), (T.ARRAY, u32(T.STRING) + u64(2) + string("x") + u64(length))):
        error = refused(
            tmp_path, Draft(pairs=[raw_pair("k", value_type, data + b"abc")]), f"a string of {length} bytes"
        )
        assert error.field == ("metadata 'k'" if value_type is T.STRING else "metadata 'k'[1]")
        assert error.offset == 24 + 9 + 4 + (0 if value_type is T.STRING else 12 + 9)


@pytest.mark.parametrize("length", [65536, 2**63, 2**64 - 1])
def test_key_and_name_lengths(tmp_path: Path, length: int) -> None:
    padding = bytes(100)
    error = refused(tmp_path, Draft(n_pairs=1, pairs=[u64(length) + padding]), "where the format allows 65535")
    assert error.field == "metadata key 0"
    error = refused(tmp_path, Draft(n_tensors=1, infos=[u64(length) + padding]), "where the format allows 64")
    assert error.field == "tensor 0 name"


@pytest.mark.parametrize("element_type", list(T))
@pytest.mark.parametrize("count", [2**40, 2**61, 2**63, 2**64 - 1])
def test_array_lengths_past_the_end(tmp_path: Path, element_type: GGUFValueType, count: int) -> None:
    data = u32(element_type) + u64(count) + bytes(1000)
    error = refused(tmp_path, Draft(pairs=[raw_pair("k", T.ARRAY, data)]), f"{count} elements of type")
    assert (error.field, error.offset) == ("metadata 'k' length", 24 + 9 + 4 + 4)


@pytest.mark.parametrize("number", [13, 255, 2**31, 2**32 - 1])
def test_unknown_value_types(tmp_path: Path, number: int) -> None:
    error = refused(tmp_path, Draft(pairs=[raw_pair("k", number, bytes(8))]), f"{number} is not one of")
    assert (error.field, error.offset) == ("metadata 'k' type", 24 + 9)
    element = u32(number) + u64(0)
    error = refused(tmp_path, Draft(pairs=[raw_pair("k", T.ARRAY, element)]), f"{number} is not one of")
    assert (error.field, error.offset) == ("metadata 'k' element type", 24 + 9 + 4)


def test_arrays_nested_without_end(tmp_path: Path) -> None:
    data = (u32(T.ARRAY) + u64(1)) * 50_000 + u32(T.UINT8) + u64(0)
    refused(tmp_path, Draft(pairs=[raw_pair("k", T.ARRAY, data)]), "arrays nested deeper than 8")


@pytest.mark.parametrize("depth", [8, 9])
def test_the_limit_of_nesting(tmp_path: Path, depth: int) -> None:
    data = (u32(T.ARRAY) + u64(1)) * (depth - 1) + u32(T.UINT8) + u64(0)
    error = outcome(tmp_path / "nested.gguf", Draft(pairs=[raw_pair("k", T.ARRAY, data)]).encode())
    assert (error is None) == (depth == 8)


def test_an_array_of_many_arrays_takes_no_memory_until_it_is_read(tmp_path: Path) -> None:
    n_arrays = 20_000
    data = u32(T.ARRAY) + u64(n_arrays) + (u32(T.ARRAY) + u64(0)) * n_arrays
    path = tmp_path / "wide.gguf"
    path.write_bytes(Draft(pairs=[raw_pair("k", T.ARRAY, data)]).encode())
    tracemalloc.start()
    try:
        with open_gguf(path) as file:
            assert len(file.metadata.get_array("k")) == n_arrays
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("alignment", "message"),
    [
        (TypedValue(T.UINT32, 0), "must be a power of two from 8 on, not 0"),
        (TypedValue(T.UINT32, 4), "must be a power of two from 8 on, not 4"),
        (TypedValue(T.UINT32, 24), "must be a power of two from 8 on, not 24"),
        (TypedValue(T.UINT32, 2**32 - 1), "must be a power of two from 8 on, not 4294967295"),
        (TypedValue(T.INT32, -(2**31)), "must be a power of two from 8 on, not -2147483648"),
        (TypedValue(T.UINT32, 2**31), "bytes from byte 2147483648 of the file reach past its end"),
        (TypedValue(T.UINT64, 2**63), "bytes from byte 9223372036854775808 of the file reach past its end"),
        (TypedValue(T.STRING, "32"), "must be an integer, not STRING"),
        (TypedValue(T.FLOAT32, 32.0), "must be an integer, not FLOAT32"),
        (TypedValue(T.BOOL, True), "must be an integer, not BOOL"),
    ],
)
def test_alignments(tmp_path: Path, alignment: TypedValue, message: str) -> None:
    draft = Draft(pairs=[pair("general.alignment", alignment)], infos=[tensor_info("t", (1,))], data=bytes(4))
    refused(tmp_path, draft, message)


def test_duplicate_and_empty_names(tmp_path: Path) -> None:
    one = pair("k", TypedValue(T.UINT8, 1))
    error = refused(tmp_path, Draft(pairs=[one, one]), "the key 'k' occurs twice")
    assert (error.field, error.offset) == ("metadata key 1", 24 + len(one))
    refused(tmp_path, Draft(pairs=[pair("", TypedValue(T.UINT8, 1))]), "the key is empty")
    info = tensor_info("t", (1,))
    error = refused(tmp_path, Draft(infos=[info, info], data=bytes(4)), "the name 't' occurs twice")
    assert (error.field, error.offset) == ("tensor 1 name", 24 + len(info))
    refused(tmp_path, Draft(infos=[tensor_info("", (1,))], data=bytes(4)), "the name is empty")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    error = refused(tmp_path, Draft(pairs=[pair(b"\xff", TypedValue(T.UINT8, 1))]), "not valid UTF-8")
    assert (error.field, error.offset) == ("metadata key 0", 24)
    error = refused(tmp_path, Draft(infos=[tensor_info(b"a\x80", (1,))], data=bytes(4)), "not valid UTF-8")
    assert (error.field, error.offset) == ("tensor 0 name", 24)


@pytest.mark.parametrize("n_bytes", [64, 65])
def test_the_limit_of_tensor_names(tmp_path: Path, n_bytes: int) -> None:
    error = outcome(tmp_path / "n.gguf", Draft(infos=[tensor_info("n" * n_bytes, (1,))], data=bytes(4)).encode())
    assert (error is None) == (n_bytes == 64)


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    error = refused(tmp_path, Draft(infos=[tensor_info("\x1b[2J\n", (0,))]), "dimension 0")
    assert "\x1b" not in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((), "number of dimensions at byte 33: must be 1 to 4, not 0"),
        ((1, 1, 1, 1, 1), "number of dimensions at byte 33: must be 1 to 4, not 5"),
        ((0,), "dimension 0 at byte 37: must be 1 to 2^63 - 1, not 0"),
        ((4, 0), "dimension 1 at byte 45: must be 1 to 2^63 - 1, not 0"),
        ((2**63,), "dimension 0 at byte 37: must be 1 to 2^63 - 1, not 9223372036854775808"),
        ((2**64 - 1, 1), "dimension 0 at byte 37"),
        ((2**32, 2**32), "4294967296 x 4294967296 values are more than 2^63 - 1"),
        ((2**62, 2**62, 2**62, 2**62), "values are more than 2^63 - 1"),
        ((2**63 - 1,), "bytes from byte 64 of the file reach past its end"),
        ((2**61,), "its 9223372036854775808 bytes from byte 64"),
        ((2,), "its 8 bytes from byte 64 of the file reach past its end, byte 68"),
    ],
)
def test_dimensions(tmp_path: Path, dims: tuple[int, ...], message: str) -> None:
    info = tensor_info("t", dims)
    draft = Draft(infos=[info], data=bytes(4), alignment=64 if len(info) <= 40 else 32)
    refused(tmp_path, draft, message)


def test_a_dimension_count_of_2_32(tmp_path: Path) -> None:
    info = string("t") + u32(2**32 - 1) + bytes(100)
    refused(tmp_path, Draft(infos=[info]), "must be 1 to 4, not 4294967295")


def test_rows_that_are_no_whole_number_of_blocks(tmp_path: Path) -> None:
    draft = Draft(infos=[tensor_info("t", (33, 2), Q8_0)], data=bytes(100))
    refused(
        tmp_path, draft, "tensor 't' dimensions at byte 33: rows of 33 values are no whole number of Q8_0 blocks of 32"
    )


@pytest.mark.parametrize("offset", [1, 31, 2**64 - 1])
def test_unaligned_offsets(tmp_path: Path, offset: int) -> None:
    draft = Draft(infos=[tensor_info("t", (1,), F32, offset)], data=bytes(64))
    refused(tmp_path, draft, f"tensor 't' offset at byte 49: {offset} is not a multiple of the alignment 32")


@pytest.mark.parametrize("offset", [64, 2**32, 2**63, 2**64 - 32])
def test_offsets_past_the_end(tmp_path: Path, offset: int) -> None:
    draft = Draft(infos=[tensor_info("t", (1,), F32, offset)], data=bytes(64))
    refused(tmp_path, draft, f"its 4 bytes from byte {offset + 64} of the file reach past its end, byte 128")


@pytest.mark.parametrize("offsets", [(0, 0), (0, 32), (32, 0), (32, 32)])
def test_overlapping_tensors(tmp_path: Path, offsets: tuple[int, int]) -> None:
    infos = [tensor_info(name, (16,), F32, offset) for name, offset in zip("ab", offsets, strict=True)]
    error = refused(tmp_path, Draft(infos=infos, data=bytes(128)), "which takes 64 bytes from byte")
    later = "a" if offsets == (32, 0) else "b"
    assert error.field == f"tensor '{later}' offset"


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (32, "Q4_0_4_8"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (37, "IQ4_NL_4_8"),
        (38, "IQ4_NL_8_8"),
    ],
)
def test_withdrawn_tensor_types_are_named(tmp_path: Path, number: int, name: str) -> None:
    error = outcome(tmp_path / "old.gguf", Draft(infos=[tensor_info("t", (32,), number)], data=bytes(64)).encode())
    assert isinstance(error, UnsupportedError)
    assert f"ggml type {number} ({name}) of tensor 't' in" in str(error)
    assert "withdrawn" in str(error)


@pytest.mark.parametrize("number", [43, 1000, 2**31, 2**32 - 1])
def test_unknown_tensor_types_are_named(tmp_path: Path, number: int) -> None:
    error = outcome(tmp_path / "new.gguf", Draft(infos=[tensor_info("t", (32,), number)], data=bytes(64)).encode())
    assert isinstance(error, UnsupportedError)
    assert f"ggml type {number} of tensor 't' in" in str(error)
    assert "supported: F32, F16, Q4_0" in str(error)
    assert "withdrawn" not in str(error)
