"""The registry: names that users add to, by call or by entry point."""

from __future__ import annotations

import importlib.metadata

import pytest

from fm3_core import Fm3Error, Registry, UnknownNameError, registry


@pytest.fixture
def things():
    filled: Registry[int] = Registry("thing")
    filled.register("two", 2)
    filled.register("one", 1)
    return filled


@pytest.fixture
def offered(monkeypatch):
    """A registry whose entry point group holds what the test puts into the returned list."""
    points: list[importlib.metadata.EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
    filled: Registry[object] = Registry("thing", "fm3.things")

    def offer(name, value, group="fm3.things"):
        points.append(importlib.metadata.EntryPoint(name, value, group))

    return filled, offer


def test_a_registered_thing_is_found_by_name(things):
    assert things.get("one") == 1
    assert things.names() == ["one", "two"]
    assert "one" in things
    assert "three" not in things
    assert 1 not in things
    assert ["one"] not in things


def test_an_unknown_name_lists_the_known_ones(things):
    with pytest.raises(UnknownNameError) as caught:
        things.get("three")
    assert str(caught.value) == "unknown thing 'three'; known: one, two"
    assert isinstance(caught.value, Fm3Error | ValueError)


@pytest.mark.parametrize("name", [None, 1, ["one"]])
def test_what_is_no_name_is_unknown(things, name):
    with pytest.raises(UnknownNameError, match=r"unknown thing .*; known: one, two"):
        things.get(name)


def test_an_empty_registry_says_so():
    with pytest.raises(UnknownNameError, match="unknown thing 'x'; known: none"):
        Registry("thing").get("x")


def test_a_taken_name_is_refused_until_it_is_unregistered(things):
    with pytest.raises(UnknownNameError, match="thing 'one' is registered already; unregister it first"):
        things.register("one", 11)
    assert things.unregister("one") == 1
    assert things.register("one", 11) == 11
    assert things.get("one") == 11


def test_unregistering_an_unknown_name_is_refused(things):
    with pytest.raises(UnknownNameError, match="unknown thing 'three'"):
        things.unregister("three")


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_must_be_a_non_empty_string(things, name):
    with pytest.raises(UnknownNameError, match="a thing's name must be a non-empty string"):
        things.register(name, 1)


def test_an_entry_point_is_a_name_that_loads_when_asked_for(offered):
    things, offer = offered
    offer("pi", "math:pi")
    offer("other", "math:e", group="fm3.others")
    assert things.names() == ["pi"]
    assert "pi" in things
    assert "other" not in things
    assert things.get("pi") == pytest.approx(3.14159, abs=1e-5)
    assert things.names() == ["pi"]


def test_an_entry_point_that_cannot_be_loaded_does_not_hide_the_others(offered):
    things, offer = offered
    offer("broken", "no_such_module:thing")
    offer("pi", "math:pi")
    assert things.names() == ["broken", "pi"]
    with pytest.raises(UnknownNameError) as caught:
        things.get("broken")
    assert str(caught.value) == (
        "thing 'broken' cannot be loaded from its entry point no_such_module:thing: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_a_name_offered_by_two_packages_is_refused_and_one_offered_twice_alike_is_not(offered):
    things, offer = offered
    offer("pi", "math:pi")
    offer("pi", "math:pi")
    assert things.get("pi") > 3
    offer("e", "math:e")
    offer("e", "cmath:e")
    with pytest.raises(UnknownNameError, match="thing 'e' is offered more than once: cmath:e and math:e"):
        things.get("e")


def test_a_registered_thing_stands_before_an_entry_point_of_its_name(offered):
    things, offer = offered
    offer("pi", "math:pi")
    things.register("pi", 3)
    assert things.get("pi") == 3


def test_registering_does_not_read_the_installed_packages(monkeypatch):
    def refuse(group):
        raise AssertionError(group)

    monkeypatch.setattr(registry, "entry_points", refuse)
    assert Registry("thing", "fm3.things").register("one", 1) == 1


def test_the_group_of_an_installed_package_is_read():
    assert isinstance(Registry("script", "console_scripts").names(), list)
