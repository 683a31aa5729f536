"""What a model recommends for its sampling holds where nobody says otherwise, and gives way where somebody does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import gguf
import pytest

import minfer
from minfer.engine import RECOMMENDABLE, DefaultSampling, SamplingSource, default_sampling
from minfer.engine.default_sampling import KEY_PREFIX
from minfer.errors import MinferWarning, ParameterError
from minfer.gguf import open_gguf
from minfer.hub import DEFAULT_MODEL
from minfer.sampling import SamplingParams
from recommending import recommending
from tiny_load import tiny_path

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file that recommends something, by the `gguf` package's own writer; it has no tensors."""

    def make(fill: Callable[[gguf.GGUFWriter], None], name: str = "x.gguf") -> Path:
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        fill(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return tmp_path / name

    return make


def of(path: Path) -> DefaultSampling:
    with open_gguf(path) as file:
        return default_sampling(file)


# What a file says


def test_every_key_of_the_gguf_package_is_read(write: Write) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_sampling_sequence("penalties;top_k;top_p;min_p;xtc;temperature")
        writer.add_sampling_top_k(20)
        writer.add_sampling_top_p(0.95)
        writer.add_sampling_min_p(0.01)
        writer.add_sampling_xtc_probability(0.3)
        writer.add_sampling_xtc_threshold(0.2)
        writer.add_sampling_temp(0.6)
        writer.add_sampling_penalty_last_n(128)
        writer.add_sampling_penalty_repeat(1.1)

    defaults = of(write(fill))
    assert defaults.source is SamplingSource.FILE
    assert defaults.params == SamplingParams(
        samplers=("logit_bias", "penalties", "grammar", "top_k", "top_p", "min_p", "xtc", "temperature"),
        top_k=20,
        top_p=0.95,  # as it was meant, not the float32 next to it
        min_p=0.01,
        xtc_probability=0.3,
        xtc_threshold=0.2,
        temperature=0.6,
        penalty_window=128,
        repetition_penalty=1.1,
    )


def test_mirostat_is_read(write: Write) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_sampling_mirostat(2)
        writer.add_sampling_mirostat_tau(4.5)
        writer.add_sampling_mirostat_eta(0.2)

    assert of(write(fill)).params == SamplingParams(mirostat=2, mirostat_tau=4.5, mirostat_eta=0.2)


def test_no_key_of_the_gguf_package_is_unknown() -> None:
    theirs = {
        value.removeprefix(KEY_PREFIX)
        for name, value in vars(gguf.constants.Keys.General).items()
        if name.startswith("SAMPLING_")
    }
    assert len(theirs) == len(RECOMMENDABLE)
    assert {field.name for field in fields(SamplingParams)} >= RECOMMENDABLE


def test_a_float64_is_taken_as_it_is(write: Write) -> None:
    assert of(write(lambda w: w.add_float64("general.sampling.temp", 0.123456789012))).params.temperature == (
        0.123456789012
    )


@pytest.mark.parametrize(
    ("fill", "reason"),
    [
        (lambda w: w.add_sampling_temp(-1.0), r"general\.sampling\.temp: temperature is -1\.0"),
        (lambda w: w.add_sampling_temp(float("nan")), r"general\.sampling\.temp: temperature"),
        (lambda w: w.add_sampling_top_p(1.5), r"general\.sampling\.top_p: top_p is 1\.5"),
        (lambda w: w.add_string("general.sampling.top_k", "many"), r"general\.sampling\.top_k.* should be"),
        (lambda w: w.add_sampling_mirostat(3), r"general\.sampling\.mirostat: mirostat is 3"),
        (lambda w: w.add_sampling_sequence("top_k;infill"), r"general\.sampling\.sequence: 'infill' is no stage"),
        (lambda w: w.add_sampling_sequence("top_k;top_k"), r"general\.sampling\.sequence: samplers names 'top_k' 2"),
        (lambda w: w.add_uint32("general.sampling.top_q", 3), r"general\.sampling\.top_q is not known"),
    ],
)
def test_what_can_t_be_used_is_left_out_with_its_name(
    write: Write, fill: Callable[[gguf.GGUFWriter], None], reason: str
) -> None:
    path = write(lambda w: (fill(w), w.add_sampling_min_p(0.2)))
    with pytest.warns(MinferWarning, match=rf"x\.gguf recommends .*{reason}"):
        defaults = of(path)
    assert defaults.params == SamplingParams(min_p=0.2)
    assert defaults.source is SamplingSource.FILE


def test_what_contradicts_the_rest_of_the_file_is_left_out(write: Write) -> None:
    path = write(lambda w: (w.add_sampling_top_k(7), w.add_sampling_mirostat(1)))
    with pytest.warns(MinferWarning, match=r"general\.sampling\.top_k: top_k is 7, and mirostat 1 takes its place"):
        assert of(path).params == SamplingParams(mirostat=1)


def test_other_names_of_stages(write: Write) -> None:
    path = write(lambda w: w.add_sampling_sequence("Top-K; typ_p ;nucleus;min-p;top-n-sigma;temp"))
    want = ("logit_bias", "grammar", "top_k", "typical_p", "top_p", "min_p", "top_n_sigma", "temperature")
    assert of(path).params.samplers == want


# What the catalogue says


def test_the_default_model_is_known_by_its_name_and_size(write: Write) -> None:
    path = write(lambda w: None, DEFAULT_MODEL.file_name)
    assert of(path) == DefaultSampling()
    with open(path, "r+b") as file:
        file.truncate(DEFAULT_MODEL.n_bytes)  # sparse, so it takes no room
    assert of(path).source is SamplingSource.CATALOGUE
    assert of(path).params == SamplingParams(temperature=0.2, top_p=0.9)


def test_a_file_s_own_words_come_before_the_catalogue_s(write: Write) -> None:
    path = write(lambda w: w.add_sampling_top_k(3), DEFAULT_MODEL.file_name)
    with open(path, "r+b") as file:
        file.truncate(DEFAULT_MODEL.n_bytes)
    assert (of(path).source, of(path).params) == (SamplingSource.FILE, SamplingParams(top_k=3))


def test_of_others_nothing_is_known(write: Write) -> None:
    assert of(write(lambda w: None)) == DefaultSampling({}, SamplingSource.MINFER)


# What a user says

RECOMMENDED = DefaultSampling(
    {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1, "xtc_probability": 0.5}, SamplingSource.FILE
)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, {**RECOMMENDED.recommended}),
        ({"top_k": 5}, {**RECOMMENDED.recommended, "top_k": 5}),
        ({"top_p": 0.5}, {**RECOMMENDED.recommended, "top_p": 0.5}),
        # Greedy: the likeliest token, whatever was seen before.
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 0, "repetition_penalty": 1.3}, {"temperature": 0, "repetition_penalty": 1.3}),
        # What is recommended gives way to what it contradicts.
        ({"mirostat": 2}, {"temperature": 0.2, "repetition_penalty": 1.1, "mirostat": 2}),
        (
            {"samplers": ("top_k", "temperature")},
            {"samplers": ("top_k", "temperature"), "temperature": 0.2},
        ),
        ({"dynatemp_range": 0.5}, {**RECOMMENDED.recommended, "temperature": 0.8, "dynatemp_range": 0.5}),
    ],
)
def test_what_is_given_overrides_its_own_field(given: dict[str, Any], want: dict[str, Any]) -> None:
    assert RECOMMENDED.resolve(given) == SamplingParams(**want)


def test_a_recommended_mirostat_gives_way_to_a_truncation() -> None:
    assert DefaultSampling({"mirostat": 2}).resolve({"top_k": 3}) == SamplingParams(top_k=3)


def test_a_user_s_mistake_stays_an_error() -> None:
    with pytest.raises(ParameterError, match="top_p is 2"):
        RECOMMENDED.resolve({"top_p": 2})
    with pytest.raises(ParameterError, match="mirostat 1 takes its place"):
        RECOMMENDED.resolve({"mirostat": 1, "top_k": 5})


def test_what_of_it_was_used() -> None:
    assert RECOMMENDED.used(RECOMMENDED.resolve({"top_p": 0.5, "seed": 1})) == {
        "temperature": 0.2,
        "repetition_penalty": 1.1,
        "xtc_probability": 0.5,
    }
    assert RECOMMENDED.used(RECOMMENDED.resolve({"temperature": 0})) == {}


# All ways to an answer


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose file recommends a temperature and a top-k."""
    directory = tmp_path_factory.mktemp("recommending")
    return recommending(tiny_path(directory), directory / "recommending.gguf", temperature=1.7, top_k=11)


def test_every_way_to_an_answer_takes_it(path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with minfer.load(path) as model:
        assert model.default_sampling.params == SamplingParams(temperature=1.7, top_k=11)
        for given in ({}, {"top_k": 3}):
            want = SamplingParams(**{"temperature": 1.7, "top_k": 11, "seed": 1, **given})
            options: Any = {**given, "seed": 1, "max_tokens": 1}
            assert model.stream("hello", **options).sampling == want
            assert model.stream(messages, context_shift=True, **options).sampling == want
            assert model.stream_samples("hello", 2, **options).sampling == want
            with model.conversation(**options) as chat:
                assert chat.ask("hello").sampling == want
        engine = model.batch_engine()
        engine.close()
        assert engine.default_sampling == model.default_sampling


def test_the_text_is_that_of_the_same_options_given(path: Path) -> None:
    with minfer.load(path) as model:
        got = model.generate("hello", max_tokens=24, seed=3, ignore_eos=True)
        want = model.generate("hello", max_tokens=24, seed=3, ignore_eos=True, temperature=1.7, top_k=11)
        others = model.generate("hello", max_tokens=24, seed=3, ignore_eos=True, temperature=0.8, top_k=40)
    assert got.tokens == want.tokens != others.tokens


def test_a_saved_conversation_keeps_what_was_given_and_takes_the_rest_from_the_model(
    path: Path, tmp_path: Path
) -> None:
    with minfer.load(path) as model:
        with model.conversation(top_k=4, max_tokens=2) as chat:
            "".join(chat.ask("hello"))
            chat.save(tmp_path / "x.chat")
        with model.load_conversation(tmp_path / "x.chat") as chat:
            params = chat.ask("hello").sampling
    assert (params.temperature, params.top_k) == (1.7, 4)
