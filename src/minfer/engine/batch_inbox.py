"""Where requests for the batch engine arrive, and the thread that waits for them without holding the engine.

An engine that nobody holds any more can thus be collected together with its thread, as long as it is idle. One that has
work lives until the work is done.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Protocol

from minfer.engine.batch_job import BatchJob


class Worker(Protocol):
    """Who does the work: the batch engine, as its thread sees it."""

    def work(self) -> None:
        """Works until there is nothing to do; fails what is left if it is to end."""
        ...


class Inbox:
    """Requests that wait, and whether the engine is to end. `changed` guards both."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queue: deque[BatchJob] = deque()
        self.is_closing = False
        self._called: Worker | None = None

    def call(self, worker: Worker) -> None:
        """Has the thread call `worker.work`, and holds the worker until then."""
        with self.changed:
            self._called = worker
            self.changed.notify()

    def close(self, worker: Worker | None = None) -> None:
        """Has the thread end, after a last call of `worker.work`."""
        with self.changed:
            self.is_closing = True
            self._called = worker
            self.changed.notify()

    def wait(self) -> Worker | None:
        """Waits for a call: whose work is to be done; None at the end."""
        with self.changed:
            while self._called is None and not self.is_closing:
                self.changed.wait()
            called, self._called = self._called, None
            return called


def start_worker(worker: Worker, inbox: Inbox) -> threading.Thread:
    """A thread that does what the inbox is called for. It ends when the inbox is closed, or the worker collected."""
    weakref.finalize(worker, inbox.close).atexit = False
    thread = threading.Thread(target=_serve, args=(inbox,), name="minfer-batch", daemon=True)
    thread.start()
    return thread


def _serve(inbox: Inbox) -> None:
    while (worker := inbox.wait()) is not None:
        worker.work()
        del worker
