"""minfer inspect, minfer models, and the command itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import minfer
from minfer.passes import PIPELINE


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
