"""Memory of a collector: modules for pages are not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LIFE = """
import sys
from stagelens.cli.servers import server_parts
from stagelens.collector.config import CollectorConfig
from stagelens.store.store_factory import open_store

environment = {
    "STAGELENS_DATABASE": sys.argv[1], "STAGELENS_COLLECTOR_PORT": "0", "STAGELENS_COLLECTOR_GRPC_PORT": "0"
}
store = open_store(CollectorConfig.from_env(environment))
[(collector, _)] = server_parts("collector", environment, store)
collector.start()
collector.stop()  # folds and maintains once
assert collector.metrics.samples()["store_bytes", ()]
store.close()
rooms = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("stagelens.")}
print(*sorted({"pandas", "pyarrow", "dash", "plotly", *rooms} & {*sys.modules}))
"""


def test_a_collector_loads_no_modules_of_pages_or_alerts(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _LIFE, f"sqlite:///{tmp_path / 'store.db'}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [
        "stagelens.analysis",
        "stagelens.cli",
        "stagelens.collector",
        "stagelens.core",
        "stagelens.store",
    ]
