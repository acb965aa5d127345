"""Price files: content, errors, and the cost of requests."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis import costs
from stagelens.analysis.costs import Costs, Waste, WasteKind, largest_waste, most_wasteful
from stagelens.core.settings.live_file import FileError
from stagelens.dashboard.ui.format import money

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
GOOD = """currency: "$"
prices:
  - service: ocr-api
    environment: prod
    per_hour: 12.4
  - service: ocr-api
    environment: staging
    per_hour: 0.6
  - service: chat
    per_replica_hour: 3.1
    replicas: 4
"""


HEAD = 'currency: "$"\nprices:\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prices.yaml"


def test_a_price_is_of_a_service_in_an_environment_or_in_all(file: Path) -> None:
    file.write_text(GOOD, encoding="utf-8")
    found = Costs(file, lambda: NOW)

    assert found.currency == "$"
    assert found.per_hour("ocr-api", "prod") == 12.4
    assert found.per_hour("ocr-api") == 13.0
    assert found.per_hour("ocr-api", "test") is None
    assert found.per_hour("chat", "prod") == found.per_hour("chat") == 12.4
    assert found.replicas("chat") == 4
    assert found.replicas("ocr-api") is None
    assert found.per_hour("rerank") is None
    assert (found.per_hour("ocr-api", "prod", named=True), found.per_hour("chat", "prod", named=True)) == (12.4, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("prices: []\n", '1: currency is missing; add `currency: "$"`'),
        ("currency: dollars\nprices:\n- {service: a, per_hour: 1}", "write a sign or a code, such as $ or EUR"),
        (HEAD + "- {service: a, per_hour: free}", "3: prices[0].per_hour is 'free'; write a number"),
        (HEAD + "- {service: a, per_hour: -1}", "3: prices[0].per_hour is -1; write a number above 0"),
        (HEAD + "- {service: a, per_hour: .nan}", "3: prices[0].per_hour is nan"),
        (HEAD + "- {service: a}", "3: prices[0] needs one price; write per_hour"),
        (HEAD + "- {service: a, per_replica_hour: 2}", "3: prices[0].replicas is missing"),
        (
            HEAD + "- {service: a, per_replica_hour: 2, replicas: 1.5}",
            "3: prices[0].replicas is 1.5; write a whole number",
        ),
        (HEAD + "- free", "3: prices[0] is 'free'; write keys and values, such as `service: ocr-api`"),
        (
            HEAD + "- {service: a, per_hour: 1}\n- {service: a, environment: prod, per_hour: 2}",
            "4: prices[1] prices a in prod, like prices[0]; keep one",
        ),
        ("", "1: the file is empty; write, for example:"),
    ],
)
def test_an_error_is_reported_with_line_key_and_fix(file: Path, wrong: str, message: str) -> None:
    file.write_text(wrong, encoding="utf-8")
    with pytest.raises(FileError) as caught:
        costs.read_prices(file)

    assert message in str(caught.value).replace(f"{file}:", "")


def test_an_invalid_price_file_leaves_the_last_valid_prices_in_force(file: Path) -> None:
    file.write_text("currency:", encoding="utf-8")
    found = Costs(file, lambda: NOW)
    assert (found.per_hour("ocr-api"), found.currency) == (None, "")

    file.write_text(GOOD, encoding="utf-8")
    assert found.currency == "$"
    file.write_text(GOOD.replace("12.4", "twelve"), encoding="utf-8")

    assert found.per_hour("ocr-api", "prod") == 12.4
    assert "prices[0].per_hour is 'twelve'" in found.file.errors[0]

    file.write_text(GOOD.replace("12.4", "24.8"), encoding="utf-8")
    assert found.per_hour("ocr-api", "prod") == 24.8
    assert found.file.errors == ()


@given(st.dictionaries(st.sampled_from(["forward", "queue", "overhead", "own"]), st.floats(0, 1e3)), st.floats(0, 1e3))
def test_stage_costs_add_up_to_the_request_cost(stages: dict[str, float], cost: float) -> None:
    found = costs.cost_by_stage(cost, stages)

    assert "queue" not in found
    assert not found or sum(found.values()) == pytest.approx(cost)


def test_money_has_three_digits_and_its_sign() -> None:
    assert money(12.4, "$") == "$12.4"
    assert money(485, "€") == "€485"
    assert money(-0.91, "$") == "\u2212$0.91"
    assert money(1_250_000, "EUR") == "1.25M\u202fEUR"
    assert money(None, "$") == "\u2013"


def test_the_example_is_a_valid_price_file() -> None:
    read_prices = costs.read_prices(Path(__file__).parents[2] / "examples" / "prices.yaml")

    assert read_prices.of("chat-llm", "demo")[0].per_hour == 6.2


OCR = Waste("ocr", 3600.0, per_hour=10.0, replicas=2, busy=0.2, queue_seconds=5.0, load_seconds=360.0)
CHAT = Waste("chat", 3600.0, busy=0.1, queue_seconds=900.0, failed_calls=3, failed_seconds=40.0)
BARE = Waste("bare", 3600.0, per_hour=50.0)


def test_nothing_is_invented() -> None:
    assert (OCR.idle_cost, OCR.load_cost) == (8.0, 0.5)
    assert (CHAT.cost, CHAT.idle_cost, CHAT.load_cost) == (None, None, None)
    assert (BARE.cost, BARE.idle_cost, BARE.load_cost) == (50.0, None, None)


@pytest.mark.parametrize(
    ("kind", "services"),
    [("idle", ["ocr", "chat"]), ("queue", ["chat", "ocr"]), ("calls", ["chat"]), ("loads", ["ocr"])],
)
def test_services_are_ranked_by_each_kind(kind: WasteKind, services: list[str]) -> None:
    assert [each.service for each in most_wasteful([BARE, CHAT, OCR], kind)] == services


def test_the_largest_waste_is_in_money_if_any_is() -> None:
    assert largest_waste([BARE, CHAT, OCR]) == ("idle", OCR)
    assert largest_waste([BARE, CHAT]) == ("queue", CHAT)
    assert largest_waste([BARE]) is None
    assert largest_waste([]) is None


@given(st.floats(0, 1e6), st.floats(1, 1e9), st.floats(0, 1))
def test_idle_cost_is_a_part_of_the_cost(per_hour: float, seconds: float, busy: float) -> None:
    waste = Waste("x", seconds, per_hour=per_hour, busy=busy)

    assert waste.cost is not None
    assert waste.idle_cost is not None
    assert 0 <= waste.idle_cost <= waste.cost
