"""What differs between operating systems about threads: which cores a process may use, and giving a core away."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath


def n_usable_cores() -> int:
    """Cores that this process may use: its affinity, and its control group's limit, rounded up."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = _control_group_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return max(1, n if limit is None else min(n, math.ceil(limit)))


def _control_group_limit(root: Path, membership: Path) -> float | None:
    """CPUs that the control group of this process may use, and those above it: the least of their limits."""
    limits = [limit for group in _control_groups(root, membership) if (limit := _limit_of(group)) is not None]
    return min(limits, default=None)


def _control_groups(root: Path, membership: Path) -> list[Path]:
    """The directories of the process's groups up to the root, of version 2 and of version 1's `cpu`."""
    groups = []
    with suppress(OSError):  # no control groups here
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "cpu" in controllers.split(","):
                top = root / "cpu" if controllers else root
                below = PurePosixPath(path.strip("/"))
                # A container may see its group as the root, and its path as it is outside.
                groups += [top / each for each in (below, *below.parents)]
    return groups or [root, root / "cpu"]


def _limit_of(group: Path) -> float | None:
    with suppress(OSError, ValueError):  # another version, or none: look on
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    try:
        microseconds = int((group / "cpu.cfs_quota_us").read_text())
        return None if microseconds <= 0 else microseconds / int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def yield_address() -> int:
    """The address of the function that offers the calling thread's core to other threads; takes no arguments."""
    if sys.platform == "win32":
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    address = ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise OSError("the system has no function to yield a core")
    return address
