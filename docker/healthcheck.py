"""Health check of the container: every Stagelens component in it must respond to /livez, and at least one must run."""

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
    """Check all components, and print the error of each unhealthy one.

    Returns:
        0 if at least one component responds and all responding ones are healthy, else 1.
    """
    found = [_trouble(os.environ.get(variable) or port) for variable, port in PORTS.items()]
    responses = [trouble for trouble in found if trouble is not None]
    for trouble in filter(None, responses or ["no component of Stagelens responds in this container"]):
        print(trouble)
    return 0 if responses and not any(responses) else 1


def _trouble(port: str) -> str | None:
    """Return the error of the component at *port*, "" if it is healthy, None if none listens."""
    # The certificate is for the host name, not for this address.
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    for scheme in ("http", "https"):
        try:
            url = f"{scheme}://127.0.0.1:{port}/livez"
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS, context=unchecked):  # noqa: S310
                return ""
        except urllib.error.HTTPError as error:
            return error.read(1000).decode(errors="replace").strip() or f"port {port} returned HTTP {error.code}"
        except (OSError, http.client.HTTPException):
            continue
    return None


if __name__ == "__main__":
    raise SystemExit(main())
