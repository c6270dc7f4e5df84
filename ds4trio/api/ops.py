"""For operators and their tools: health, metrics, the list of models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from quart import Blueprint, Response, request

from ds4trio.api.anthropic.errors import speaks_anthropic
from ds4trio.api.anthropic.models import anthropic_model, anthropic_models
from ds4trio.api.service import Served, Service
from ds4trio.api.wire import json_response

__all__ = ["ops"]


def ops(service: Service) -> Blueprint:
    """The doors, as a blueprint."""
    blueprint = Blueprint("ops", __name__)
    registry = CollectorRegistry()
    registry.register(_BatchingCollector(service))

    @blueprint.get("/health")
    async def health() -> Response:
        if service.failure is not None:
            return json_response({"status": "failed", "message": service.failure}, 503)
        if not service.ready:
            return json_response({"status": "loading"}, 503)
        coalescer = service.generator.coalescer
        if not coalescer.ready:
            return json_response({"status": "restarting"}, 503)
        return json_response(
            {
                "status": "ok",
                "model": service.model_name,
                "sessions": coalescer.sessions,
                "waiting": coalescer.waiting,
                "free_pages": coalescer.free_pages,
                "total_pages": coalescer.info.total_pages,
                "mean_batch_size": round(coalescer.stats.mean_batch_size, 3),
            }
        )

    @blueprint.get("/metrics")
    async def metrics() -> Response:
        return Response(
            generate_latest(registry), content_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @blueprint.get("/v1/models")
    async def models() -> Response:
        if speaks_anthropic(request):
            return json_response(anthropic_models(service, request.args))
        _ = service.generator
        data = [_model(service, served) for served in service.models]
        return json_response({"object": "list", "data": data})

    @blueprint.get("/v1/models/<path:name>")
    async def model(name: str) -> Response:
        served = service.find_model(name)
        if speaks_anthropic(request):
            return json_response(anthropic_model(service, served))
        return json_response(_model(service, served))

    return blueprint


def _model(service: Service, served: Served) -> dict[str, Any]:
    adapter = {"parent": service.model_name} if served.adapter else {}
    return {
        "id": served.name,
        "object": "model",
        "created": service.created,
        "owned_by": "ds4trio",
        "context_length": service.generator.coalescer.info.longest_sequence,
        **adapter,
    }


class _BatchingCollector(Collector):
    """Reads the coalescer's counts when asked; nothing is counted twice."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _serves(self) -> bool:
        return self._service.ready and self._service.generator.coalescer.ready

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "ds4trio_ready", "1 when requests are served", value=float(self._serves())
        )
        if not self._service.ready:
            return
        coalescer = self._service.generator.coalescer
        stats, info = coalescer.stats, coalescer.info
        gauges = {
            "sessions": ("sessions that hold a slot", coalescer.sessions),
            "waiting": ("requests in line for a slot", coalescer.waiting),
            "pages_free": ("free pages of the KV cache", coalescer.free_pages),
            "pages_total": ("pages of the KV cache", info.total_pages),
            "batch_size_mean": ("sessions in a step, mean since the start", stats.mean_batch_size),
        }
        counters = {
            "steps": ("steps that succeeded", stats.steps),
            "batch_rows": ("sessions in those steps, added up", stats.rows),
            "prefill_tokens": ("prompt tokens evaluated", stats.prefill_tokens),
            "cached_tokens": ("prompt tokens found in the prefix cache", stats.cached_tokens),
            "sampled_tokens": ("tokens drawn", stats.sampled_tokens),
            "draft_tokens": ("guesses that were verified", stats.draft_tokens),
            "accepted_tokens": ("tokens drawn that guesses had foreseen", stats.accepted_tokens),
            "engine_seconds": ("seconds inside the engine", stats.engine_seconds),
            "failed_steps": ("steps that failed", stats.failed_steps),
            "retries": ("times a session was tried anew after that", stats.retries),
            "preemptions": ("times a session gave up its pages", stats.preemptions),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"ds4trio_{name}", text, value=value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"ds4trio_{name}", text, value=value)
