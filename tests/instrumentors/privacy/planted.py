"""Secrets to plant where a service has secrets, and one name that is meant to be seen.

All secrets begin alike, so that a search for that beginning finds every one of them, also where it was cut short.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Final

BEGINNING: Final = "zq7canary"
# The name of a model's file or folder, which is the name of the model: to be found wherever the secrets are looked for.
VISIBLE: Final = "wb4visible"
# Where a service writes what our loggers say.
LOG_VARIABLE: Final = "PRIVACY_LOG"


def secret(place: str) -> str:
    return f"{BEGINNING}{place}"


def found(content: bytes, word: str = BEGINNING) -> str:
    """Return the text around the first *word* in *content*, plain, in base64 or in hexadecimal; "" without one."""
    for form in forms(word):
        place = content.lower().find(form) if form.islower() else content.find(form)
        if place >= 0:
            return repr(content[max(0, place - 60) : place + 60])
    return ""


def forms(word: str) -> Iterator[bytes]:
    """Yield the encodings of *word*, of lower-case letters and digits; percent-encoding leaves it unchanged."""
    yield word.encode()
    yield word.encode().hex().encode()
    for before in range(3):
        # The figures that no neighbour has a part in.
        encoded = base64.b64encode(b"\0" * before + word.encode())
        yield encoded[-(-before * 4 // 3) : len(encoded) - len(encoded) % 4 - 4]


def fail(call: Callable[..., object], *args: object, **options: object) -> None:
    # Whatever the library says of a secret.
    with contextlib.suppress(Exception):
        call(*args, **options)


def log_ours() -> None:
    """Write the logs of Stagelens to a separate file, because the service log contains user data."""
    handler = logging.FileHandler(os.environ[LOG_VARIABLE])
    logger = logging.getLogger("stagelens")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)


def instrumented() -> list[str]:
    from stagelens.instrumentors.bootstrap import LIBRARIES  # noqa: PLC0415 - where the service does not know it

    return [
        library.trigger for library in LIBRARIES if any(vars(library.load())[kind] for kind in ("_patches", "_probes"))
    ]
