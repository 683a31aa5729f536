"""minfer run, as a user meets it: the answer on stdout, the rest on stderr, no traceback for what is not our bug."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import minfer
from recommending import recommending
from tiny_load import tiny_path
from tiny_models import write_unknown_architecture

GREEDY = ("--temperature", "0", "--ignore-eos", "--max-tokens", "8")


def test_a_chat_answer(cli, tiny: Path) -> None:
    done = cli("run", "hello", "--model", tiny, *GREEDY)
    with minfer.load(tiny) as model:
        messages = [{"role": "user", "content": "hello"}]
        want = model.generate(messages, max_tokens=8, temperature=0, ignore_eos=True)
    assert done.returncode == 0
    # Kernels are compiled the first time, which is told if it takes more than a second.
    assert all(line.endswith(" ...") for line in done.stderr.splitlines())
    assert done.stdout == want.text.removesuffix("\n") + "\n"


def test_raw_and_system_and_special(cli, tiny: Path) -> None:
    with minfer.load(tiny) as model:
        raw = model.generate("hello", max_tokens=8, temperature=0, ignore_eos=True)
        messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]
        with_system = model.generate(messages, max_tokens=8, temperature=0, ignore_eos=True)
        special = model.generate("<|im_start|>", max_tokens=8, temperature=0, ignore_eos=True, special=True)
    assert cli("run", "hello", "--raw", "-m", tiny, *GREEDY).stdout == raw.text.removesuffix("\n") + "\n"
    got = cli("run", "hello", "--system", "be", "-m", tiny, *GREEDY).stdout
    assert got == with_system.text.removesuffix("\n") + "\n"
    got = cli("run", "<|im_start|>", "--raw", "--special", "-m", tiny, *GREEDY).stdout
    assert got == special.text.removesuffix("\n") + "\n"


@pytest.mark.parametrize("argument", [(), ("-",)])
def test_a_piped_prompt(cli, tiny: Path, argument: tuple[str, ...]) -> None:
    piped = cli("run", *argument, "--raw", "-m", tiny, *GREEDY, stdin="hello")
    given = cli("run", "hello", "--raw", "-m", tiny, *GREEDY)
    assert (piped.returncode, piped.stdout) == (0, given.stdout)


def test_stats_go_to_stderr(cli, tiny: Path) -> None:
    done = cli("run", "hello", "--raw", "-m", tiny, *GREEDY, "--seed", "3", "--stats")
    assert "prefill: 1 tokens in " in done.stderr
    assert "decode: 7 tokens in " in done.stderr
    assert "generated: 8 tokens; finish: length (max_tokens); seed: 3" in done.stderr
    assert "prefill" not in done.stdout


def test_stats_show_the_pipeline_the_cache_and_what_was_dropped(cli, tiny: Path) -> None:
    options = ("--top-k", "5", "--typical-p", "0.9", "--min-p", "0", "--penalty-window", "8", "--presence-penalty", "1")
    done = cli("run", "hello", "--raw", "-m", tiny, "-n", "60", "--ignore-eos", "--stats", *options, "--n-ctx", "40")
    assert "sampling: penalties -> top_k -> typical_p -> top_p -> temperature -> draw" in done.stderr
    # 3 layers x (keys + values) x 2 heads x 16 values x 4 bytes
    assert "KV cache: 384 bytes a position, " in done.stderr
    assert "dropped" not in done.stderr
    done = cli(
        "run", "hello", "--raw", "-m", tiny, "-n", "60", "--ignore-eos", "--stats", "--n-ctx", "40", "--context-shift"
    )
    assert "generated: 60 tokens; finish: length (max_tokens)" in done.stderr
    assert "dropped from the context: 36 tokens" in done.stderr


def test_stats_tell_who_recommends_what_was_used(cli, tiny: Path, tmp_path: Path) -> None:
    file = recommending(tiny, tmp_path / "recommending.gguf", temperature=0.6, top_k=20)
    run = ("run", "hello", "--raw", "-m", file, "-n", "4", "--stats")
    by_file = "recommended by the model's file"
    assert f"temperature -> draw; temperature 0.6, top_k 20 {by_file}\n" in cli(*run).stderr
    assert f"; temperature 0.6 {by_file}\n" in cli(*run, "--top-k", "5").stderr
    samples = cli(*run, "--n-samples", "2").stderr
    assert samples.count(f"; temperature 0.6, top_k 20 {by_file}\n") == 2
    assert "recommended" not in cli(*run, "--temperature", "0").stderr


def test_a_recommendation_that_can_t_be_used_is_a_warning(cli, tiny: Path, tmp_path: Path) -> None:
    file = recommending(tiny, tmp_path / "recommending.gguf", temperature=-3)
    done = cli("run", "hello", "--raw", "-m", file, *GREEDY)
    assert done.returncode == 0
    assert "warning: recommending.gguf recommends a sampling that can't be used" in done.stderr
    assert "general.sampling.temp: temperature is -3.0" in done.stderr


def test_every_sampling_parameter_reaches_the_sampler(cli, tiny: Path) -> None:
    given = {
        "temperature": 0.9,
        "top_k": 9,
        "seed": 5,
        "repetition_penalty": 1.2,
        "dry_multiplier": 0.5,
        "xtc_probability": 0.3,
        "top_n_sigma": 2.0,
        "dynatemp_range": 0.2,
        "min_keep": 2,
    }
    options = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    options += ["--logit-bias", "70=3", "--logit-bias", "71=-inf", "--dry-sequence-breaker", "x"]
    options += ["--samplers", "logit_bias,penalties,dry,xtc,top_k,top_p,min_p,top_n_sigma,temperature"]
    done = cli("run", "hello", "--raw", "-m", tiny, "-n", "20", "--ignore-eos", *options)
    samplers = options[-1].split(",")
    with minfer.load(tiny) as model:
        more = {"logit_bias": {70: 3.0, 71: float("-inf")}, "dry_sequence_breakers": ["x"], "samplers": samplers}
        want = model.generate("hello", max_tokens=20, ignore_eos=True, **given, **more)
    assert (done.returncode, done.stdout) == (0, want.text.removesuffix("\n") + "\n")


def test_several_samples(cli, tiny: Path) -> None:
    options = ("--raw", "-m", tiny, "-n", "8", "--ignore-eos", "--seed", "3")
    done = cli("run", "hello", *options, "--n-samples", "3")
    with minfer.load(tiny) as model:
        samples = model.samples("hello", 3, max_tokens=8, ignore_eos=True, seed=3, logprobs=0)
    texts = [sample.text.removesuffix("\n") for sample in samples]
    assert done.stdout == "".join(f"--- {i + 1} of 3, seed {3 + i}\n{text}\n" for i, text in enumerate(texts))
    best = cli("run", "hello", *options, "--best-of", "3")
    assert best.stdout.removesuffix("\n") == max(samples, key=lambda sample: sample.mean_logprob).text.removesuffix(
        "\n"
    )


def test_the_full_context_is_told(cli, tiny: Path) -> None:
    done = cli("run", "hello", "--raw", "-m", tiny, "--n-ctx", "6", "-t", "0", "--ignore-eos")
    assert done.returncode == 0
    assert "the context is full" in done.stderr


def bad_files(directory: Path) -> dict[str, Path]:
    whole = tiny_path(directory).read_bytes()
    (directory / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (directory / "text.gguf").write_text("this is a text\n")
    (directory / "empty.gguf").touch()
    (directory / "folder").mkdir()
    write_unknown_architecture(directory / "aardvark.gguf")
    return {name: directory / name for name in ("cut.gguf", "text.gguf", "empty.gguf", "folder", "aardvark.gguf", "no")}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cut.gguf", "cut short or damaged"),
        ("text.gguf", "not a GGUF file"),
        ("empty.gguf", "the file is empty"),
        ("folder", "a directory"),
        ("aardvark.gguf", "architecture 'aardvark' is not supported; supported: llama, qwen2, qwen3"),
        ("no", "no such file"),
    ],
)
def test_bad_models(cli, tmp_path: Path, name: str, message: str) -> None:
    path = bad_files(tmp_path)[name]
    done = cli("run", "hello", "--model", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("--temperature", "-1"), "--temperature is -1.0; it must be", 1),
        (("--max-tokens", "0"), "--max-tokens must be an integer of at least 1", 1),
        (("--stop", ""), "--stop must be non-empty strings", 1),
        (("--raw", "--system", "x"), "--system is for the chat template", 1),
        (("--raw", "--chat-template", "chatml"), "--chat-template is for the chat template", 1),
        (("--chat-template", "chatlm"), "none of the known names: chatml, ", 1),
        (("--special",), "--special goes with --raw", 1),
        (("--context-shift",), "--context-shift goes with --raw", 1),
        (("--n-samples", "0"), "Invalid value for '--n-samples'", 2),
        (("--n-samples", "2", "--best-of", "2"), "--n-samples shows every answer, and --best-of one", 1),
        (("--logit-bias", "x"), "--logit-bias is 'x'; it must be a token id and a number", 1),
        (("--samplers", "magic"), "magic", 1),
        (("--n-ctx", "2"), "the context of 2; shorten the prompt, or load the model with a larger --n-ctx", 1),
        (("--threads", "0"), "--threads must be an integer of at least 1", 1),
        (("--backend", "gpu"), "backend 'gpu' is not supported", 1),
        (("--cache-type", "q3"), "cache type 'q3' is not supported; supported: f32, f16, q8_0", 1),
        (("--no-such-option",), "No such option", 2),
        (("--temprature", "1"), "--temperature", 2),
        (("--mirostat", "1", "--top-k", "5"), "--top-k is 5, and mirostat 1 takes its place; set --top-k to 0", 1),
        (("--seed", "x"), "unable to parse string as an integer", 2),
    ],
)
def test_bad_arguments(cli, tiny: Path, arguments: tuple[str, ...], message: str, code: int) -> None:
    done = cli("run", "hello", "--model", tiny, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt(cli, tiny: Path, prompt: str) -> None:
    done = cli("run", prompt, "--model", tiny)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the prompt is empty" in done.stderr


def test_a_misspelt_variable(cli, tiny: Path) -> None:
    done = cli("run", "hello", "--model", tiny, MINFER_TRASE="x")
    assert done.returncode == 1
    assert "unknown environment variable MINFER_TRASE" in done.stderr


def start(tiny: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "minfer", "run", "hello", "--raw", "-m", str(tiny), "--ignore-eos", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"}
    )


def test_ctrl_c_ends_it_and_keeps_what_was_said(tiny: Path) -> None:
    process = start(tiny, "-n", "200", "--seed", "1", "--stats")
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert first + out
    assert b"Traceback" not in err
    # It may have come to its end before the signal arrived.
    assert process.returncode in (0, 130)
    assert b"generated:" in err


def test_a_closed_pipe_ends_it_quietly(tiny: Path) -> None:
    process = start(tiny, "-n", "200", "--seed", "1")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert err == b""
    assert process.wait(timeout=30) in (0, 141)
