"""Writing: what types values get, what is refused, and that a file appears whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gguf_bytes import Draft, pair, string, tensor_info
from minfer.errors import ParameterError
from minfer.gguf import EncodedValue, GGUFArray, GGUFValueType, TensorSource, TypedValue, open_gguf, write_gguf
from minfer.quants.ggml_types import GGMLType

T = GGUFValueType
FOUR_BYTES = np.arange(4, dtype=np.uint8)


def test_the_bytes_of_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_gguf(
        path,
        {"name": "toy", "n": TypedValue(T.UINT8, 3)},
        [("a", (1,), GGMLType.F32, FOUR_BYTES), ("b", (2, 1), GGMLType.F16, FOUR_BYTES.reshape(2, 2))],
    )
    draft = Draft(
        pairs=[pair("name", TypedValue(T.STRING, "toy")), pair("n", TypedValue(T.UINT8, 3))],
        infos=[tensor_info("a", (1,)), tensor_info("b", (1, 2), GGMLType.F16, 32)],
        data=FOUR_BYTES.tobytes().ljust(32, b"\0") * 2,
    )
    assert path.read_bytes() == draft.encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, (T.BOOL, True)),
        (0, (T.UINT32, 0)),
        (2**32 - 1, (T.UINT32, 2**32 - 1)),
        (-1, (T.INT32, -1)),
        (-(2**31) - 1, (T.INT64, -(2**31) - 1)),
        (2**32, (T.INT64, 2**32)),
        (2**63, (T.UINT64, 2**63)),
        (0.5, (T.FLOAT32, 0.5)),
        (float("inf"), (T.FLOAT32, float("inf"))),
        ("text", (T.STRING, "text")),
        (b"text", (T.STRING, "text")),
        (np.uint8(7), (T.UINT8, 7)),
        (np.float64(0.1), (T.FLOAT64, 0.1)),
        (np.bool_(True), (T.BOOL, True)),
        (TypedValue(T.FLOAT64, 1), (T.FLOAT64, 1.0)),
        (TypedValue(T.FLOAT32, np.float32(0.25)), (T.FLOAT32, 0.25)),
        (EncodedValue(T.INT16, b"\xfe\xff"), (T.INT16, -2)),
    ],
)
def test_scalar_types(tmp_path: Path, value: object, expected: tuple[GGUFValueType, object]) -> None:
    path = tmp_path / "scalar.gguf"
    write_gguf(path, {"k": value}, [])
    with open_gguf(path) as file:
        assert (file.metadata.value_type("k"), file.metadata["k"]) == expected


@pytest.mark.parametrize(
    ("value", "element_type", "expected"),
    [
        ([1, -2], T.INT32, [1, -2]),
        ((1, 2**31), T.INT64, [1, 2**31]),
        ([2**63], T.UINT64, [2**63]),
        ([0.5, 1.5], T.FLOAT32, [0.5, 1.5]),
        ([True, False], T.BOOL, [True, False]),
        (["a", b"b"], T.STRING, ["a", "b"]),
        ([[1], ["x", "y"]], T.ARRAY, [[1], ["x", "y"]]),
        ([np.int8(3), 4], T.INT32, [3, 4]),
        (np.array([1, 2], np.uint16), T.UINT16, [1, 2]),
        (np.array([1, 2], ">f8"), T.FLOAT64, [1.0, 2.0]),
        (np.array([True]), T.BOOL, [True]),
        (np.array([], np.int64), T.INT64, []),
        (TypedValue(T.ARRAY, [], T.STRING), T.STRING, []),
        (TypedValue(T.ARRAY, [1, 2], T.FLOAT64), T.FLOAT64, [1.0, 2.0]),
        (TypedValue(T.ARRAY, [1, 2]), T.INT32, [1, 2]),
        (TypedValue(T.ARRAY, [TypedValue(T.ARRAY, [], T.INT8), [5]], T.ARRAY), T.ARRAY, [[], [5]]),
        (TypedValue(T.ARRAY, np.array([1, 2]), T.UINT8), T.UINT8, [1, 2]),
    ],
)
def test_array_types(tmp_path: Path, value: object, element_type: GGUFValueType, expected: list[object]) -> None:
    path, copy = tmp_path / "array.gguf", tmp_path / "copy.gguf"
    write_gguf(path, {"k": value}, [])
    with open_gguf(path) as file:
        array = file.metadata.get_array("k")
        assert (array.element_type, array.tolist()) == (element_type, expected)
        write_gguf(copy, dict(file.metadata), [])  # as GGUFArray
    assert copy.read_bytes() == path.read_bytes()


def test_an_array_read_can_be_written_as_another_type(tmp_path: Path) -> None:
    path, changed = tmp_path / "array.gguf", tmp_path / "changed.gguf"
    write_gguf(path, {"k": np.array([1, 2], np.uint8)}, [])
    with open_gguf(path) as file:
        write_gguf(changed, {"k": TypedValue(T.ARRAY, file.metadata["k"], T.FLOAT32)}, [])
    with open_gguf(changed) as file:
        array = file.metadata["k"]
        assert isinstance(array, GGUFArray)
        assert (array.element_type, array.tolist()) == (T.FLOAT32, [1.0, 2.0])


def test_arrays_of_a_file_do_not_smuggle_depth_in(tmp_path: Path) -> None:
    path = tmp_path / "deep.gguf"
    write_gguf(path, {"k": nested(8)}, [])
    with open_gguf(path) as file, pytest.raises(ParameterError, match="nested deeper than 8"):
        write_gguf(path, {"k": [file.metadata["k"]]}, [])


def nested(depth: int) -> list[object]:
    value: list[object] = [1]
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"k": TypedValue(T.UINT8, 256)}, "metadata 'k': 256 does not fit UINT8"),
        ({"k": TypedValue(T.INT8, -129)}, "-129 does not fit INT8"),
        ({"k": 1e300}, r"1e\+300 does not fit FLOAT32"),
        ({"k": 2**64}, "no integer type of GGUF holds 18446744073709551616"),
        ({"k": [-1, 2**63]}, "no integer type of GGUF holds -1 and 9223372036854775808"),
        ({"k": TypedValue(T.UINT8, True)}, "True is of kind bool, and can't be written as UINT8"),
        ({"k": TypedValue(T.INT32, 1.0)}, "1.0 is of kind float, and can't be written as INT32"),
        ({"k": TypedValue(T.BOOL, 1)}, "1 is of kind int, and can't be written as BOOL"),
        ({"k": TypedValue(T.STRING, 1)}, "can't be written as STRING"),
        ({"k": TypedValue(T.FLOAT32, "1")}, "can't be written as FLOAT32"),
        ({"k": TypedValue(T.ARRAY, [1, 300], T.UINT8)}, r"metadata 'k'\[1\]: 300 does not fit UINT8"),
        ({"k": TypedValue(T.ARRAY, "text", T.STRING)}, "'text', of type str, is no sequence"),
        ({"k": TypedValue(T.ARRAY, 5, T.STRING)}, "5, of type int, is no sequence"),
        ({"k": TypedValue(T.ARRAY, [5], T.ARRAY)}, r"'k'\[0\]: 5, of type int, is no sequence"),
        ({"k": [1, 2.0]}, "elements of several kinds: float, int"),
        ({"k": []}, "an array with no elements; give its type with TypedValue"),
        ({"k": None}, "None, of type NoneType, has no type in GGUF"),
        ({"k": np.float16(1)}, "NumPy's float16 has no type in GGUF"),
        ({"k": np.zeros((2, 2))}, r"one dimension, not shape \(2, 2\)"),
        ({"k": "\ud800"}, "has no UTF-8 form"),
        ({"k": nested(9)}, "nested deeper than 8"),
        ({"": 1}, "a key must have 1 to 65535 bytes, not 0"),
        ({"k" * 65536: 1}, "a key must have 1 to 65535 bytes, not 65536"),
        ({"k": EncodedValue(T.UINT32, b"abc")}, "needs 4 bytes, but the file ends after 3"),
        ({"k": EncodedValue(T.UINT8, b"abc")}, "2 bytes more than a UINT8 takes"),
        ({"k": EncodedValue(T.STRING, string("abc")[:-1])}, "a string of 3 bytes, but only 2 remain"),
        ({"general.alignment": "32"}, "'general.alignment' must be an integer, not STRING"),
        ({"general.alignment": 48}, "alignment must be a power of two from 8 on, not 48"),
    ],
)
def test_metadata_that_cannot_be_written(tmp_path: Path, metadata: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        write_gguf(tmp_path / "x.gguf", metadata, [])
    assert not list(tmp_path.iterdir())


def test_an_element_type_goes_with_arrays_alone() -> None:
    with pytest.raises(ParameterError, match="element_type goes with an ARRAY, not with a value of type UINT8"):
        TypedValue(T.UINT8, 1, T.UINT8)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (("", (1,), GGMLType.F32, FOUR_BYTES), "a name must have 1 to 64 bytes, not 0"),
        (("é" * 33, (1,), GGMLType.F32, FOUR_BYTES), "a name must have 1 to 64 bytes, not 66"),
        (("t", (), GGMLType.F32, FOUR_BYTES), r"tensor 't': shape \(\) must have 1 to 4 dimensions"),
        (("t", (1, 1, 1, 1, 1), GGMLType.F32, FOUR_BYTES), "must have 1 to 4 dimensions"),
        (("t", (0,), GGMLType.F32, FOUR_BYTES[:0]), "dimensions of at least 1"),
        (("t", (2**32, 2**32), GGMLType.F32, FOUR_BYTES), r"at most 2\^63 - 1 values"),
        (("t", (33,), GGMLType.Q8_0, FOUR_BYTES), "rows of 33 values are no whole number of Q8_0 blocks of 32"),
        (("t", (2,), GGMLType.F32, FOUR_BYTES), "take 8 bytes, but 4 are given"),
        (("t", (2,), GGMLType.F32, lambda: FOUR_BYTES), "take 8 bytes, but 4 are given"),
        (("t", (1,), GGMLType.F32, np.zeros(1, np.float32)), "of dtype uint8, not float32"),
        (("first", (1,), GGMLType.F32, FOUR_BYTES), "tensor 'first': the name occurs twice"),
    ],
)
def test_tensors_that_cannot_be_written(tmp_path: Path, tensor: TensorSource, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        write_gguf(tmp_path / "x.gguf", {}, [("first", (1,), GGMLType.F32, FOUR_BYTES), tensor])
    assert not list(tmp_path.iterdir())


def test_versions(tmp_path: Path) -> None:
    path = tmp_path / "v2.gguf"
    write_gguf(path, {}, [], version=2)
    with open_gguf(path) as file:
        assert file.version == 2
    with pytest.raises(ParameterError, match="version must be one of 2, 3, not 1"):
        write_gguf(path, {}, [], version=1)


@pytest.mark.parametrize(
    ("metadata", "alignment", "expected"),
    [
        ({}, None, 32),
        ({}, 32, 32),
        ({}, 64, 64),
        ({"general.alignment": 64}, None, 64),
        ({"general.alignment": TypedValue(T.UINT64, 128)}, 128, 128),
    ],
)
def test_alignment(tmp_path: Path, metadata: dict[str, object], alignment: int | None, expected: int) -> None:
    path = tmp_path / "aligned.gguf"
    tensors: list[TensorSource] = [(name, (1,), GGMLType.F32, FOUR_BYTES) for name in "ab"]
    write_gguf(path, metadata, tensors, alignment=alignment)
    with open_gguf(path) as file:
        assert file.alignment == expected
        assert file.metadata.get_int("general.alignment", 32) == expected
        a, b = file.tensors.values()
        assert (a.offset % expected, b.offset - a.offset, file.n_bytes - b.offset) == (0, expected, expected)


def test_an_alignment_that_the_metadata_contradicts(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"alignment is 64, but metadata 'general\.alignment' says 128"):
        write_gguf(tmp_path / "x.gguf", {"general.alignment": 128}, [], alignment=64)
    with pytest.raises(ParameterError, match="alignment must be a power of two from 8 on, not 4"):
        write_gguf(tmp_path / "x.gguf", {}, [], alignment=4)


def test_data_is_made_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "lazy.gguf"
    calls: list[int] = []

    def make(index: int) -> np.ndarray:
        calls.append(index)
        return np.full(4, index, np.uint8)

    def tensors() -> Iterator[TensorSource]:
        for index in range(3):
            assert not calls
            yield f"t{index}", (1,), GGMLType.F32, lambda index=index: make(index)

    write_gguf(path, {}, tensors())
    assert calls == [0, 1, 2]
    with open_gguf(path) as file:
        assert [int(file.tensor_data(name)[0]) for name in file.tensors] == [0, 1, 2]


def test_strided_data_is_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "strided.gguf"
    data = np.arange(8, dtype=np.uint8).reshape(2, 4)
    write_gguf(path, {}, [("t", (4, 1), GGMLType.F16, data.T)])
    with open_gguf(path) as file:
        assert file.tensor_data("t").tobytes() == data.T.tobytes()


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, {"version": 1}, [])
    before = path.read_bytes()

    def fail() -> np.ndarray:
        raise RuntimeError("out of data")

    with pytest.raises(RuntimeError, match="out of data"):
        write_gguf(path, {"version": 2}, [("t", (1,), GGMLType.F32, fail)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_can_be_written_over_the_one_it_is_copied_from(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, {"n": 1}, [("t", (1,), GGMLType.F32, FOUR_BYTES)])
    with open_gguf(path) as file:
        write_gguf(path, {**file.metadata, "n": 2}, [("t", (1,), GGMLType.F32, file.tensor_data("t"))])
        assert file.metadata.get_int("n") == 1
    with open_gguf(path) as file:
        assert file.metadata.get_int("n") == 2
        assert file.tensor_data("t").tobytes() == FOUR_BYTES.tobytes()
