"""Scrape configuration: the section `scrape:` of the collector's file, with targets, intervals and engines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from ...core.egress import ENV, CallTls, EgressPolicy, file_at, is_header, read_call_tls
from ...core.settings.yaml_config import Document, Fields, Place, meant
from .engine_rules import Engine, engines, read_engine

AUTO, GENERIC = "auto", "generic"
DEFAULT_EVERY_SECONDS = 10.0
MIN_EVERY_SECONDS, MAX_EVERY_SECONDS = 1.0, 300.0
_CURE = f"{ENV} says what is, and `allow_link_local: true` allows a metadata service to this target"


@dataclass(frozen=True, slots=True)
class Target:
    """A scrape target.

    Args:
        url: URL of the exposition; it also identifies the target.
        service: `service.name` of its metrics.
        engine: Its engine; None to detect it.
        version: `service.version`.
        environment: `deployment.environment.name`.
        every: Scrape interval. [seconds]
        headers: Headers sent with each request.
        token_file: File with a bearer token, read for each request.
        token_env: Environment variable with the token instead.
        tls: TLS verification and client certificate.
        link_local: Whether metadata services of clouds are allowed.
        statistics_url: URL of Triton statistics with batch sizes; None for none.
    """

    url: str
    service: str
    engine: Engine | None = None
    version: str = ""
    environment: str = ""
    every: float = DEFAULT_EVERY_SECONDS
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    token_file: Path | None = None
    token_env: str = ""
    tls: CallTls = field(default_factory=CallTls)
    link_local: bool = False
    statistics_url: str | None = None


def read_targets(document: Document, place: Place, value: Any, egress_policy: EgressPolicy) -> tuple[Target, ...]:
    """Read the section; invalid targets and those that *egress_policy* denies become problems of the document."""
    fields = Fields(document, place, value, example="targets: []")
    found: dict[str, Target] = {}
    for at, item in fields.items("targets"):
        target = _target(Fields(document, at, item, example="url: http://llm:8000/metrics"), egress_policy)
        if target is None:
            continue
        if target.url in found:
            Fields(document, at, item).complain(f"{target.url} is a target already; name each once", "url")
        found.setdefault(target.url, target)
    fields.finish()
    return tuple(found.values())


def _target(fields: Fields, egress_policy: EgressPolicy) -> Target | None:
    if fields.broken:
        return None
    link_local = fields.value("allow_link_local") is True
    allowed = egress_policy.with_kind("metadata") if link_local else egress_policy
    url = _url(fields, "url", "http://llm:8000/metrics", allowed)
    statistics = _url(fields, "statistics_url", "", allowed)
    target = Target(
        url=url,
        service=fields.text("service", example="llm"),
        engine=_engine(fields),
        version=fields.text("version"),
        environment=fields.text("environment"),
        every=_every(fields),
        headers=_headers(fields),
        token_file=file_at(fields, "bearer_token_file"),
        token_env=fields.text("bearer_token_env"),
        tls=read_call_tls(fields),
        link_local=link_local,
        statistics_url=statistics or None,
    )
    fields.finish()
    return target if url and target.service else None


def _url(fields: Fields, key: str, example: str, egress_policy: EgressPolicy) -> str:
    written = fields.address(key, example=example)
    if not written:
        return ""
    try:
        url = httpx.URL(written)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if not url.host:
        fields.complain(f"{fields.name(key)} is no address; write one such as http://llm:8000/metrics", key)
    elif url.userinfo:
        # The URL may contain a password, so it is not repeated.
        fields.complain(f"{fields.name(key)} has a user in it; use bearer_token_file or bearer_token_env", key)
    elif why := egress_policy.denial_reason(url.host):
        fields.complain(f"{fields.name(key)} is {why}, which is not called; {_CURE}", key)
    else:
        return str(url)
    return ""


def _engine(fields: Fields) -> Engine | None:
    named = fields.text("engine", default=AUTO)
    given = fields.mapping("rules", example="request: my_request_seconds")
    if named == GENERIC or given is not None:
        if given is None:
            fields.missing("rules", "{request: my_request_duration_seconds}")
        elif named not in (GENERIC, AUTO):
            fields.complain(f"{fields.name('rules')} go with `engine: {GENERIC}`, not with {named!r}", "rules")
        elif not given.broken:
            return read_engine(given, GENERIC)
        return None
    known = engines()
    if named != AUTO and named not in known:
        allowed = (AUTO, GENERIC, *known)
        cure = f"write one of {', '.join(allowed)}{meant(named, allowed)}"
        fields.complain(f"{fields.name('engine')} is {named!r}; {cure}", "engine")
    return known.get(named)


def _every(fields: Fields) -> float:
    given = fields.duration("every", example="10s", required=False)
    seconds = given.total_seconds() if given else DEFAULT_EVERY_SECONDS
    if not MIN_EVERY_SECONDS <= seconds <= MAX_EVERY_SECONDS or math.isnan(seconds):
        limits = f"{MIN_EVERY_SECONDS:g}s to {MAX_EVERY_SECONDS:g}s"
        fields.complain(f"{fields.name('every')} is {seconds:g}s; write {limits}, such as 10s", "every")
        return DEFAULT_EVERY_SECONDS
    return seconds


def _headers(fields: Fields) -> dict[str, str]:
    if not fields.has("headers"):
        return {}
    inner = fields.mapping("headers", example="X-Scope-OrgID: team")
    if inner is None or inner.broken:
        return {}
    found = {name: inner.text(name) for name in inner.keys}
    for name, value in found.items():
        if not is_header(name, value):
            inner.complain(f"{inner.name(name)} is no header; write plain letters", name)
    return found
