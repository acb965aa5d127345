"""Where a receiver without a sign-in fetches the chart of an incident: an address that only we can make.

It ends with a signature of the incident's id, by a key that lies in the database: who sends messages makes the address, and
any dashboard over the same database recognises it. It shows the chart of that incident, as it is then, and opens nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import quote, urlsplit

from sqlalchemy import Connection, insert, select

from ..schema import keys
from .message import Message

PATH = "/charts"
_KEY = "charts"


def of(connection: Connection, message: Message) -> str:
    """Return where the chart of the incident of *message* can be fetched; nothing where the dashboard is not on https.

    Args:
        connection: An open write transaction: the first address makes the key.
        message: Its link says where the dashboard is, which has a host of its own.
    """
    host = _https_host(message.finding.link)
    if not host:
        return ""
    key = _key(connection)
    if key is None:
        key = secrets.token_hex(32)
        connection.execute(insert(keys).values(name=_KEY, value=key))
    name = message.incident
    return f"https://{host}{PATH}/{quote(name, safe='')}/{_signature(key, name)}.png"


def is_genuine(connection: Connection, incident: str, signature: str) -> bool:
    """Say whether *signature* is the one in our address of the chart of *incident*."""
    key = _key(connection)
    return key is not None and hmac.compare_digest(signature.encode(), _signature(key, incident).encode())


def _https_host(link: str) -> str:
    try:
        split = urlsplit(link)
    except ValueError:
        return ""
    return split.netloc if split.scheme == "https" else ""


def _key(connection: Connection) -> str | None:
    return connection.execute(select(keys.c.value).where(keys.c.name == _KEY)).scalar()


def _signature(key: str, incident: str) -> str:
    return hmac.new(bytes.fromhex(key), incident.encode(), hashlib.sha256).hexdigest()
