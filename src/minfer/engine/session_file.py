"""A sequence in one file: its tokens, keys and values, so that it goes on another day bit for bit.

The format, version 1; integers are little-endian, digests are BLAKE2b of 32 bytes:

    bytes          what
    8              "MINFERKV"
    4              version
    4              n, bytes of the header
    8              m, bytes of the payload
    n              the header: a JSON object in UTF-8
    32             digest of all bytes before it
    m              the payload: the token ids, i32 each; then for each layer, in the graph's order, the keys of all
                   positions and the values of all positions, as rows in the cache's types
    32             digest of all bytes before it

The header has `kind` (what the file is: "session", "conversation"), `model` (the fingerprint, see `model_identity`)
and `model_name`, `cache` (the types of keys and values, and the bytes of a position), `n_tokens`, `n_cold` (how many of
them a cold run would give the same bits for), `numerics` (what computed them) and `extra` (the caller's own). It has a
digest of its own so that it can be trusted before the payload is read.

A file is written beside its place and renamed to it once it is on the disk. Reading verifies all of it before any
sequence has it: the payload goes to fresh pages, which are given back if the last digest is wrong.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from minfer.engine.hashed_file import DIGEST_BYTES, HashedReader, HashedWriter, replacing
from minfer.engine.kv_cache import KVSequence
from minfer.engine.page_pool import pages_for
from minfer.engine.page_store import KVLayer, PageStore
from minfer.engine.runtime import Runtime, check_tokens
from minfer.errors import ContextError, ParameterError, SessionFileError
from minfer.graph import PAGE_SIZE
from minfer.paths import user_path

VERSION: Final = 1
_MAGIC: Final = b"MINFERKV"
_HEAD: Final = struct.Struct("<8sIIQ")
_TOKEN_DTYPE: Final = np.dtype("<i4")


@dataclass(frozen=True)
class _Header:
    kind: str
    model: str
    model_name: str
    cache: dict[str, Any]
    n_tokens: int
    n_cold: int
    numerics: str
    extra: dict[str, Any]

    def encoded(self) -> bytes:
        try:
            return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ParameterError(f"what is to be saved with a session must be JSON: {error}") from error


def save_sequence(
    path: str | Path,
    runtime: Runtime,
    sequence: KVSequence,
    *,
    kind: str,
    extra: Mapping[str, object],
    overwrite: bool = False,
) -> None:
    """Writes a sequence to a file; a session that was at `path` is replaced once all of it is on the disk. Others may
    go on with the sequence meanwhile: what is written is what it was at the call.

    Args:
        path: where to.
        runtime: whose sequence it is.
        sequence: what to write.
        kind: what the file is; `load_sequence` has to ask for the same.
        extra: what the caller wants to have back with it, as JSON can hold it.
        overwrite: whether a file that is no saved session may be replaced, too.

    Raises:
        ForeignFileError: a file that is no saved session is there.
        SessionFileError: it can't be written there.
        ParameterError: `extra` is not JSON, or the model is closed.
    """
    target = user_path(path, "a session")
    with runtime.lock:
        runtime.check_open()
        snapshot = sequence.fork()
        layers = runtime.store.layers
    try:
        header = _Header(
            kind=kind,
            model=runtime.identity.fingerprint,
            model_name=runtime.identity.name,
            cache=_cache_of(runtime.store),
            n_tokens=snapshot.n_tokens,
            n_cold=snapshot.n_cold,
            numerics=runtime.identity.numerics,
            extra=dict(extra),
        )
        encoded = header.encoded()
        tokens = np.array(snapshot.tokens, _TOKEN_DTYPE)
        with replacing(target, _MAGIC, overwrite=overwrite) as file:
            writer = HashedWriter(file)
            n_payload = tokens.nbytes + snapshot.n_tokens * runtime.store.position_bytes
            writer.write(_HEAD.pack(_MAGIC, VERSION, len(encoded), n_payload))
            writer.write(encoded)
            writer.write_digest()
            writer.write(tokens.view(np.uint8).data)
            for rows in _rows(layers, snapshot.pages, snapshot.n_tokens):
                writer.write(rows)
            writer.write_digest()
    finally:
        snapshot.free()


def load_sequence(path: str | Path, runtime: Runtime, *, kind: str) -> tuple[KVSequence, dict[str, Any]]:
    """Reads a sequence, which is the caller's to free, and what was saved with it.

    Raises:
        SessionFileError: the file can't be read, is damaged, or is of another kind, version, model or cache type; the
            reason is named, and nothing has changed.
        ContextError: it is longer than the context, or the cache has too few pages for it.
        ParameterError: the model is closed.
    """
    runtime.check_open()
    path = user_path(path, "a session")
    try:
        with path.open("rb") as file:
            return _load(HashedReader(file), path, runtime, kind)
    except OSError as error:
        raise SessionFileError(path, f"it can't be read: {error.strerror or error}") from error


def _load(file: HashedReader, path: Path, runtime: Runtime, kind: str) -> tuple[KVSequence, dict[str, Any]]:
    header, n_payload = _read_header(file, path)
    _check_header(header, path, runtime, kind)
    n_tokens = header.n_tokens
    if n_payload != n_tokens * (_TOKEN_DTYPE.itemsize + runtime.store.position_bytes):
        raise SessionFileError(path, f"it is damaged: {n_payload} bytes can't be of {n_tokens} tokens")
    if n_tokens > runtime.n_ctx:
        raise ContextError(
            f"{path} has {n_tokens} tokens, and the context has {runtime.n_ctx}; load the model with a larger n_ctx",
            n_positions=n_tokens,
            n_ctx=runtime.n_ctx,
        )
    with runtime.lock:
        runtime.check_open()
        sequence = runtime.sequence()
        sequence.reserve(n_tokens)
        layers = runtime.store.layers
    try:
        tokens = np.empty(n_tokens, _TOKEN_DTYPE)
        # The pages are nobody else's, so that no lock is needed to fill them.
        file.read_into(tokens.view(np.uint8).data)
        for rows in _rows(layers, sequence.pages, n_tokens):
            file.read_into(rows)
        if not file.check_digest():
            raise SessionFileError(path, "it is damaged: its checksum is wrong")
        check_tokens(tokens.tolist(), runtime.config.n_vocab)
        sequence.append(tokens.tolist())
        sequence.limit_cold(header.n_cold if header.numerics == runtime.identity.numerics else 0)
    except BaseException:
        sequence.free()
        raise
    return sequence, header.extra


def _read_header(file: HashedReader, path: Path) -> tuple[_Header, int]:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise SessionFileError(path, "it is no saved session of minfer")
    _, version, n_header, n_payload = _HEAD.unpack(head)
    if version != VERSION:
        raise SessionFileError(path, f"it is of format version {version}, and this minfer reads version {VERSION}")
    n_bytes = path.stat().st_size
    n_wanted = _HEAD.size + n_header + n_payload + 2 * DIGEST_BYTES
    if n_bytes != n_wanted:
        raise SessionFileError(path, f"it is damaged: it has {n_bytes} bytes and should have {n_wanted}")
    encoded = file.read(n_header)
    if not file.check_digest():
        raise SessionFileError(path, "it is damaged: the checksum of its header is wrong")
    try:
        return _Header(**json.loads(encoded)), n_payload
    except (TypeError, ValueError) as error:
        raise SessionFileError(path, f"its header is not that of version {VERSION}: {error}") from error


def _check_header(header: _Header, path: Path, runtime: Runtime, kind: str) -> None:
    if header.kind != kind:
        raise SessionFileError(path, f"it is a saved {header.kind}, and no {kind}")
    identity = runtime.identity
    if header.model != identity.fingerprint:
        raise SessionFileError(
            path,
            f"it was saved with another model: {header.model_name} ({header.model}), "
            f"and this is {identity.name} ({identity.fingerprint})",
        )
    here = _cache_of(runtime.store)
    if header.n_tokens and header.cache != here:
        raise SessionFileError(
            path, f"its cache has {_shown(header.cache)}, and this model was loaded with {_shown(here)}"
        )


def _rows(layers: Sequence[KVLayer], pages: Sequence[int], n_tokens: int) -> Iterator[memoryview]:
    """The rows of a sequence in the order of the file: views of the pages."""
    for layer in layers:
        for region in (layer.k, layer.v):
            for index, page in enumerate(pages[: pages_for(n_tokens)]):
                n_rows = min(PAGE_SIZE, n_tokens - index * PAGE_SIZE)
                yield region.rows[page * PAGE_SIZE :][:n_rows].data.cast("B")


def _cache_of(store: PageStore) -> dict[str, Any]:
    k, v = store.cache_types
    return {"k": k.name.lower(), "v": v.name.lower(), "position_bytes": store.position_bytes}


def _shown(cache: Mapping[str, Any]) -> str:
    return f"keys in {cache['k']} and values in {cache['v']}"
