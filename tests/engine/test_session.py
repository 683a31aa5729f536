"""Sessions that fork, are cut and go on: the same bits as a sequence that was computed alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minfer.backends import Backend
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.engine.runtime import Runtime
from minfer.engine.session import Session
from minfer.errors import ParameterError
from tiny_cache_types import KV_TYPES
from tiny_load import tiny_path
from tiny_runtime import same_bits, tiny_runtime, whole_logits

TOKENS = np.random.default_rng(5).integers(0, 300, 150).tolist()
OTHER = np.random.default_rng(6).integers(0, 300, 150).tolist()


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest, tiny_dir: Path) -> Backend:
    return ReferenceBackend() if request.param == "reference" else CpuBackend(kernel_cache=tiny_dir / "kernels")


@pytest.fixture(scope="module", params=KV_TYPES)
def runtime(request: pytest.FixtureRequest, backend: Backend, tiny_dir: Path) -> Iterator[Runtime]:
    # A head of 32 values, a whole number of q8_0 blocks.
    path = tiny_path(tiny_dir, "qwen3")
    with tiny_runtime(path, backends=(backend,), kv_types=KV_TYPES[request.param], max_tokens=250) as run:
        yield run
        assert run.pool.n_free == run.pool.n_pages


@pytest.mark.parametrize("n_shared", [1, 63, 64, 65, 100])
def test_forks_go_on_by_themselves(runtime: Runtime, n_shared: int) -> None:
    texts = [[*TOKENS[:n_shared], *rest] for rest in (OTHER[:35], TOKENS[-35:], OTHER[-35:])]
    want = [whole_logits(runtime, text)[n_shared:] for text in texts]
    with Session(runtime) as first:
        first.extend(TOKENS[:n_shared])
        with first.fork() as second, first.fork() as third:
            # In turns, so that each writes while the others still hold the shared page.
            for at in range(0, 35, 7):
                for session, text, logits in zip((first, second, third), texts, want, strict=True):
                    got = session.extend_all(text[n_shared + at : n_shared + at + 7])
                    assert same_bits(got, logits[at : at + 7])
            assert [s.tokens for s in (first, second, third)] == [tuple(text) for text in texts]


def test_a_fork_between_two_chunks_is_not_written_to(runtime: Runtime) -> None:
    forks: list[Session] = []
    with Session(runtime) as session:
        session.extend(TOKENS[:100], chunk=30, progress=lambda done, total: forks.append(session.fork()))
    assert [fork.n_tokens for fork in forks] == [30, 60, 90, 100]
    for fork in forks:
        n_tokens = fork.n_tokens
        assert same_bits(fork.extend(OTHER[:5]), _last(runtime, [*TOKENS[:n_tokens], *OTHER[:5]]))
        fork.close()


def test_a_fork_is_not_written_to_even_if_the_session_is_cut_between_two_chunks(runtime: Runtime) -> None:
    forks: list[Session] = []
    with Session(runtime) as session:

        def cut(done: int, total: int) -> None:
            if done == 50:
                forks.append(session.fork())
                session.truncate(10)

        session.extend(TOKENS[:100], chunk=50, progress=cut)
        assert session.tokens == (*TOKENS[:10], *TOKENS[50:100])
    (fork,) = forks
    assert same_bits(fork.extend(OTHER[:5]), _last(runtime, [*TOKENS[:50], *OTHER[:5]]))
    fork.close()


@pytest.mark.parametrize("n_kept", [1, 30, 64, 90])
def test_a_cut_session_goes_on_as_if_the_rest_had_never_been(runtime: Runtime, n_kept: int) -> None:
    want = whole_logits(runtime, [*TOKENS[:n_kept], *OTHER[: 96 - n_kept]])[n_kept:]
    with Session(runtime) as session:
        session.extend(TOKENS[:96])
        with session.fork() as whole:
            session.truncate(n_kept)
            assert session.tokens == tuple(TOKENS[:n_kept])
            assert same_bits(session.extend_all(OTHER[: 96 - n_kept]), want)
            assert same_bits(whole.extend(TOKENS[96:100]), _last(runtime, TOKENS[:100]))


def _last(runtime: Runtime, tokens: list[int]) -> np.ndarray:
    with Session(runtime) as session:
        return session.extend(tokens)


def test_a_closed_session_says_so(runtime: Runtime) -> None:
    session = Session(runtime)
    session.extend([1])
    session.close()
    session.close()
    for use in (session.fork, lambda: session.truncate(0), lambda: session.extend([1])):
        with pytest.raises(ParameterError, match="the session is closed"):
            use()
