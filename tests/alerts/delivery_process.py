"""A process that delivers what one channel has in an outbox until it is killed: run by the tests, not collected by them."""

from __future__ import annotations

import random
import sys
import time

from stagelens.alerts.channel import Channel
from stagelens.alerts.lease import new_holder
from stagelens.alerts.pagerduty import PagerDuty
from stagelens.alerts.slack import Slack
from stagelens.alerts.webhook import Webhook
from stagelens.alerts.worker import Worker
from stagelens.collector.store import Store


class Hurried(random.Random):
    """Jitter in a hurry: the waits of the real backoff, a twentieth as long."""

    def uniform(self, a: float, b: float) -> float:
        """Return a random wait."""
        return super().uniform(a, b) / 20


def main(database: str, kind: str, url: str) -> None:
    """Deliver from *database* to the receiver at *url*, until the process dies."""
    channels: dict[str, Channel] = {
        "slack": Slack("slack", f"{url}/services/T0/B0/x", gap_seconds=0.0),
        "pagerduty": PagerDuty("pagerduty", "K" * 32, url, gap_seconds=0.0),
        "webhook": Webhook("webhook", f"{url}/alerts", "s3cret"),
    }
    Worker(Store.open(database), channels[kind], new_holder(), lease_seconds=1.0, rng=Hurried()).start()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
