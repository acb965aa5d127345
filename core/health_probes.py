"""Health probes: requests of load balancers, orchestrators and monitoring, which are counted apart from the requests of users.

A probe is a request with the method GET, HEAD or OPTIONS (or a gRPC call) whose route is a known path, or whose User-Agent is a
known prober. STAGELENS_PROBES adds paths, and removes some (`!/ping`) or all (`none`) of the known ones.

Sources: kubernetes.io/docs/reference/using-api/health-checks; github.com/grpc/grpc/blob/master/doc/health-checking.md;
kserve.github.io (Open Inference Protocol); documentation of the probers.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .errors import ConfigError

VARIABLE: Final = "STAGELENS_PROBES"
# Routes of probes whose path is not a route of the service, and of other requests that match no route.
PROBES: Final = "__probes__"
UNMATCHED: Final = "__unmatched__"
_METHODS: Final = frozenset({None, "GET", "HEAD", "OPTIONS"})

_ROUTE: Final = re.compile(
    r"""
    (?:(?:api|v\d{1,2}|-|actuator|internal|management|monitoring|q)/){0,3}
    (?:health/)?
    _*(?:health(?:y|z|[-_]?checks?)? | live(?:z|ness)? | alive | ready(?:z|ness)? | readiness | started | startup(?:z|probe)?
      | pingz? | (?:lb)?heartbeat | metricsz? | up)_*
    | v2/models/[^/]+(?:/versions/[^/]+)?/ready
    | grpc\.health\.v1\.health/\w+
    | inference\.grpcinferenceservice/(?:serverlive|serverready|modelready)
    """,
    re.VERBOSE,
)
_AGENT: Final = re.compile(
    r"""
    (?:mozilla/5\.0[^(]{0,20}\(compatible;\ *)?
    (?:kube-probe|knative-(?:activator|ingress|queue)?-?probe|googlehc|googlestackdrivermonitoring|elb-healthchecker
      |amazon-route53-health|prometheus/|vm_promscrape|victoriametrics|consul|blackbox[\ -]exporter|datadog|envoy/hc
      |haproxy|uptimerobot|uptime-kuma|better\ ?(?:uptime|stack)|pingdom|statuscake|site24x7|nodeping|zabbix|check_http
      |cloudflare-(?:healthchecks|traffic-manager)|edge\ health\ probe|load\ balancer\ agent|healthcheck|alwayson
      |traefik\ health)
    """,
    re.VERBOSE,
)


def _plain(route: str) -> str:
    # Templates of Django may be regular expressions.
    return route.strip().strip("^$?/\\Z").lower() or "/"


@lru_cache(2048)
def is_known_route(route: str) -> bool:
    """Return whether *route*, a template, a path or a gRPC method, is a known path of probes.

    >>> is_known_route("/healthz"), is_known_route("/v2/models/{name}/ready"), is_known_route("/predict/health")
    (True, True, False)
    """
    return route == PROBES or _ROUTE.fullmatch(_plain(route)) is not None


@lru_cache(2048)
def is_known_agent(agent: str | bytes) -> bool:
    """Return whether *agent*, a `User-Agent`, is a known prober.

    >>> is_known_agent("kube-probe/1.31"), is_known_agent(b"python-httpx/0.28")
    (True, False)
    """
    text = agent if isinstance(agent, str) else agent.decode("latin-1")
    return _AGENT.match(text.lower()) is not None


def unmatched_route(path: object) -> str:
    """Return the route of a request to *path* that no route of the service matched: `PROBES` for a known path."""
    return PROBES if type(path) is str and is_known_route(path) else UNMATCHED


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """Which requests are probes: paths in lower case without outer slashes, with `*` and `?` as wildcards."""

    known: bool = True
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, key: str = VARIABLE) -> ProbePolicy:
        """Parse paths separated by commas, such as `/up,/internal/*,!/ping`, or `none`."""
        if text.strip().lower() == "none":
            return cls(known=False)
        paths = [part.strip() for part in text.split(",") if part.strip()]
        if wrong := [path for path in paths if not path.removeprefix("!").startswith("/")]:
            msg = f"{key} has {wrong[0]!r}; write paths such as /up,!/ping (with ! requests of users), or none"
            raise ConfigError(msg)
        removed = tuple(_plain(path[1:]) for path in paths if path.startswith("!"))
        return cls(added=tuple(_plain(path) for path in paths if not path.startswith("!")), removed=removed)

    def route_of(self, route: str, method: str | None, agent: str = "") -> str | None:
        """Return the route under which a request counts as a probe; None for a request of a user."""
        if method not in _METHODS:
            return None
        if self.added or self.removed:
            plain = _plain(route)
            if any(fnmatch.fnmatchcase(plain, path) for path in self.removed):
                return None
            if any(fnmatch.fnmatchcase(plain, path) for path in self.added):
                return route
        if not self.known:
            return None
        if is_known_route(route):
            return route
        return PROBES if agent and is_known_agent(agent) else None
