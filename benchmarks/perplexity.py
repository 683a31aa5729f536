#!/usr/bin/env python3
"""What a smaller KV cache costs: perplexity over a text with each cache type, beside f32.

usage: perplexity.py MODEL [--text FILE ...] [--tokens N] [--types TYPE ...] [--backend NAME] [--threads N]
                     [--json FILE]

A text of N tokens is one sequence, and every token after the first is predicted from all before it. All types are run
side by side, so that they can be compared token by token: besides the perplexity, the mean difference of -ln p to f32
with its standard error (a difference below two of these is no difference), the mean KL(f32, type) in nats, and the
share of positions whose likeliest token is that of f32. Without --text it is the project's own documentation.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from records import append_lines, facts, show_facts

import minfer
from minfer.backends import BACKEND_NAMES

DOCS = Path(__file__).parent.parent / "docs"
TEXTS = [DOCS / f"{name}.md" for name in ("kernel-language", "sampling", "architecture")]
CHUNK = 64


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def measure(path: str, tokens: list[int], arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The figures of each type; the first one is what the others are compared with."""
    losses: dict[str, list[float]] = {name: [] for name in arguments.types}
    divergences: dict[str, list[float]] = {name: [] for name in arguments.types}
    n_same_top = dict.fromkeys(arguments.types, 0)
    with ExitStack() as stack:
        sessions = {}
        n_bytes = {}
        for name in arguments.types:
            model = stack.enter_context(
                minfer.load(path, len(tokens), arguments.threads, arguments.backend, cache_type=name)
            )
            sessions[name] = stack.enter_context(model.session())
            n_bytes[name] = model.kv_position_bytes
        for start in range(0, len(tokens) - 1, CHUNK):
            part = tokens[start : min(start + CHUNK, len(tokens) - 1)]
            following = tokens[start + 1 : start + 1 + len(part)]
            first: NDArray[np.float64] | None = None
            for name, session in sessions.items():
                found = log_softmax(session.extend_all(part))
                losses[name] += (-found[np.arange(len(part)), following]).tolist()
                first = found if first is None else first
                divergences[name] += (np.exp(first) * (first - found)).sum(axis=1).tolist()
                n_same_top[name] += int((first.argmax(axis=1) == found.argmax(axis=1)).sum())
            if sys.stderr.isatty():
                print(f"{start + len(part)} of {len(tokens) - 1} tokens", end="\r", file=sys.stderr)
    exact = np.array(losses[arguments.types[0]])
    results = {}
    for name in arguments.types:
        difference = np.array(losses[name]) - exact
        results[name] = {
            "bytes_per_position": n_bytes[name],
            "perplexity": float(np.exp(np.mean(losses[name]))),
            "difference": float(difference.mean()),
            "standard_error": float(difference.std(ddof=1) / np.sqrt(len(difference))),
            "kl": float(np.mean(divergences[name])),
            "same_top": n_same_top[name] / len(exact),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, nargs="+", default=TEXTS)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--types", nargs="+", default=["f32", "f16", "q8_0", "k:f16,v:q8_0"])
    parser.add_argument("--backend", choices=BACKEND_NAMES, default=BACKEND_NAMES[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in arguments.text)
    tokenizer = minfer.load_tokenizer(arguments.model)
    tokens = tokenizer.with_bos(tokenizer.tokenize(text))[: arguments.tokens]
    known: dict[str, Any] = facts(arguments.model, arguments.threads)
    known |= {"text": hashlib.sha256(text.encode()).hexdigest()[:12], "n_tokens": len(tokens)}
    show_facts(known)
    results = measure(arguments.model, tokens, arguments)
    for name, found in results.items():
        print(
            f"{name:<14} {found['bytes_per_position']:>7.0f} bytes a position   perplexity {found['perplexity']:.4f}   "
            f"-ln p {found['difference']:+.5f} +- {found['standard_error']:.5f}   KL {found['kl']:.6f}   "
            f"likeliest token as {arguments.types[0]}: {found['same_top']:.2%}"
        )
    append_lines(arguments.json, [known | {"task": "perplexity", "cache_type": k, **v} for k, v in results.items()])


if __name__ == "__main__":
    main()
