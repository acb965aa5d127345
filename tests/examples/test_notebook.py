"""The example notebook, executed against a dashboard with data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.support.serving import serving

pytestmark = pytest.mark.stacks

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKEN = "a token of this test, long enough"  # noqa: S105


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    subprocess.run([sys.executable, EXAMPLES / "synthetic.py", tmp_path / "stagelens.db"], check=True)
    store = Store.open(f"sqlite:///{tmp_path / 'stagelens.db'}")
    with serving(Dashboard(DashboardConfig(port=0, token=TOKEN), store)) as address:
        yield address
    store.close()


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_the_notebook_runs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELENS_DASHBOARD_URL", url)
    monkeypatch.setenv("STAGELENS_DASHBOARD_TOKEN", TOKEN)
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    stored = outputs(notebook)
    NotebookClient(notebook, timeout=120).execute()
    shown = outputs(notebook)
    charts = [each.data["application/vnd.plotly.v1+json"] for each in shown if "plotly" in str(each.get("data", {}))]
    texts = "".join(each.text for each in shown if each.output_type == "stream")

    assert stored == []
    assert [each.name for each in shown if each.output_type == "stream"] == ["stdout", "stdout"]
    assert sum("text/html" in each.get("data", {}) for each in shown) >= 5
    assert {"preprocess", "forward", "queue"} <= {bar["name"] for bar in charts[0]["data"]}
    assert "2.0.0 against 1.0.0: regression" in texts
    assert "without them p99 would be" in texts
