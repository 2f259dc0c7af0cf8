import pytest

from elastic_ctr.store.backends import StoreError
from elastic_ctr.store.backends.backend import cause_of, checked_name, relative


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "../x", "a\0b", None, 7, ["a"], {"name": "a"}])
def test_a_listed_name_that_would_lead_elsewhere_is_refused(name: object) -> None:
    with pytest.raises(StoreError, match="is not a file name; is it really a store"):
        checked_name(name, "a", "http://x")


@pytest.mark.parametrize("name", ["a", "...", "a b", "ü", "%2e%2e", "-rf", "a\nb", "\udcff"])
def test_an_odd_name_is_a_name(name: str) -> None:
    assert checked_name(name, "a", "http://x") == name


def test_the_root_is_an_empty_path() -> None:
    assert relative(".") == ""
    assert relative("a//b/./c/") == "a/b/c"
    with pytest.raises(StoreError):
        relative("a/../..")


def test_a_cause_that_a_library_wrapped_is_found() -> None:
    refused = ConnectionRefusedError(111, "refused")
    named, unnamed = ValueError("one library"), ValueError("another")
    named.__cause__ = refused
    unnamed.__context__ = named

    assert cause_of(unnamed, ConnectionRefusedError) is refused
    assert cause_of(unnamed, KeyError) is None
