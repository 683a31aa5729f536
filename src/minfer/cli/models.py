"""minfer models: what is in the cache."""

from __future__ import annotations

from minfer.cli.console import reports_errors, write_text
from minfer.hub import cached_models
from minfer.settings import read_settings


@reports_errors
def models() -> None:
    """List the models in the cache, by the names that --model takes."""
    cache_dir = read_settings().cache_dir
    found = cached_models(cache_dir)
    if not found:
        write_text(f"no models in {cache_dir} yet; `minfer run PROMPT` fetches the default one", "\n")
        return
    width = max(len(model.name) for model in found)
    for model in found:
        write_text(f"{model.name:<{width}}  {model.n_bytes / 1e6:>9,.1f} MB  {model.path}", "\n")
