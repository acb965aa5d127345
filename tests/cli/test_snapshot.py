"""`stagelens snapshot`: the image of a page of a running dashboard, and its errors."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from stagelens.__main__ import main
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from tests.dashboard.many_services import NOW, crowd_at

TOKEN = "correct horse battery staple, again"  # noqa: S105 - of this test


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running dashboard with a token."""
    store = crowd_at(tmp_path_factory.mktemp("snapshot") / "crowd.db")
    served = Dashboard(DashboardConfig(port=0, token=TOKEN), store, clock=NOW.timestamp)
    served.start()
    yield "http://{}:{}".format(*served.address)
    served.stop()
    store.close()


@pytest.fixture
def signed_in(running: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a running dashboard whose token is in the environment."""
    monkeypatch.setenv("STAGELENS_DASHBOARD_TOKEN", TOKEN)
    return running


def test_snapshot_writes_the_image_of_a_page(signed_in: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.png" for name in "abc"]
    codes = [
        main(["snapshot", "/s/service-007?p=50", str(files[0]), "--url", signed_in]),
        main(["snapshot", f"{signed_in}/s/service-007?p=50", str(files[1])]),
        main(["snapshot", "/s/service-007?p=50", str(files[2]), "--url", signed_in, "--from", "now-1h"]),
    ]
    first, second, shorter = (each.read_bytes() for each in files)

    assert codes == [0, 0, 0]
    assert Image.open(io.BytesIO(first)).size == (1200, 630)
    assert first == second != shorter


def test_snapshot_writes_to_standard_output(signed_in: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["snapshot", "/", "-", "--url", signed_in]) == 0
    assert capsysbinary.readouterr().out.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("/s/nobody", "responded 404: no request of nobody is retained"),
        ("/nowhere", "responded 404: there is no image of /nowhere"),
        ("/?from=never", "responded 400: from is 'never', which is not a time"),
        ("http://127.0.0.1:9/s/service-007", "there is no dashboard at http://127.0.0.1:9"),
    ],
)
def test_snapshot_explains_what_fails(
    signed_in: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str, error: str
) -> None:
    code = main(["snapshot", page, str(tmp_path / "x.png"), "--url", signed_in])

    assert code == 1
    assert error in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_snapshot_needs_the_token(running: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = [main(["snapshot", "/", str(tmp_path / "x.png"), "--url", url]) for url in (running, "nonsense")]
    errors = capsys.readouterr().err

    assert codes == [1, 1]
    assert "needs a token.\n    Set STAGELENS_DASHBOARD_TOKEN" in errors
    assert "there is no dashboard at nonsense" in errors
