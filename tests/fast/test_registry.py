"""The registry, and what every adapter in it says of itself."""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet

from vllm_compat.adapters import REGISTRY, Adapter, Registry


def test_the_names_are_unique_and_in_the_order_given() -> None:
    assert REGISTRY.names() == tuple(adapter.name for adapter in REGISTRY)
    assert len(set(REGISTRY.names())) == len(REGISTRY) == 19
    assert REGISTRY["generate"].name == "generate"
    # Set-up ends with a call of generate, which needs whole steps already.
    assert REGISTRY.names().index("engine-steps") < REGISTRY.names().index("generate")


def test_a_name_given_twice_is_refused() -> None:
    first, *_ = REGISTRY
    with pytest.raises(ValueError, match=f"more than one adapter is called {first.name}"):
        Registry([*REGISTRY, first])


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="no-such"):
        REGISTRY["no-such"]


def test_it_is_frozen() -> None:
    with pytest.raises(TypeError):
        REGISTRY[0] = None  # type: ignore[index]
    with pytest.raises(AttributeError):
        REGISTRY["generate"].name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("adapter", list(REGISTRY), ids=REGISTRY.names())
def test_each_says_what_broke_and_when_it_can_go(adapter: Adapter) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", adapter.name)
    assert adapter.symbol
    assert adapter.call_site.startswith("speculators.")
    assert SpecifierSet(adapter.speculators).contains("0.4.0")
    assert adapter.removal
    assert adapter.broke
    for broken in adapter.broke:
        assert re.fullmatch(r"(speculators )?\d+\.\d+\.\d+", broken.release)
        assert re.fullmatch(r"(\d+(, \d+)*)?", broken.pr)
        assert broken.what
