"""What of an address may be shown, and which addresses are refused."""

import re

import pytest

from pipeline.addresses import PLAIN, protocol_of, refuse_credentials, without_credentials
from pipeline.errors import SettingsError


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:pw@host/a/b.zip?token=x#y", "https://host/a/b.zip"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ("zip://x::https://me:pw@host/b.zip", "zip://x::https://host/b.zip"),
        ("/a/b@c?d#e", "/a/b@c?d#e"),
        ("file:///a/b?c", "file:///a/b?c"),
    ],
)
def test_addresses_are_shown_without_credentials(address, shown):
    assert without_credentials(address) == shown


PLAIN_ONES = [
    "",
    "wikitext-103",
    "../a:b/c?d#e",
    "C:/texts",
    "x@y:z",
    "/a b/c",
    "file:///a@b?c",
    "models:/bert-tiny/1",
    "s3://bucket/a@b/[0-9]*{c}",
    "https://host:8080/a@b/c:d",
    "http://[::1]:80/a",
    "sftp://me@host:22/a",
    "ssh://me@host/a",
    "zip://*.txt::s3://bucket/a.zip",
    "simplecache::s3://bucket/a",
]
SECRET_ONES = [
    "s3://key:HIDDEN@bucket/a",
    "s3://HIDDEN@bucket",
    "sftp://me:HIDDEN@host/a",
    "https://HIDDEN@host/a",
    "https://host/a?signature=HIDDEN",
    "s3://bucket/a?HIDDEN",
    "https://host/a#HIDDEN",
    "zip://*.txt::s3://key:HIDDEN@bucket/a.zip",
    "zip://*.txt::https://host/a.zip?HIDDEN",
    "S3://key:HIDDEN@bucket",
]


@pytest.mark.parametrize("address", PLAIN_ONES)
def test_an_address_without_credentials_is_taken(address: str) -> None:
    refuse_credentials("BERT_STORE", address)


@pytest.mark.parametrize("address", SECRET_ONES)
def test_an_address_with_credentials_is_refused_without_repeating_them(address: str) -> None:
    with pytest.raises(SettingsError, match=r"BERT_STORE: got .* wanted it without, .*AWS_ACCESS_KEY_ID.*~/\.ssh/config") as raised:
        refuse_credentials("BERT_STORE", address)
    assert "HIDDEN" not in str(raised.value) and "\n" not in str(raised.value)


def test_the_pattern_is_one_that_forms_and_servers_understand() -> None:
    """Neither JSON Schema's search nor pydantic's expressions look ahead or match to the end by themselves."""
    assert "(?=" not in PLAIN and "(?!" not in PLAIN
    for address in SECRET_ONES:
        assert not re.search(PLAIN, address)


@pytest.mark.parametrize(
    ("address", "protocol"),
    [
        ("a/b", "file"),
        ("file:///a", "file"),
        ("S3://b/a", "s3"),
        ("sftp://h/a", "sftp"),
        ("zip://a::s3://b", "zip"),
        ("simplecache::s3://b", "simplecache"),
    ],
)
def test_the_protocol_is_that_of_the_first_link(address: str, protocol: str) -> None:
    assert protocol_of(address) == protocol
