"""Addresses: names of files, with the options of the stores that have them."""

import pytest

import gristmill as gm
from gristmill._shards.address import NOWHERE, Address


def test_address_of_options_is_the_same_whatever_their_order():
    one = Address.of("gs://a/b", storage_options={"b": "2", "a": "1"})
    assert one == Address.of("gs://a/b", storage_options={"a": "1", "b": "2"})
    assert one.options == (("a", "1"), ("b", "2"))
    assert (one.name, one.is_remote) == ("gs://a/b", True)
    assert one.at("/c", "/d") == Address(("/c", "/d"), one.options)
    assert one.at("/c", "/d").arguments == {"shards": ["/c", "/d"], "storage_options": {"a": "1", "b": "2"}}
    assert not one.at("/c").is_remote


def test_address_of_no_or_several_names_has_no_name():
    for address in (NOWHERE, Address.of("a", "b")):
        with pytest.raises(ValueError, match="values to unpack"):
            _ = address.name


def test_options_are_strings():
    with pytest.raises(gm.ArgumentTypeError, match="storage_options=3: expected a dict of strings") as caught:
        Address.of("a", storage_options=3)
    assert caught.value.argument == "storage_options"
