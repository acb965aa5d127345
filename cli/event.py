"""`stagelens event`: send an event, such as a deployment, to the collector."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ..instrumentors.event import send_event

_OPTIONS = (
    ("--service", "NAME", "service of the event (default all services)"),
    ("--kind", "KIND", "deploy, config, advice or note (default note)"),
    ("--key", "KEY", "key of the event, such as the deployed version (default none)"),
    ("--environment", "NAME", "environment of the event (default all environments)"),
    ("--at", "TIME", "time, as ISO 8601 or milliseconds since the epoch (default now)"),
    ("--link", "URL", "URL with details (default none)"),
)


def event(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{parser.description} The collector address is OTEL_EXPORTER_OTLP_ENDPOINT."
    parser.add_argument("text", metavar="TEXT", help="short description of the event")
    for option, value, text in _OPTIONS:
        parser.add_argument(option, metavar=value, help=text)
    parser.set_defaults(run=_send)


def _send(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    send_event({name: value for name, value in vars(options).items() if name != "run"}, environment)
    return 0
