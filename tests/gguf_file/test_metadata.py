"""Metadata: lazy values, and getters that say what they wanted."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from gguf_bytes import Draft, pair, raw_pair, string, u32, u64
from minfer.errors import GGUFError, ModelError, ParameterError
from minfer.gguf import GGUFArray, GGUFValueType, Metadata, TypedValue, ValueKind, open_gguf

T = GGUFValueType

SCALARS = {
    "uint8": (T.UINT8, 255),
    "int8": (T.INT8, -128),
    "uint16": (T.UINT16, 65535),
    "int16": (T.INT16, -32768),
    "uint32": (T.UINT32, 2**32 - 1),
    "int32": (T.INT32, -(2**31)),
    "uint64": (T.UINT64, 2**64 - 1),
    "int64": (T.INT64, -(2**63)),
    "float32": (T.FLOAT32, 0.15625),
    "float64": (T.FLOAT64, 0.1),
    "yes": (T.BOOL, True),
    "no": (T.BOOL, False),
    "text": (T.STRING, "καλημέρα"),
    "empty": (T.STRING, ""),
}
NESTED = TypedValue(
    T.ARRAY,
    [TypedValue(T.ARRAY, [1, 2], T.UINT16), TypedValue(T.ARRAY, [], T.FLOAT32), TypedValue(T.ARRAY, ["x"], T.STRING)],
    T.ARRAY,
)


def read(tmp_path: Path, *pairs: bytes) -> Metadata:
    path = tmp_path / "metadata.gguf"
    path.write_bytes(Draft(pairs=list(pairs)).header())
    return open_gguf(path).metadata


@pytest.fixture
def metadata(tmp_path: Path) -> Metadata:
    return read(
        tmp_path,
        *(pair(key, TypedValue(*typed)) for key, typed in SCALARS.items()),
        pair("words", TypedValue(T.ARRAY, ["a", "", "ccc"], T.STRING)),
        pair("numbers", TypedValue(T.ARRAY, [1.5, -2.0, 0.25], T.FLOAT32)),
        pair("flags", TypedValue(T.ARRAY, [True, False], T.BOOL)),
        pair("nothing", TypedValue(T.ARRAY, [], T.UINT8)),
        pair("nested", NESTED),
    )


def test_scalars_of_every_type(metadata: Metadata) -> None:
    for key, (value_type, value) in SCALARS.items():
        assert metadata[key] == value
        assert type(metadata[key]) is type(value)
        assert metadata.value_type(key) is value_type


def test_it_is_a_mapping_in_file_order(metadata: Metadata) -> None:
    assert list(metadata)[: len(SCALARS)] == list(SCALARS)
    assert len(metadata) == len(SCALARS) + 5
    assert "words" in metadata
    assert "wards" not in metadata
    assert metadata.get("wards") is None
    with pytest.raises(KeyError):
        metadata["wards"]


def test_getters_give_values_of_their_kind(metadata: Metadata) -> None:
    assert metadata.get_int("int64") == -(2**63)
    assert metadata.get_float("float32") == 0.15625
    assert metadata.get_bool("yes") is True
    assert metadata.get_str("text") == "καλημέρα"
    assert metadata.get_array("words").tolist() == ["a", "", "ccc"]


def test_an_int_serves_as_a_float(metadata: Metadata) -> None:
    value = metadata.get_float("int8")
    assert value == -128.0
    assert isinstance(value, float)


def test_defaults_are_for_missing_keys_alone(metadata: Metadata) -> None:
    assert metadata.get_int("absent", None) is None
    assert metadata.get_float("absent", 1) == 1
    assert metadata.get_bool("absent", True) is True
    assert metadata.get_str("absent", "x") == "x"
    assert metadata.get_array("absent", ValueKind.INT, default=()) == ()
    with pytest.raises(ModelError, match="'text' should be int, but is STRING"):
        metadata.get_int("text", None)


@pytest.mark.parametrize(
    ("getter", "key", "message"),
    [
        ("get_int", "float32", r"'float32' should be int, but is FLOAT32 \(0.15625\)"),
        ("get_int", "yes", r"'yes' should be int, but is BOOL \(True\)"),
        ("get_float", "yes", "should be float, but is BOOL"),
        ("get_float", "text", "should be float, but is STRING"),
        ("get_bool", "uint8", r"should be bool, but is UINT8 \(255\)"),
        ("get_str", "words", "should be str, but is ARRAY$"),
        ("get_array", "text", "should be array, but is STRING"),
        ("get_int", "unit8", r"'unit8' is missing; did you mean 'uint8'"),
        ("value_type", "unit8", "'unit8' is missing"),
        ("encoded", "unit8", "'unit8' is missing"),
    ],
)
def test_getters_name_the_key_the_wanted_and_the_met(metadata: Metadata, getter: str, key: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        getattr(metadata, getter)(key)


def test_array_elements_are_checked_by_kind(metadata: Metadata) -> None:
    assert metadata.get_array("numbers", ValueKind.FLOAT).tolist() == [1.5, -2.0, 0.25]
    assert len(metadata.get_array("nothing", ValueKind.STR)) == 0
    with pytest.raises(ModelError, match="'words' should be an array of float, but is an array of STRING"):
        metadata.get_array("words", ValueKind.FLOAT)
    with pytest.raises(ModelError, match="'flags' should be an array of int, but is an array of BOOL"):
        metadata.get_array("flags", ValueKind.INT)


def test_arrays_are_sequences(metadata: Metadata) -> None:
    words = metadata.get_array("words")
    assert words.element_type is T.STRING
    assert len(words) == 3
    assert (words[0], words[1], words[-1], words[np.int64(2)]) == ("a", "", "ccc", "ccc")
    assert words[1:] == ["", "ccc"]
    assert words[::-1] == ["ccc", "", "a"]
    assert list(words) == ["a", "", "ccc"]
    assert "ccc" in words
    assert words.index("ccc") == 2
    assert words.bytes_list() == [b"a", b"", b"ccc"]
    assert metadata.get_array("numbers")[-1] == 0.25
    assert metadata.get_array("flags")[0] is True
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"index {index} is out of range for an array of 3"):
            words[index]


def test_arrays_of_arrays(metadata: Metadata) -> None:
    nested = metadata.get_array("nested")
    assert nested.tolist() == [[1, 2], [], ["x"]]
    inner = nested[2]
    assert isinstance(inner, GGUFArray)
    assert inner[0] == "x"
    assert [item.element_type for item in nested] == [T.UINT16, T.FLOAT32, T.STRING]


def test_numbers_are_views_of_the_file(metadata: Metadata) -> None:
    values = metadata.get_array("numbers").to_numpy()
    assert values.dtype == np.float32
    assert values.tolist() == [1.5, -2.0, 0.25]
    assert np.shares_memory(values, metadata.get_array("numbers").to_numpy())
    assert not values.flags.writeable
    assert metadata.get_array("flags").to_numpy().dtype == np.bool_
    assert metadata.get_array("nothing").to_numpy().shape == (0,)


def test_an_empty_array_at_the_very_end_of_a_file(tmp_path: Path) -> None:
    for element_type in T:
        array = read(tmp_path, pair("last", TypedValue(T.ARRAY, [], element_type))).get_array("last")
        assert array.tolist() == []
        assert array.element_type is element_type


@pytest.mark.parametrize("key", ["words", "nested"])
def test_strings_and_arrays_have_no_numpy_view(metadata: Metadata, key: str) -> None:
    with pytest.raises(ParameterError, match=f"'{key}' is an array of .* no NumPy type"):
        metadata.get_array(key).to_numpy()


def test_numbers_have_no_bytes_list(metadata: Metadata) -> None:
    with pytest.raises(ParameterError, match="'numbers' is an array of FLOAT32, not of STRING"):
        metadata.get_array("numbers").bytes_list()


def test_invalid_utf8_is_an_error_where_it_is_touched(tmp_path: Path) -> None:
    vocabulary = string("ok") + string(b"\xff\xfe") + string("fine")
    metadata = read(tmp_path, raw_pair("vocabulary", T.ARRAY, u32(T.STRING) + u64(3) + vocabulary))
    words = metadata.get_array("vocabulary", ValueKind.STR)
    assert words[0] == "ok"
    assert words[2] == "fine"
    assert words.bytes_list() == [b"ok", b"\xff\xfe", b"fine"]
    # header, key, type; the array's element type and length; the first string
    offset = (24 + 8 + 10 + 4) + (4 + 8) + (8 + 2)
    for touch in (lambda: words[1], words.tolist, lambda: list(words)):
        with pytest.raises(GGUFError, match="not valid UTF-8") as caught:
            touch()
        assert caught.value.field == "metadata 'vocabulary'[1]"
        assert caught.value.offset == offset


def test_an_invalid_string_is_an_error_where_it_is_touched(tmp_path: Path) -> None:
    metadata = read(tmp_path, raw_pair("name", T.STRING, string(b"ab\xc3")))
    assert metadata.value_type("name") is T.STRING
    with pytest.raises(GGUFError, match="unexpected end of data 2 bytes into the string") as caught:
        metadata.get_str("name")
    assert (caught.value.field, caught.value.offset) == ("metadata 'name'", 24 + 8 + 4 + 4)


def test_a_bool_must_be_0_or_1(tmp_path: Path) -> None:
    metadata = read(
        tmp_path, raw_pair("flag", T.BOOL, b"\2"), raw_pair("flags", T.ARRAY, u32(T.BOOL) + u64(3) + b"\1\0\x80")
    )
    with pytest.raises(GGUFError, match="a bool must be 0 or 1, not 2"):
        metadata.get_bool("flag")
    flags = metadata.get_array("flags")
    assert flags[1] is False
    for touch in (flags.tolist, flags.to_numpy, lambda: flags[2]):
        with pytest.raises(GGUFError, match="a bool must be 0 or 1, not 128") as caught:
            touch()
        assert caught.value.field == "metadata 'flags'[2]"
        assert caught.value.offset == 24 + (8 + 4 + 4 + 1) + (8 + 5 + 4) + 12 + 2


def test_long_names_are_shortened_in_messages(tmp_path: Path) -> None:
    metadata = read(tmp_path, pair("k" * 60_000, TypedValue(T.UINT8, 1)))
    with pytest.raises(ModelError) as caught:
        metadata.get_str("k" * 60_000)
    assert len(str(caught.value)) < 200


def test_encoded_values_are_the_files_bytes(tmp_path: Path) -> None:
    signalling_nan = struct.pack("<I", 0x7F80_0001)
    metadata = read(tmp_path, raw_pair("nan", T.FLOAT32, signalling_nan), pair("nested", NESTED))
    assert metadata.encoded("nan").data == signalling_nan
    assert metadata.encoded("nested").value_type is T.ARRAY
    assert metadata.encoded("nested").data == metadata.get_array("nested").encoded()
