"""What is sent to a destination beside a body: the headers of its entry, over gRPC as metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ...core.egress.tls import file_at, is_header
from ...core.errors import StagelensError
from ...core.settings.yaml_fields import Fields

AGENT = f"stagelens/{metadata.version('stagelens')}"
_SET_BY_US = frozenset(
    {"content-type", "content-encoding", "content-length", "host", "user-agent", "x-stagelens-via", "te"}
)
# https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: others are reserved, or hold bytes.
_IS_METADATA = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")


class SecretError(StagelensError):
    """A header's secret is not where it should be."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Where the value of a header is: in the environment, or in a file that is read anew each time."""

    env: str = ""
    file: Path | None = None


def read(fields: Fields, env: Mapping[str, str], protocol: str) -> tuple[dict[str, str], dict[str, Secret]]:
    """Read the key `headers` of *fields*: those that may be shown, and secrets; what is wrong is in the document's problems."""
    plain, secrets = dict[str, str](), dict[str, Secret]()
    inner = fields.mapping("headers", example="X-Scope-OrgID: team-a") if fields.has("headers") else None
    for name in inner.keys if inner and not inner.broken else ():
        assert inner is not None  # noqa: S101 - it has keys
        if isinstance(inner.value(name), dict):
            secrets[name] = _secret(inner, name, env)
            shown = "x"
        else:
            plain[name] = shown = inner.text(name)
        if name.lower() in _SET_BY_US:
            inner.complain(f"{inner.name(name)} is set by Stagelens; leave it out", name)
        elif not is_header(name, shown):
            inner.complain(f"{inner.name(name)} is no header; write plain letters", name)
        elif protocol == "grpc" and not _IS_METADATA.fullmatch(name.lower()):
            inner.complain(
                f"{inner.name(name)} is no metadata of gRPC; write letters, digits, -, _ and . in its name", name
            )
    return plain, secrets


def _secret(headers: Fields, name: str, env: Mapping[str, str]) -> Secret:
    inner = headers.mapping(name, example="env: TEMPO_AUTHORIZATION")
    assert inner is not None  # noqa: S101 - it is a mapping
    secret = Secret(inner.text("env"), file_at(inner, "file"))
    inner.finish()
    if bool(secret.env) == (secret.file is not None) and not inner.has("file"):
        inner.complain(f"{headers.name(name)} needs `env:` with the name of a variable, or `file:` with a path")
    elif secret.env and secret.file:
        inner.complain(f"{headers.name(name)} is given twice; keep env or file alone", "file")
    elif secret.env and not env.get(secret.env, "").strip():
        inner.complain(f"{inner.name('env')} is {secret.env}, which the environment has not", "env")
    return secret


def with_secrets(plain: Mapping[str, str], secrets: Mapping[str, Secret], env: Mapping[str, str]) -> dict[str, str]:
    """Return all headers, with secrets as they are in *env* or in files now.

    Raises:
        SecretError: One is not there; where it should be.
    """
    return {**plain, **{name: _found(name, secret, env) for name, secret in secrets.items()}}


def _found(name: str, secret: Secret, env: Mapping[str, str]) -> str:
    try:
        value = env.get(secret.env, "") if secret.file is None else secret.file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        msg = f"{secret.file}, which the header {name} is to be in, cannot be read ({error})"
        raise SecretError(msg) from error
    value = value.strip()
    if not (value and value.isascii() and value.isprintable()):
        msg = f"{secret.file or secret.env} does not hold the one line of plain letters that the header {name} needs"
        raise SecretError(msg)
    return value
