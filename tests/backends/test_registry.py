"""Backends by name."""

from __future__ import annotations

import pytest

from minfer.backends import BACKEND_NAMES, make_backend
from minfer.errors import UnsupportedError
from minfer.settings import read_settings

SETTINGS = read_settings({})


@pytest.mark.parametrize("name", BACKEND_NAMES)
def test_every_name_makes_a_backend_of_that_name(name: str) -> None:
    assert make_backend(name, SETTINGS).name == name


@pytest.mark.parametrize("name", ["cuda", "", "Reference"])
def test_another_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        make_backend(name, SETTINGS)
    assert repr(name) in str(caught.value)
    assert caught.value.supported == BACKEND_NAMES
    assert all(known in str(caught.value) for known in BACKEND_NAMES)
