"""minfer inspect, minfer models, and the command itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import minfer
from minfer.hub import DEFAULT_MODEL, KNOWN_MODELS, known_model_path
from minfer.passes import PIPELINE
from recommending import recommending


def test_a_file_is_shown(cli, tiny: Path) -> None:
    done = cli("inspect", tiny)
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "general.architecture (string) = 'llama'",
        "llama.attention.head_count (uint32) = 4",
        "tokenizer.ggml.tokens (array) = string[300]",
        "blk.2.ffn_down.weight   F32      64 x 96",
        "n_layers = 3",
        "n_kv_heads = 2",
        # 3 layers x (keys + values) x 2 heads x 16 values x 4 bytes
        "KV bytes a position, f32 = 768",
        "KV bytes a position, f16 = 384",
        "layers 0-2: LayerConfig",
        "read from the metadata llama.block_count",
    ):
        assert " ".join(line.split()) in " ".join(done.stdout.split())
    assert "q8_0" not in done.stdout


def test_the_graph_after_each_pass(cli, tiny: Path) -> None:
    done = cli("inspect", tiny, "--graph")
    headings = [line for line in done.stdout.splitlines() if line.startswith("== ")]
    assert [heading.split()[1].rstrip(":") for heading in headings] == ["built", *(name for name, _ in PIPELINE)]
    assert "GatedMatMul" in done.stdout


def test_one_pass_in_other_formats(cli, tiny: Path) -> None:
    built = json.loads(cli("inspect", tiny, "--graph", "--after", "built", "--format", "json").stdout)
    planned = json.loads(cli("inspect", tiny, "--graph", "--format", "json").stdout)
    assert len(planned["nodes"]) < len(built["nodes"])
    assert "memory" in planned
    assert "memory" not in built
    assert cli("inspect", tiny, "--graph", "--after", "prune", "--format", "dot").stdout.startswith("digraph")


def test_bad_uses(cli, tiny: Path) -> None:
    done = cli("inspect", tiny, "--graph", "--after", "magic")
    assert done.returncode == 1
    assert "there is no pass 'magic'; there are built, " in done.stderr
    assert "--after and --format go with --graph" in cli("inspect", tiny, "--after", "prune").stderr
    assert cli("inspect", "nowhere").returncode == 1


def test_models_lists_the_cache(cli, tiny: Path, tmp_path: Path) -> None:
    cache = {"MINFER_CACHE_DIR": str(tmp_path / "cache")}
    assert "no models in" in cli("models", **cache).stdout
    (tmp_path / "cache" / "models").mkdir(parents=True)
    shutil.copy(tiny, tmp_path / "cache" / "models" / "mine.gguf")
    assert cli("models", **cache).stdout.startswith("mine ")
    assert cli("run", "hello", "-m", "mine", "-n", "2", "--ignore-eos", **cache).returncode == 0


def test_the_command_itself(cli) -> None:
    assert cli("--version").stdout == f"minfer {minfer.__version__}\n"
    assert "run" in cli("--help").stdout
    assert "--temperature" in cli("run", "--help").stdout
    assert cli("frobnicate").returncode == 2


def test_the_models_that_a_name_fetches(cli) -> None:
    done = cli("models", "--available")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * len(KNOWN_MODELS)
    for index, model in enumerate(KNOWN_MODELS):
        name, source, checksum = lines[3 * index : 3 * index + 3]
        assert name.split()[:3] == [model.name, f"{model.n_bytes / 1e6:,.1f}", "MB"]
        assert model.licence in name
        assert str(model.source) in source
        assert checksum.split() == ["sha256", model.sha256]
    assert "`default`" in lines[0]
    assert "in the cache" not in done.stdout


def test_a_model_in_the_cache_is_marked(cli, tmp_path: Path) -> None:
    path = known_model_path(DEFAULT_MODEL, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    marked = [
        line
        for line in cli("models", "--available", MINFER_CACHE_DIR=str(tmp_path)).stdout.splitlines()
        if "in the cache" in line
    ]
    assert [line.split()[0] for line in marked] == [DEFAULT_MODEL.name]


def test_who_recommends_the_sampling_is_shown(cli, tiny: Path, tmp_path: Path) -> None:
    done = cli("inspect", tiny)
    want = (
        "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 (minfer's defaults; nobody recommends others for this model)"
    )
    assert want in done.stdout
    file = recommending(tiny, tmp_path / "recommending.gguf", temperature=0.6, top_p=0.95)
    done = cli("inspect", file)
    assert "temperature 0.6, top_p 0.95 (recommended by the model's file)" in done.stdout
    assert "general.sampling.temp (float32) = 0.6" in done.stdout
    assert "general.sampling.top_p (float32) = 0.9" in done.stdout
