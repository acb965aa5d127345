"""Scraper: reads every target at its own interval, in one thread with an event loop, and commits points together with the snapshot.

    hold target, load its snapshot -> fetch -> read_snapshot -> difference_between -> points and snapshot in one transaction

A slow, large or invalid target takes bounded time and memory and does not affect other targets. After a failure the last valid
snapshot of the target is preserved, so the next success counts the whole interval. Redirects are not followed and proxies of the
environment are not used: only the configured address receives the token. The states of targets are shown on the health page, on
/metrics and in the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import httpx
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ...core.background_tasks import TaskSupervisor
from ...core.egress import CheckedTransport, EgressDeniedError, EgressPolicy
from ...core.errors import StagelensError, WireError
from ...store import Batch, Store
from ...store.collectors import TargetLostError
from ..otlp.model import BodyTooLargeError
from ..server.body_reader import inflate
from . import snapshot
from .config import Engine, ScrapeTarget, detect, engines

_log = logging.getLogger(__name__)

_PREFIX = "stagelens_collector_scrape_"


@dataclass(frozen=True, slots=True)
class TargetState:
    url: str
    service: str
    engine: str = ""
    # "elsewhere": another collector does it.
    state: Literal["up", "down", "elsewhere", "new"] = "new"
    error: str = ""
    seconds: float = 0.0
    streams: int = 0
    beyond: int = 0
    failures: int = 0
    lost_seconds: float = 0.0


class TargetStates(Collector):
    """States of all scrape targets. Thread-safe; each change is logged once, not with every scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, TargetState] = {}

    def all(self) -> list[TargetState]:
        with self._lock:
            return sorted(self._states.values(), key=lambda state: (state.service, state.url))

    def read(self, target: ScrapeTarget, engine: Engine, difference: snapshot.Difference, seconds: float) -> None:
        before = self._of(target)
        self._set(
            replace(
                before,
                engine=engine.name,
                state="up",
                error=difference.note,
                seconds=seconds,
                streams=len(difference.base.streams),
                beyond=difference.base.beyond,
                lost_seconds=before.lost_seconds + difference.lost_seconds,
            )
        )

    def failed(self, target: ScrapeTarget, error: str) -> None:
        before = self._of(target)
        self._set(replace(before, state="down", error=error, failures=before.failures + 1))

    def elsewhere(self, target: ScrapeTarget) -> None:
        self._set(replace(self._of(target), state="elsewhere", error=""))

    def forget(self, url: str) -> None:
        with self._lock:
            self._states.pop(url, None)

    def _of(self, target: ScrapeTarget) -> TargetState:
        with self._lock:
            return self._states.get(target.url) or TargetState(target.url, target.service)

    def _set(self, state: TargetState) -> None:
        with self._lock:
            before = self._states.get(state.url)
            self._states[state.url] = state
        if (before.state if before else "up") != state.state and "down" in (state.state, before and before.state):
            _log.warning("scraping %s: %s%s", state.url, state.state, f", {state.error}" if state.error else "")

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(_PREFIX + "up", "1 while the target can be scraped.", labels=("target",))
        took = GaugeMetricFamily(_PREFIX + "seconds", "Duration of the last scrape.", labels=("target",))
        streams = GaugeMetricFamily(_PREFIX + "streams", "Series in the last scrape.", labels=("target",))
        beyond = GaugeMetricFamily(
            _PREFIX + "streams_left_out", "Skipped series: above the limit, or invalid.", labels=("target",)
        )
        failures = CounterMetricFamily(_PREFIX + "failures", "Failed scrapes.", labels=("target",))
        lost = CounterMetricFamily(_PREFIX + "lost_seconds", "Time without counts.", labels=("target",))
        for state in self.all():
            if state.state in ("up", "down"):
                up.add_metric((state.url,), state.state == "up")
                took.add_metric((state.url,), state.seconds)
                streams.add_metric((state.url,), state.streams)
                beyond.add_metric((state.url,), state.beyond)
                failures.add_metric((state.url,), state.failures)
                lost.add_metric((state.url,), state.lost_seconds)
        return (up, took, streams, beyond, failures, lost)


TIMEOUT_SECONDS = 5.0
# Time before the end of a lease at which it is renewed; a lease exceeds the missed scrapes by this time. [seconds]
_RENEWAL_SECONDS, _LEASE_MARGIN_SECONDS = 2 * TIMEOUT_SECONDS, 4 * TIMEOUT_SECONDS
# Size limit of a response: a vLLM server exposes 100 kB, a Ray node with many deployments a few MB.
MAX_BYTES = 16 * 1024**2
_ACCEPT = f"text/plain;version=0.0.4;q=1,{snapshot.OPENMETRICS};version=1.0.0;q=0.5,*/*;q=0.1"


class FetchError(StagelensError):
    """A request to a target failed, or its response cannot be used."""


class TargetResponse(NamedTuple):
    text: str
    media_type: str


async def fetch(url: str, target: ScrapeTarget, env: Mapping[str, str]) -> TargetResponse:
    """Request *url*, one of the URLs of *target*.

    Raises:
        FetchError: The request fails or times out, the response is an error or too large, or egress is denied.
    """
    parsed = httpx.URL(url)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            transport = CheckedTransport(
                _egress_policy(target, env), verify=parsed.scheme == "https" and target.tls.context()
            )
            async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=None) as client:  # noqa: S113 - the limit above is for all of it
                return await _read_response(client, client.build_request("GET", parsed, headers=_headers(target, env)))
    except EgressDeniedError as error:
        raise FetchError(str(error)) from error
    except httpx.ConnectError as error:
        msg = f"it cannot be connected to ({error})"
        raise FetchError(msg) from error
    except TimeoutError as error:
        msg = f"it did not respond within {TIMEOUT_SECONDS:g} s"
        raise FetchError(msg) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ssl.SSLError, UnicodeError) as error:
        msg = f"it did not respond ({error or type(error).__name__})"
        raise FetchError(msg) from error


async def _read_response(client: httpx.AsyncClient, request: httpx.Request) -> TargetResponse:
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        if response.is_redirect:
            msg = "it redirects, which is not followed; use the final address"
            raise FetchError(msg)
        if not response.is_success:
            msg = f"it returns {response.status_code} {response.reason_phrase}; check its address and token"
            raise FetchError(msg)
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > MAX_BYTES:
                break
        # The body was read up to the limit only: it exceeds the limit after inflating, or is truncated.
        text = inflate(bytes(body), response.headers.get("content-encoding", ""), MAX_BYTES).decode()
    except BodyTooLargeError as error:
        msg = f"its response is larger than {MAX_BYTES // 1024**2} MiB; drop metrics or labels at the target"
        raise FetchError(msg) from error
    except (WireError, UnicodeDecodeError) as error:
        msg = f"its response cannot be parsed ({error})"
        raise FetchError(msg) from error
    finally:
        await response.aclose()
    return TargetResponse(text, response.headers.get("content-type", ""))


def _egress_policy(target: ScrapeTarget, env: Mapping[str, str]) -> EgressPolicy:
    egress_policy = EgressPolicy.from_env(env)
    return egress_policy.with_kind("metadata") if target.allow_link_local else egress_policy


def _headers(target: ScrapeTarget, env: Mapping[str, str]) -> dict[str, str]:
    headers = {**target.headers, "accept": _ACCEPT, "accept-encoding": "gzip"}
    if token := _token(target, env):
        headers["authorization"] = f"Bearer {token}"
    return headers


def _token(target: ScrapeTarget, env: Mapping[str, str]) -> str:
    if target.bearer_token_file is not None:
        return target.bearer_token_file.read_text(encoding="ascii").strip()
    if target.bearer_token_env and not env.get(target.bearer_token_env):
        msg = f"the environment has no {target.bearer_token_env} for its token"
        raise FetchError(msg)
    return env[target.bearer_token_env] if target.bearer_token_env else ""


# Number of missed scrapes after which another collector acquires the target.
_MISSED = 3
_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Hold:
    """Lease of a target that ends at *until*, in Unix seconds, with the last snapshot."""

    until: float
    base: snapshot.Snapshot | None


class Scraper:
    def __init__(
        self,
        store: Store,
        targets: Callable[[], Sequence[ScrapeTarget]],
        env: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._env, self._clock = store, env, clock
        self._holder = secrets.token_hex(8)
        self._holds: dict[str, _Hold] = {}
        self.states = TargetStates()
        self._supervisor = TaskSupervisor(
            "stagelens-scraper",
            wanted=lambda: {target.url: target for target in targets()},
            run_task=self._repeat,
            on_removed=self.states.forget,
            check_seconds=_CHECK_SECONDS,
            # Parsing is Python code and holds the interpreter lock: more threads would slow down the servers.
            threads=1,
        )
        self.thread = self._supervisor.thread
        self._in_thread = self._supervisor.in_thread

    def start(self) -> None:
        self._supervisor.start()

    def stop(self) -> None:
        """Stop scraping and release the targets for other collectors; does nothing without `start`."""
        if not self._supervisor.stop():
            return
        try:
            self._store.release_targets(self._holder)
        except StagelensError:
            _log.warning("the targets could not be released; other collectors take over later")

    async def _repeat(self, target: ScrapeTarget) -> None:
        due = time.monotonic()
        while True:
            await self.scrape(target)
            # A target slower than its interval is scraped less often, not concurrently.
            due = max(due + target.every.total_seconds(), time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def scrape(self, target: ScrapeTarget) -> None:
        """Scrape *target* once; errors are recorded in the state of the target."""
        began = time.monotonic()
        try:
            hold = await self._in_thread(self._hold, target)
            if hold is None:
                self.states.elsewhere(target)
                return
            at = self._clock()
            response = await fetch(target.url, target, self._env)
            streams, trouble = await self._statistics(target)
            difference, engine = await self._in_thread(self._count, target, hold.base, at, response, streams)
        except TargetLostError:
            self._holds.pop(target.url, None)
            self.states.elsewhere(target)
        except StagelensError as error:
            self.states.failed(target, str(error))
        except Exception as error:  # noqa: BLE001 - one target must not affect others
            _log.exception("%s could not be read", target.url)
            self.states.failed(target, f"{type(error).__name__}: {error}")
        else:
            self.states.read(target, engine, difference, time.monotonic() - began)
            if trouble:
                self.states.failed(target, trouble)

    def _hold(self, target: ScrapeTarget) -> _Hold | None:
        """Return the lease of *target*, acquired or renewed if needed; None if another collector has it."""
        now = self._clock()
        hold = self._holds.get(target.url)
        if hold is None or hold.until < now + _RENEWAL_SECONDS:
            last = self._store.take_target(target.url, self._holder, now, _seconds(target))
            hold = None if last is None else _Hold(now + _seconds(target), snapshot.load_snapshot(last))
        self._holds.pop(target.url, None)
        if hold is not None:
            self._holds[target.url] = hold
        return hold

    async def _statistics(
        self, target: ScrapeTarget
    ) -> tuple[Mapping[snapshot.MetricStream, snapshot.StreamCounts] | None, str]:
        """Return the Triton statistics of *target* (None if missing), and an error message, "" for none."""
        if target.statistics_url is None:
            return None, ""
        try:
            response = await fetch(target.statistics_url, target, self._env)
            return await self._in_thread(snapshot.read_triton_statistics, response.text), ""
        except (FetchError, snapshot.StatisticsError) as error:
            return None, f"{target.statistics_url}: {error}"

    def _count(
        self,
        target: ScrapeTarget,
        base: snapshot.Snapshot | None,
        at: float,
        response: TargetResponse,
        streams: Mapping[snapshot.MetricStream, snapshot.StreamCounts] | None,
    ) -> tuple[snapshot.Difference, Engine]:
        samples, engine = _understood(target, response)
        now = _snapshot(target, engine, samples, at, streams)
        difference = snapshot.difference_between(base, now)
        middle = int((at + base.at) / 2) if base else int(at)
        batch = Batch(
            f"scrape:{target.url}:{secrets.token_hex(8)}",
            [
                *snapshot.points_of(difference.added, target, engine, middle),
                *snapshot.replica_points_of(difference.added, target, engine, middle),
            ],
        )
        until = self._clock() + _seconds(target)
        # If the commit fails, the next scrape loads the lease and snapshot from the database again.
        self._holds.pop(target.url, None)
        self._store.write_reading(target.url, self._holder, until, snapshot.dump_snapshot(difference.base), batch)
        self._holds[target.url] = _Hold(until, difference.base)
        return difference, engine


def _seconds(target: ScrapeTarget) -> float:
    return _MISSED * target.every.total_seconds() + _LEASE_MARGIN_SECONDS


def _understood(target: ScrapeTarget, response: TargetResponse) -> tuple[snapshot.Samples, Engine]:
    """Return the samples of *response*, and the engine of the target; ExpositionError for none or several engines."""
    asked = [target.engine_rules] if target.engine_rules else list(engines().values())
    wanted = {name for engine in asked for name in engine.wanted()}
    samples = snapshot.parse_exposition(response.text, response.media_type, wanted)
    if target.engine_rules:
        return samples, target.engine_rules
    found = detect(samples)
    if len(found) > 1:
        known = " or ".join(f"`engine: {key}`" for key in found)
        msg = f"it has metrics of {' and '.join(engine.name for engine in found.values())}; write {known}"
        raise snapshot.ExpositionError(msg)
    if not found:
        msg = "it has no metrics of a known engine yet; write `engine:`, or `rules:` for custom metrics"
        raise snapshot.ExpositionError(msg)
    return samples, next(iter(found.values()))


def _snapshot(
    target: ScrapeTarget,
    engine: Engine,
    samples: snapshot.Samples,
    at: float,
    streams: Mapping[snapshot.MetricStream, snapshot.StreamCounts] | None,
) -> snapshot.Snapshot:
    rules = hashlib.blake2b(repr((engine, target.statistics_url)).encode(), digest_size=8).hexdigest()
    found = snapshot.read_snapshot(samples, engine, at, rules)
    if target.statistics_url is None:
        return found
    if streams is None:
        return found.with_streams({}, beyond=1)
    return found.with_streams(streams)
