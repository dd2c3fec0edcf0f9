"""The one mechanism of settings: how texts and values are read, what is refused, and with which words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from metadata.foundation.errors import CallerError
from metadata.foundation.settings import (
    EXACT,
    FLAG,
    REAL,
    TEXT,
    WHOLE,
    WORDS,
    Registry,
    defaults_of,
    markdown_table,
    properties_entry,
    required,
    setting,
    settings_of,
)


@dataclass(frozen=True)
class Oven:
    """Oven"""

    trays: tuple[str, ...] = required(WORDS, "trays", "What is in it")
    preheat: bool = setting(FLAG, True, "preheat", "Whether it is hot at first")
    heat_ms: int = setting(
        WHOLE, 2_000, "heatSeconds", "How long it heats, in seconds", minimum=1_000, maximum=60_000, scale=1_000
    )
    power: float = setting(REAL, 0.5, "power", "Part of its power", minimum=0, maximum=1, other_keys=("strength",))
    mode: str = setting(TEXT, "air", "mode", "How", choices=("air", "grill"))
    code: str = setting(EXACT, "", "code", "What unlocks it", secret=True)
    limit: int | None = setting(WHOLE, None, "limit", "Loaves at once")


REGISTRY = Registry([Oven], CallerError, page="oven.md", refused={"gas": "it is electric"})


def oven(**values: object) -> Oven:
    made = Oven(**REGISTRY.read_all({"trays": "a", **values})[Oven])  # type: ignore[arg-type]
    REGISTRY.check(made)
    return made


@pytest.mark.parametrize("text", ["true", "TRUE", " yes ", "on", "1"])
def test_true_has_four_words(text: str) -> None:
    assert oven(preheat=text).preheat is True


@pytest.mark.parametrize("text", ["false", "No", "off ", "0"])
def test_false_has_four_words(text: str) -> None:
    assert oven(preheat=text).preheat is False


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("preheat", "maybe", "true or false"),
        ("preheat", 1, "true or false"),
        ("heatSeconds", "5_0", "a whole number"),
        ("heatSeconds", "5.0", "a whole number"),
        ("heatSeconds", "٥", "a whole number"),
        ("heatSeconds", "9" * 5000, "a whole number"),
        ("heatSeconds", True, "a whole number"),
        ("heatSeconds", 2.0, "a whole number"),
        ("power", "nan", "a number"),
        ("power", "inf", "a number"),
        ("power", "1e999", "a number"),
        ("power", float("nan"), "a number"),
        ("power", "", "a number"),
        ("code", 5, "text"),
        ("trays", 5, "words separated by commas"),
    ],
)
def test_what_is_not_of_the_kind_is_refused_with_what_is_wanted(key: str, value: object, words: str) -> None:
    with pytest.raises(CallerError, match=f"is not {words}") as caught:
        oven(**{key: value})
    assert len(str(caught.value)) < 400
    assert (caught.value.advice or "").startswith(f"{key}: ")


def test_values_of_the_fields_own_type_are_taken_as_they_are() -> None:
    made = oven(trays=["a", "b"], preheat=False, heatSeconds=3, power=1, code="x")
    assert made == Oven(("a", "b"), False, 3_000, 1.0, code="x")


def test_a_key_in_seconds_makes_a_field_in_milliseconds_and_its_bounds_are_told_in_seconds() -> None:
    assert oven(heatSeconds="7").heat_ms == 7_000
    with pytest.raises(CallerError, match=r"heatSeconds=61 is outside 1\.\.60"):
        oven(heatSeconds="61")


def test_words_are_trimmed_and_empty_ones_dropped() -> None:
    assert oven(trays=" a, ,b,").trays == ("a", "b")


def test_a_text_is_taken_without_the_spaces_around_it_and_a_password_with_them() -> None:
    assert oven(mode=" air ").mode == "air"
    assert oven(code=" a b ").code == " a b "


def test_choices_are_read_in_any_case() -> None:
    assert oven(mode="GRILL").mode == "grill"
    with pytest.raises(CallerError, match="mode='steam' is not one of air, grill"):
        oven(mode="steam")


def test_out_of_bounds_is_refused_when_read_and_when_made() -> None:
    with pytest.raises(CallerError, match=r"power=1.5 is outside 0\.\.1"):
        oven(power="1.5")
    with pytest.raises(CallerError, match="power=nan is outside"):
        REGISTRY.check(Oven(("a",), power=float("nan")))


def test_other_keys_mean_the_same_and_not_twice() -> None:
    assert oven(strength="0.25").power == 0.25
    with pytest.raises(CallerError, match="power is given twice, once as strength"):
        oven(power=1, strength=1)


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(CallerError, match=r"no setting 'heatseconds'") as caught:
        oven(heatseconds=1)
    assert caught.value.advice == "Did you mean heatSeconds? oven.md lists all settings"
    with pytest.raises(CallerError) as caught:
        oven(zzzz=1)
    assert caught.value.advice == "oven.md lists all settings"


def test_a_key_that_would_do_nothing_is_refused_with_the_reason() -> None:
    with pytest.raises(CallerError, match="gas has no effect here: it is electric"):
        oven(gas=True)


def test_a_secret_is_shown_neither_by_repr_nor_in_an_error() -> None:
    assert "hunter2" not in repr(oven(code="hunter2"))
    with pytest.raises(CallerError) as caught:
        REGISTRY.read("code", 12345)
    assert "12345" not in str(caught.value)


def test_what_is_not_set_is_none_and_none_is_not_checked() -> None:
    assert oven().limit is None


def test_declarations_are_found_by_field_and_defaults_by_key() -> None:
    assert list(settings_of(Oven)) == ["trays", "preheat", "heat_ms", "power", "mode", "code", "limit"]
    assert defaults_of(Oven) == {
        "preheat": True,
        "heatSeconds": 2,
        "power": 0.5,
        "mode": "air",
        "code": "",
        "limit": None,
    }


def test_pages_are_made_of_lines_that_hold_their_cells() -> None:
    assert properties_entry("What it is.", "preheat", True) == "# What it is.\npreheat=true\n"
    assert properties_entry("What it is.", "limit", None) == "# What it is.\n#limit=\n"
    assert properties_entry("What it is.", "trays", ("a", "b")).endswith("trays=a,b\n")
    assert list(markdown_table(["a", "b"], [["x|y", "<z> `<z>`"]])) == [
        "| a | b |",
        "|---|---|",
        "| x\\|y | &lt;z> `<z>` |",
    ]
