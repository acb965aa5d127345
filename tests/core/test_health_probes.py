"""Which requests are health probes."""

from __future__ import annotations

import pytest

from stagelens.core.errors import ConfigError
from stagelens.core.health_probes import PROBES, UNMATCHED, ProbePolicy, is_known_agent, is_known_route, unmatched_route


def test_known_paths() -> None:
    known = """
        /healthz /livez /readyz /health /ready /live /ping /metrics /v2/health/ready /v2/health/live /-/healthy /-/ready
        /_health /-/healthz /api/v1/health /health/ ^healthz/$ /__heartbeat__ /actuator/health/liveness /q/health/started
        /v2/models/{name}/ready /v2/models/bert/versions/1/ready /up grpc.health.v1.Health/Check
        /grpc.health.v1.Health/Watch inference.GRPCInferenceService/ServerReady
    """
    of_users = """
        / /predict /predict/health /users/{id}/health /pingpong /healthcare /health_generate /v2/models/bert/infer /uploads
        inference.GRPCInferenceService/ModelInfer __unmatched__ /favicon.ico /v1/models
    """

    assert [route for route in known.split() if not is_known_route(route)] == []
    assert [route for route in of_users.split() if is_known_route(route)] == []


def test_known_probers() -> None:
    known = (
        *("kube-probe/1.31", "GoogleHC/1.0", "ELB-HealthChecker/2.0", "Prometheus/2.55.0", "Consul Health Check"),
        *("Envoy/HC", "Datadog Agent/7.50", "Blackbox Exporter/0.25.0", "Amazon-Route53-Health-Check-Service (ref 1)"),
        "Mozilla/5.0+(compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)",
    )

    assert [agent for agent in known if not is_known_agent(agent)] == []
    assert not any(map(is_known_agent, ("Mozilla/5.0 (X11; Linux x86_64)", "python-requests/2.32", "curl/8.5", "")))


def test_only_a_request_without_a_body_is_a_probe() -> None:
    policy = ProbePolicy()

    assert policy.route_of("/ping", "POST") is None
    assert policy.route_of("/ping", "GET") == "/ping"
    assert policy.route_of("grpc.health.v1.Health/Check", None) == "grpc.health.v1.Health/Check"
    assert policy.route_of("/", "GET", "kube-probe/1.31") == PROBES
    assert (unmatched_route("/livez"), unmatched_route("/wp-admin"), unmatched_route(None)) == (
        PROBES,
        UNMATCHED,
        UNMATCHED,
    )


def test_the_setting_adds_and_removes_paths() -> None:
    policy = ProbePolicy.parse("/status, /internal/*,!/ping")

    assert [path for path in ("/status", "/internal/db", "/ping", "/healthz") if policy.route_of(path, "GET")] == [
        "/status",
        "/internal/db",
        "/healthz",
    ]
    assert ProbePolicy.parse("NONE").route_of("/healthz", "GET", "kube-probe/1.31") is None
    with pytest.raises(ConfigError, match="STAGELENS_PROBES has 'healthz'; write paths such as"):
        ProbePolicy.parse("healthz")
