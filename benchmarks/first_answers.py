#!/usr/bin/env python3
"""How many plain questions a model answers rightly: greedily and as it is sampled by default, beside the reference.

usage: first_answers.py [MODEL] [--draws N] [--max-tokens N] [--threads N] [--answers] [--json FILE]

30 questions, each with the answers that are accepted. They are asked greedily of both backends, the reference with keys
and values in float32; then, of the default backend, N times with the model's own sampling (seeds 0 to N - 1) and with
minfer's defaults for models of which nothing is known. Where the greedy answers part, the first token that differs is
shown with the margin of the reference's choice: what rounding to 8 bits alone turned.

What is accepted is a word in the answer, which may still be wrong in other ways; --answers shows the texts.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from records import append_lines, facts, show_facts

import minfer
from minfer.engine import DefaultSampling
from minfer.sampling import SamplingParams


@dataclass(frozen=True)
class Question:
    """A question, and a regular expression that a right answer has somewhere, in any case."""

    text: str
    accepted: str


QUESTIONS = (
    Question("What is the capital of France?", r"\bParis\b"),
    Question("What is the capital of Italy?", r"\bRome\b"),
    Question("What is the capital of Japan?", r"\bTokyo\b"),
    Question("What is the capital of Spain?", r"\bMadrid\b"),
    Question("What is 2+2?", r"\b(4|four)\b"),
    Question("What is 3 times 4?", r"\b(12|twelve)\b"),
    Question("What is 10 minus 7?", r"\b(3|three)\b"),
    Question("How many days are in a week?", r"\b(7|seven)\b"),
    Question("How many months are in a year?", r"\b(12|twelve)\b"),
    Question("How many legs does a spider have?", r"\b(8|eight)\b"),
    Question("How many minutes are in an hour?", r"\b(60|sixty)\b"),
    Question("What colour is the sky on a clear day?", r"\bblue\b"),
    Question("What colour is grass?", r"\bgreen\b"),
    Question("What is the opposite of hot?", r"\b(cold|cool)\b"),
    Question("What is the opposite of up?", r"\bdown\b"),
    Question("Which planet do we live on?", r"\bEarth\b"),
    Question("Which planet is known as the Red Planet?", r"\bMars\b"),
    Question("What is the largest planet in the solar system?", r"\bJupiter\b"),
    Question("What is the largest ocean on Earth?", r"\bPacific\b"),
    Question("What is water made of?", r"\bhydrogen\b.*\boxygen\b|\boxygen\b.*\bhydrogen\b|H2O|H₂O"),
    Question("At what temperature does water boil, in degrees Celsius?", r"\b100\b"),
    Question("Which gas do plants take in from the air?", r"\bcarbon dioxide\b|\bCO2\b"),
    Question("What do bees make?", r"\bhoney\b"),
    Question("Which animal says meow?", r"\bcats?\b"),
    Question("Who wrote Romeo and Juliet?", r"\bShakespeare\b"),
    Question("Who painted the Mona Lisa?", r"\bLeonardo\b|\bda Vinci\b"),
    Question("Who was the first president of the United States?", r"\bWashington\b"),
    Question("In which country are the pyramids of Giza?", r"\bEgypt\b"),
    Question("Which language is spoken in Brazil?", r"\bPortuguese\b"),
    Question("How do you say hello in Spanish?", r"\bhola\b"),
)


def is_right(question: Question, answer: str) -> bool:
    """Whether an answer is accepted."""
    return re.search(question.accepted, answer, re.IGNORECASE | re.DOTALL) is not None


def ask(model: minfer.Model, question: Question, params: SamplingParams, max_tokens: int) -> minfer.Generation:
    """One answer."""
    given = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    given["repetition_penalty"] = params.repetition_penalty
    return model.generate([{"role": "user", "content": question.text}], max_tokens=max_tokens, **given)


def sampled(
    model: minfer.Model, defaults: DefaultSampling, n_draws: int, max_tokens: int, shows: bool
) -> list[list[bool]]:
    """For each question, whether each draw was right."""
    rows = []
    for question in QUESTIONS:
        row = []
        for seed in range(n_draws):
            answer = ask(model, question, defaults.resolve({"seed": seed}), max_tokens)
            row.append(is_right(question, answer.text))
            if shows:
                print(f"  [{defaults.source.value} {seed}] {question.text} {answer.text!r}")
        rows.append(row)
    return rows


def parting(model: minfer.Model, question: Question, mine: Sequence[int], others: Sequence[int]) -> tuple[str, float]:
    """Where two greedy answers part: the tokens there, and by how much the reference `model` prefers its own."""
    n_same = next((i for i, pair in enumerate(zip(mine, others, strict=False)) if pair[0] != pair[1]), None)
    if n_same is None:
        n_same = min(len(mine), len(others))
    tokenizer = model.tokenizer
    rendered = tokenizer.apply_template([{"role": "user", "content": question.text}])
    prompt = tokenizer.tokenize(rendered, special=True)
    logits = model.logits([*prompt, *others[:n_same]])
    best = np.sort(logits)[-2:]
    texts = [tokenizer.detokenize([ids[n_same]]) if n_same < len(ids) else "(end)" for ids in (mine, others)]
    return f"token {n_same + 1}: {texts[0]!r}, the reference {texts[1]!r}", float(best[1] - best[0])


def main() -> int:
    """Asks, and prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="default")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--answers", action="store_true", help="show every answer")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    greedy = SamplingParams(temperature=0)
    n_draws, max_tokens = arguments.draws, arguments.max_tokens
    with (
        minfer.load(arguments.model, n_ctx=512, threads=arguments.threads) as model,
        minfer.load(arguments.model, n_ctx=512, backend="reference", cache_type="f32") as reference,
    ):
        known = facts(model.name, arguments.threads or 0)
        show_facts(known)
        mine = [ask(model, question, greedy, max_tokens) for question in QUESTIONS]
        theirs = [ask(reference, question, greedy, max_tokens) for question in QUESTIONS]
        own = sampled(model, model.default_sampling, n_draws, max_tokens, arguments.answers)
        general = sampled(model, DefaultSampling(), n_draws, max_tokens, arguments.answers)
        print(f"\n{'question':<58} greedy  reference  own {n_draws}x  minfer's {n_draws}x")
        for i, question in enumerate(QUESTIONS):
            marks = ["right" if is_right(question, each[i].text) else "-" for each in (mine, theirs)]
            print(f"{question.text:<58} {marks[0]:<7} {marks[1]:<10} {sum(own[i]):>5}  {sum(general[i]):>9}")
            if arguments.answers:
                print(f"    {mine[i].text!r}\n    {theirs[i].text!r}")
        counts = {
            "greedy": sum(is_right(q, a.text) for q, a in zip(QUESTIONS, mine, strict=True)),
            "reference_greedy": sum(is_right(q, a.text) for q, a in zip(QUESTIONS, theirs, strict=True)),
            "own": sum(map(sum, own)) / n_draws,
            "minfer": sum(map(sum, general)) / n_draws,
        }
        print(f"\nright of {len(QUESTIONS)}: " + ", ".join(f"{name} {count:g}" for name, count in counts.items()))
        print("\nwhere the greedy answers part, and the margin of the reference's choice there")
        n_parted, margins = 0, []
        for question, own_answer, other in zip(QUESTIONS, mine, theirs, strict=True):
            if own_answer.tokens != other.tokens:
                n_parted += 1
                where, margin = parting(reference, question, own_answer.tokens, other.tokens)
                margins.append(margin)
                turned = is_right(question, own_answer.text) is not is_right(question, other.text)
                print(f"{question.text:<58} {where}; margin {margin:.2f}{'; the verdict turns' if turned else ''}")
        print(f"{n_parted} of {len(QUESTIONS)} part")
    line = {**known, "benchmark": "first_answers", "draws": n_draws, **counts, "n_parted": n_parted, "margins": margins}
    append_lines(arguments.json, [line])
    return 0


if __name__ == "__main__":
    sys.exit(main())
