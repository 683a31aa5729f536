"""How many cores a process may use, and giving one away."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from minfer.backends.cpu import os_threads


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "400000 100000\n"}, 4.0),
        ({"cpu.max": "something else\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "many\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (
            {"cpu.max": "50000 100000\n", "cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        (
            {"cpu.max": "max 100000\n", "cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            1.5,
        ),
    ],
)
def test_the_limit_of_a_control_group(tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
    assert os_threads._control_group_limit(write(tmp_path, files), tmp_path / "no such file") == limit


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/user/mine\n", {"user/mine/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/user/mine\n", {"user/mine/cpu.max": "max 100000\n", "user/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/user/mine\n", {"user/mine/cpu.max": "300000 100000\n", "user/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/elsewhere\n", {"cpu.max": "400000 100000\n"}, 4.0),
        (
            "3:cpu,cpuacct:/mine\n2:memory:/mine\n",
            {"cpu/mine/cpu.cfs_quota_us": "150000\n", "cpu/mine/cpu.cfs_period_us": "100000\n"},
            1.5,
        ),
    ],
)
def test_the_groups_of_the_process_and_those_above_count(
    tmp_path: Path, membership: str, files: dict[str, str], limit: float
) -> None:
    (tmp_path / "membership").write_text(membership)
    assert os_threads._control_group_limit(write(tmp_path / "root", files), tmp_path / "membership") == limit


@pytest.mark.parametrize(
    ("n_allowed", "limit", "n_cores"),
    [(8, None, 8), (8, 4.0, 4), (8, 2.5, 3), (8, 0.5, 1), (2, 16.0, 2), (1, None, 1)],
)
def test_usable_cores_are_the_smaller_of_affinity_and_limit_rounded_up(
    monkeypatch: pytest.MonkeyPatch, n_allowed: int, limit: float | None, n_cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(n_allowed)), raising=False)
    monkeypatch.setattr(os_threads, "_control_group_limit", lambda root, membership: limit)
    assert os_threads.n_usable_cores() == n_cores


def test_without_affinity_all_cores_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(os_threads, "_control_group_limit", lambda root, membership: None)
    assert os_threads.n_usable_cores() == 6


def test_this_machine_has_cores() -> None:
    assert 1 <= os_threads.n_usable_cores() <= (os.cpu_count() or 1)


def test_the_address_to_yield_can_be_called() -> None:
    assert ctypes.CFUNCTYPE(ctypes.c_int)(os_threads.yield_address())() in (0, 1)
