"""Says whether what runs in this container lives: each part that listens here is asked for /livez, and one must."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.error
import urllib.request

PORTS = {
    "STAGELENS_COLLECTOR_PORT": "4318",
    "STAGELENS_DASHBOARD_PORT": "8600",
    "STAGELENS_ALERTS_METRICS_PORT": "9464",
}
_TIMEOUT_SECONDS = 3


def main() -> int:
    """Ask them all.

    Returns:
        0 when every part that answers is well and there is one, 1 otherwise.
    """
    asked = [_trouble(os.environ.get(variable) or port) for variable, port in PORTS.items()]
    said = [trouble for trouble in asked if trouble is not None]
    for trouble in filter(None, said or ["nothing of Stagelens answers here"]):
        print(trouble)
    return 0 if said and not any(said) else 1


def _trouble(port: str) -> str | None:
    """Return what the part at *port* says is wrong, "" for nothing, None where there is none."""
    # Its certificate is for its name, not for this address.
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    for scheme in ("http", "https"):
        try:
            url = f"{scheme}://127.0.0.1:{port}/livez"
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS, context=unchecked):  # noqa: S310
                return ""
        except urllib.error.HTTPError as error:
            return error.read(1000).decode(errors="replace").strip() or f"port {port} answered {error.code}"
        except (OSError, http.client.HTTPException):
            continue
    return None


if __name__ == "__main__":
    raise SystemExit(main())
