"""Shared fixtures and hooks of the tests."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from sqlalchemy import Engine

from stagelens.store import Store
from stagelens.store.engines import database
from tests.support import flaky_tests
from tests.support.certificate_authority import Authorities, Authority
from tests.support.postgresql_server import Server, find_programs, postgresql
from tests.support.tiers import tier_of, tier_of_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The same examples in every run, and one that takes long on a busy machine has not failed. `make soak` looks for new ones.
settings.register_profile("tests", deadline=None, max_examples=50, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=500, derandomize=False)
settings.load_profile("tests")

ARTIFACTS = Path(__file__).parent.parent / "artifacts"
# What a page shows, and the browser itself, is waited for so long; on a busy machine all of it comes late. [milliseconds]
EXPECT_TIMEOUT = 30_000
BEGINNING = 120_000


def pytest_configure(config: pytest.Config) -> None:
    flaky_tests.pytest_configure(config)
    # Until all is imported there is no garbage worth a search.
    gc.disable()
    if config.getoption("tier") == "first":
        # Nothing there calls a public server, and each HTTP client takes 20 ms to read the authorities of all of them.
        os.environ.setdefault("SSL_CERT_FILE", str(Path(__file__).parent / "support" / "only_authority.pem"))


def pytest_collection_finish() -> None:
    """Let garbage collections pass over what all the tests have imported: each took a second."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("first", "stacks", "soak"), help="run the tests of one tier (CONTRIBUTING.md)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip a file without importing it when all of its tests are in another tier, for which more is installed."""
    tier = config.getoption("tier")
    if tier is None or not collection_path.name.startswith("test_"):
        return None
    return True if tier_of_file(collection_path) not in {"first", tier} else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests of real servers and browsers run again once, unless their file says otherwise; deselect those of other tiers."""
    for item in items:
        is_real = tier_of(item) == "stacks" or "browser" in getattr(item, "fixturenames", ())
        if is_real and item.get_closest_marker("flaky") is None:
            item.add_marker(pytest.mark.flaky(reruns=1))
    tier = config.getoption("tier")
    if tier is None:
        return
    others = [item for item in items if tier_of(item) != tier]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if tier_of(item) == tier]


@pytest.fixture(scope="session", autouse=True)
def _fast_migration(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """New SQLite stores get the tables without the migrations, which take 60 ms: tests open thousands."""
    migrate = database.migrate

    @cache
    def statements() -> list[str]:
        engine = database.open_engine(f"sqlite:///{tmp_path_factory.mktemp('migrated') / 'store.db'}")
        migrate(engine)
        with engine.connect() as connection:
            dump = list(connection.connection.driver_connection.iterdump())  # pyright: ignore[reportOptionalMemberAccess]
        engine.dispose()
        return [statement for statement in dump if statement not in ("BEGIN TRANSACTION;", "COMMIT;")]

    def migrate_fast(engine: Engine) -> None:
        if engine.dialect.name == "sqlite":
            with database.writing(engine, "cannot open") as connection:
                if not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar():
                    for statement in statements():
                        connection.exec_driver_sql(statement)
                    return
        migrate(engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "migrate", migrate_fast)
        yield


@pytest.fixture
def open_store(tmp_path: Path) -> Generator[Callable[..., Store]]:
    """Opens SQLite stores that are closed with the test: `open_store("other.db", clock=clock)`."""
    with ExitStack() as opened:

        def open_(name: str = "stagelens.db", **options: Any) -> Store:
            return opened.enter_context(closing(Store.open(f"sqlite:///{tmp_path / name}", **options)))

        yield open_


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """A headless Chromium; where it may not be installed the test is skipped, never in CI.

    For one module: while Playwright runs, its event loop is the one of this thread, and asyncio tests could not run.
    """
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415 - only the browser tests need it

    # The headless shell has no window: opening a page costs a third less CPU time than in the others.
    path = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    if path is None and not os.environ.get("CI"):
        pytest.skip("no browser on this machine; `apt-get install chromium-headless-shell`, or `make test`, which does")
    ARTIFACTS.mkdir(exist_ok=True)
    expect.set_options(timeout=EXPECT_TIMEOUT)
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"]
        chromium = playwright.chromium.launch(executable_path=path, args=options, timeout=BEGINNING)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def postgresql_server() -> Generator[Server]:
    """A real PostgreSQL; where it may not be installed the test is skipped, never in CI."""
    programs = find_programs()
    if programs is None:
        message = "no PostgreSQL on this machine; `apt-get install postgresql`, or `make test-stacks`, which does"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with postgresql(programs) as server:
        yield server


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    made: dict[str, Authority] = {}

    def make(name: str) -> Authority:
        if name not in made:
            made[name] = Authority(tmp_path_factory.mktemp(name), name)
        return made[name]

    return make
