"""`stagelens collector --check`: report all errors in the settings and the configuration file, or describe their effect."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..core.addresses import listening_url
from ..core.egress import EgressPolicy
from ..core.errors import ConfigError, StagelensError, StoreError
from ..core.settings.values import format_size
from ..core.settings.yaml_config import meant
from ..store.engines import database
from ..store.store_factory import store_locations
from .config import CollectorConfig, CollectorFile, read_collector_file
from .scrape.config import AUTO, ScrapeTarget
from .server import access_config as access_section
from .server.access_config import Access, RateLimits, check_exposure
from .server.tls import GrpcTls
from .traces.rule_config import built_in

# Kubernetes sets the excluded variables in every pod for a service with the name stagelens-collector.
_OURS = re.compile(r"STAGELENS_COLLECTOR_(?!SERVICE_|PORT_)")


def main(environment: Mapping[str, str]) -> int:
    """Print the effect of the settings and return 0, or print every problem to the error output and return 1."""
    problems = [*_wrong_settings(environment)]
    wrong = {key for key, _ in problems}
    good = {key: value for key, value in environment.items() if key not in wrong}
    config = CollectorConfig.from_env(good)
    found_problems = [problem for _, problem in problems]
    file = CollectorFile()
    with _noted(found_problems):
        _check_store(config)
    with _noted(found_problems):
        file = read_collector_file(config.config_file, good)
        # Requires the file, which has the credentials.
        _check_access(config, file)
    if found_problems:
        print(*found_problems, sep="\n", file=sys.stderr)
        return 1
    print(*described(config, file), sep="\n")
    for line in (*file.warnings, *_unknown(environment)):
        print(f"warning: {line}")
    return 0


@contextmanager
def _noted(found_problems: list[str]) -> Generator[None]:
    try:
        yield
    except StagelensError as error:
        found_problems.append(str(error))


def described(config: CollectorConfig, file: CollectorFile) -> Iterator[str]:
    scheme = "https" if file.access.tls else "http"
    grpc = "no gRPC" if config.grpc_port is None else f"gRPC on port {config.grpc_port or '(any port)'}"
    yield f"listens    {listening_url(config.host, config.port or '(any port)', scheme)}, {grpc}"
    yield from _column("accepts", _admitted(file.access, is_open=config.is_open))
    yield from store_locations(config)
    yield f"rules      {len(file.rules)} custom, then {len(built_in())} built-in"
    yield from _column("scrapes", [_scraped(target) for target in file.scrape] or ["nothing"])
    yield f"/metrics   {file.prometheus.in_words()}"


def _column(name: str, lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{'' if number else name:<10} {line}"


def _admitted(access: Access, *, is_open: bool) -> list[str]:
    others = f"all senders{_limited(None, access.anonymous)}"
    lines = [f"{token.name}{_limited(token.environment, token.limits)}, with its token" for token in access.tokens]
    if access.tls and access.tls.client_ca:
        signed = f"with a certificate signed by {access.tls.client_ca}"
        named = [
            f"{certificate.common_name}{_limited(certificate.environment, certificate.limits)}"
            for certificate in access.certificates
        ]
        lines += [f"{name}, {signed}" for name in named or ["all senders"]]
    if access.requires_credentials:
        return [*lines, f"{others} without credentials (STAGELENS_COLLECTOR_OPEN is true)"] if is_open else lines
    return [f"{others}, without authentication"]


def _limited(environment: str | None, limits: RateLimits) -> str:
    requests, size = limits.requests_per_second, limits.bytes_per_second
    parts = [
        f"as environment {environment}" if environment else "",
        f"{requests:g} requests/s" if requests else "",
        f"{format_size(size)}/s" if size else "",
    ]
    text = ", ".join(part for part in parts if part)
    return f" ({text})" if text else ""


def _scraped(target: ScrapeTarget) -> str:
    engine = target.engine_rules.name if target.engine_rules else AUTO
    return f"{target.url} as {target.service}, every {target.every.total_seconds():g} s, engine: {engine}"


def _wrong_settings(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for reader in (CollectorConfig.from_env, access_section.tokens_from_env, EgressPolicy.from_env):
        for key in _settings_of(reader):
            try:
                reader({key: environment[key]} if key in environment else {})
            except ConfigError as error:
                yield key, str(error)


def _unknown(environment: Mapping[str, str]) -> Iterator[str]:
    settings = {*_settings_of(CollectorConfig.from_env), *_settings_of(access_section.tokens_from_env)}
    for key in sorted(environment):
        if _OURS.match(key) and key not in settings and (fix := meant(key, settings)):
            yield f"{key} is not known{fix}"


def _settings_of(reader: Callable[[Mapping[str, str]], object]) -> list[str]:
    asked = _Asked()
    reader(asked)
    return list(dict.fromkeys(asked.keys_asked))


class _Asked(Mapping[str, str]):
    """An empty environment that records the requested keys."""

    def __init__(self) -> None:
        self.keys_asked: list[str] = []

    def __getitem__(self, key: str) -> str:
        self.keys_asked.append(key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _check_access(config: CollectorConfig, file: CollectorFile) -> None:
    check_exposure(config.host, file.access, is_open=config.is_open)
    if file.access.tls:
        GrpcTls(file.access.tls)


def _check_store(config: CollectorConfig) -> None:
    engine = database.open_engine(config.database)
    try:
        if engine.url.get_backend_name() == "sqlite":
            _check_file(Path((engine.url.database or "").removeprefix("file:").partition("?")[0]))
        else:
            with database.explain_errors(engine, "cannot open"), engine.connect():
                pass
    finally:
        engine.dispose()
    if config.points:
        from ..store.engines import clickhouse  # noqa: PLC0415 - its driver is an extra

        clickhouse.parse_url(config.points)


def _check_file(file: Path) -> None:
    """Raise an error if the database *file* cannot be written, without opening it, which would create side files."""
    folder = file.absolute().parent
    if not folder.is_dir():
        msg = f"the database {file} needs the folder {folder}; create it, or set another file in STAGELENS_DATABASE"
        raise StoreError(msg)
    for path in (file if file.exists() else folder, folder):
        if not os.access(path, os.W_OK):
            msg = f"{path} is not writable for this user; change its owner, or set another file in STAGELENS_DATABASE"
            raise StoreError(msg)
