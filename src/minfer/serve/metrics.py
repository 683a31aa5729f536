"""The numbers at /metrics, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from minfer.serve.engine_protocol import Engine, StepReport
from minfer.serve.record import Outcome, RequestRecord

_STEP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
_FIRST_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BATCH_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class Metrics:
    """All metrics of one server. What the engine counts is read from it when somebody asks."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "minfer_requests", "Requests answered, by how they ended.", ["endpoint", "outcome"], registry=self._registry
        )
        self._first_token = Histogram(
            "minfer_time_to_first_token_seconds",
            "From a request's arrival until its first token.",
            buckets=_FIRST_BUCKETS_S,
            registry=self._registry,
        )
        self._per_token = Histogram(
            "minfer_time_per_token_seconds",
            "From one token of an answer to the next, the mean of the answer.",
            buckets=_TOKEN_BUCKETS_S,
            registry=self._registry,
        )
        self._step = Histogram(
            "minfer_step_seconds", "One step of the model.", buckets=_STEP_BUCKETS_S, registry=self._registry
        )
        self._batch = Histogram(
            "minfer_batch_sequences", "Sequences in a step.", buckets=_BATCH_BUCKETS, registry=self._registry
        )

    def watch(self, engine: Engine) -> None:
        """Tells of an engine from now on."""
        engine.add_step_listener(self._note_step)
        self._registry.register(_EngineCollector(engine))

    def note(self, endpoint: str, outcome: Outcome, record: RequestRecord) -> None:
        """A request is over."""
        self._requests.labels(endpoint, outcome.value).inc()
        if record.first_token_s is not None:
            self._first_token.observe(record.first_token_s)
        for duration_s in record.per_token_s:
            self._per_token.observe(duration_s)

    def text(self) -> bytes:
        """All of them as Prometheus reads them."""
        return generate_latest(self._registry)

    def _note_step(self, report: StepReport) -> None:
        self._step.observe(report.duration_s)
        self._batch.observe(report.n_sequences)


class _EngineCollector(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        now = self._engine.snapshot()
        yield GaugeMetricFamily("minfer_queue_depth", "Requests that wait.", value=now.n_queued)
        yield GaugeMetricFamily("minfer_queue_capacity", "Requests that may wait.", value=self._engine.max_queued)
        yield GaugeMetricFamily("minfer_active_requests", "Requests being computed.", value=now.n_active)
        yield GaugeMetricFamily(
            "minfer_batch_capacity", "Sequences that may be computed together.", value=self._engine.max_active
        )
        pages = GaugeMetricFamily("minfer_kv_pages", "Pages of the KV cache, by what is in them.", labels=["state"])
        pages.add_metric(["free"], now.n_free_pages)
        pages.add_metric(["cached"], now.n_cached_pages)
        pages.add_metric(["used"], now.n_pages - now.n_free_pages - now.n_cached_pages)
        yield pages
        tokens = CounterMetricFamily("minfer_tokens", "Tokens, by what was done.", labels=["kind"])
        tokens.add_metric(["prefilled"], now.n_prefilled_tokens)
        tokens.add_metric(["reused"], now.n_reused_tokens)
        tokens.add_metric(["generated"], now.n_generated_tokens)
        yield tokens
