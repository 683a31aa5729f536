"""The chat in the README, with the real default model, at a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from real_models import default_model
from terminal import Terminal

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.default_model
def test_the_transcript_in_the_readme_is_true(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / default_model().name).symlink_to(default_model())
    found = re.search(r"```\n(\$ minfer chat.*?)\n```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    sessions = [part.strip("\n") for part in re.split(r"^\$ minfer ", found[1], flags=re.MULTILINE) if part]
    assert len(sessions) == 2
    for session in sessions:
        command, _, shown = session.partition("\n")
        entries = re.findall(r"^>>> (.*)$", shown, re.MULTILINE)
        assert entries
        arguments = [argument.strip('"') for argument in re.findall(r'"[^"]*"|\S+', command)]
        with Terminal(*arguments, cwd=tmp_path, environment={"MINFER_CACHE_DIR": str(tmp_path)}) as terminal:
            for entry in entries:
                terminal.ask(entry)
            terminal.wait_for_prompt()
            terminal.type("\x04")
            assert terminal.end() == 0
            lines = terminal.text().replace(os.sep, "/")
        assert lines.startswith(shown), lines
