"""What tests of downloads share: wheels, a stand-in for pip, and a progress that remembers."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path

FAKE_PIP = str(Path(__file__).with_name("hub") / "fake_pip.py")


def make_wheel(directory: Path, members: dict[str, bytes]) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@dataclass
class Recorder:
    """A progress that writes down its phases: what they are, their lengths, what was done, and whether they ended."""

    phases: list[list[object]] = field(default_factory=list)

    def start(self, description: str, total_bytes: int | None) -> None:
        self.phases.append([description, total_bytes, 0, "running"])

    def advance(self, n_bytes: int) -> None:
        assert n_bytes >= 0
        self.phases[-1][2] += n_bytes  # type: ignore[operator]

    def finish(self) -> None:
        assert self.phases[-1][3] == "running"
        self.phases[-1][3] = "finished"
