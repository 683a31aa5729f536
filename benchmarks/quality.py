#!/usr/bin/env python3
"""How far a backend's distributions are from float32 arithmetic on the same weights, beside llama.cpp's.

usage: quality.py [--backend NAME] [--threads N] [--cache-type f32|f16|q8_0] [--draws N] [--json FILE]

For every model of tests/data/logits-*.json that is in the cache: the mean over its prompts of KL(golden, minfer) at
the last position, in nats, over the golden's 50 likeliest tokens with all others as one. Exit code 1 if one is larger
than llama.cpp's own (0.3.36, measured in the same way), or if a likeliest token of the file as it is differs.

Rounding activations to 8 bits is chaotic: a change of the smallest number in the model draws all later roundings anew,
and the mean over eight prompts changes by a factor of two. With --draws N, the mean is taken over N such changes: the
file as it is, and copies whose epsilon in the norms is larger by 0.1 %, 0.2 %, ... (which in float32 arithmetic moves
logits by less than 10^-4). Only that tells kernels apart.
"""

from __future__ import annotations

import argparse
import json
import mmap
import shutil
import statistics
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from records import append_lines, facts, show_facts

import minfer
from minfer.backends import BACKEND_NAMES
from minfer.hub import models_dir
from minfer.settings import read_settings

GOLDENS = Path(__file__).parent.parent / "tests" / "data"
FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}
NUDGE = 1e-3
EPSILON = b".attention.layer_norm_rms_epsilon"
GGUF_FLOAT32 = 6
LLAMA_CPP = {"smollm2-135m": 0.0031, "qwen2.5-coder-0.5b": 0.0008}


def divergence(golden: Mapping[str, Any], logits: NDArray[np.float32]) -> float:
    """KL(golden, softmax(logits)) in nats; logits [n_vocab]. The tail is one event: never negative."""
    wide = logits.astype(np.float64)
    golden_log = np.array(golden["top_logits"]) - golden["logsumexp"]
    log = wide[golden["top_ids"]] - (np.log(np.exp(wide - wide.max()).sum()) + wide.max())
    p, q = np.exp(golden_log), np.exp(log)
    tail_p, tail_q = max(1 - p.sum(), 1e-9), max(1 - q.sum(), 1e-9)
    return float((p * (golden_log - log)).sum() + tail_p * np.log(tail_p / tail_q))


def measure(name: str, path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of one model."""
    goldens = json.loads((GOLDENS / f"logits-{name}.json").read_text(encoding="utf-8"))["rows"]
    means, n_same_top = [], 0
    with tempfile.TemporaryDirectory() as directory:
        for draw in range(arguments.draws):
            file = path if draw == 0 else nudged(path, Path(directory) / "nudged.gguf", draw * NUDGE)
            with minfer.load(
                file, backend=arguments.backend, threads=arguments.threads, cache_type=arguments.cache_type
            ) as model:
                logits = [model.logits(golden["tokens"]) for golden in goldens]
            pairs = list(zip(goldens, logits, strict=True))
            means.append(statistics.mean(divergence(golden, found) for golden, found in pairs))
            if draw == 0:
                n_same_top = sum(int(found.argmax()) == golden["top_ids"][0] for golden, found in pairs)
    return {"kl": statistics.mean(means), "kl_draws": means, "n_prompts": len(goldens), "n_same_top": n_same_top}


def nudged(path: Path, copy: Path, share: float) -> Path:
    """Copies a GGUF file, with an epsilon of the norms that is larger by `share` of it."""
    shutil.copyfile(path, copy)
    with copy.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = content.find(EPSILON) + len(EPSILON)
        kind, epsilon = struct.unpack_from("<If", content, at)
        if at < len(EPSILON) or kind != GGUF_FLOAT32:
            raise SystemExit(f"{path} has no {EPSILON.decode()}")
        struct.pack_into("<f", content, at + 4, epsilon * (1 + share))
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKEND_NAMES, default=BACKEND_NAMES[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-type", default="f16")
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    worse = []
    for name, file in FILES.items():
        path = models_dir(read_settings().cache_dir) / file
        if not path.exists():
            print(f"{path} is not there (scripts/fetch-test-models): left out", file=sys.stderr)
            continue
        found = measure(name, path, arguments)
        known = facts(path, arguments.threads) | {"backend": arguments.backend, "cache_type": arguments.cache_type}
        if not lines:
            show_facts({key: value for key, value in known.items() if key != "model"})
        lines.append({**known, "task": "quality", **found, "llama.cpp": LLAMA_CPP[name]})
        print(f"{name:<20} KL {found['kl']:.5f}   llama.cpp {LLAMA_CPP[name]:.5f}", end="")
        print(f"   likeliest token as golden: {found['n_same_top']} of {found['n_prompts']}", end="")
        draws = found["kl_draws"]
        print(f"   draws from {min(draws):.5f} to {max(draws):.5f}" if len(draws) > 1 else "")
        if found["kl"] > LLAMA_CPP[name] or found["n_same_top"] < found["n_prompts"]:
            worse.append(name)
    append_lines(arguments.json, lines)
    if not lines:
        raise SystemExit("no model was measured")
    if worse:
        raise SystemExit(f"worse than llama.cpp: {', '.join(worse)}")


if __name__ == "__main__":
    main()
