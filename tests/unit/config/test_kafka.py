"""Settings of brokers with TLS and SASL, and the files that they name."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from elastic_ctr.config.data import DataSource
from elastic_ctr.config.kafka import Kafka
from elastic_ctr.config.values_file import sentences

URL = "kafka://broker:9092/clicks"
LOGIN = {"usernameFile": "/secret/username", "passwordFile": "/secret/password"}


def refused(given: dict[str, Any], url: str = URL) -> str:
    with pytest.raises(ValidationError) as wrong:
        DataSource.model_validate({"url": url, "kafka": given})
    return "\n".join(sentences(wrong.value, DataSource))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"saslMechanism": "PLAIN"}, "kafka: saslMechanism PLAIN needs usernameFile and passwordFile"),
        ({"saslMechanism": "PLAIN", "usernameFile": "/a"}, "kafka: saslMechanism PLAIN needs usernameFile and passwordFile"),
        (
            {"saslMechanism": "GSSAPI", **LOGIN},
            "kafka.saslMechanism: input should be 'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512', not 'GSSAPI'",
        ),
        (LOGIN, "kafka: usernameFile is of SASL; give saslMechanism, or leave it out"),
        ({"caFile": "/ca.pem"}, "kafka: caFile is of TLS; set tls to true, or leave it out"),
        ({"tls": True, "certFile": "/cert.pem"}, "kafka: certFile goes with keyFile; give both, or neither"),
        ({"tls": True, "caFile": "ca.pem"}, "kafka.caFile: string should match pattern"),
        ({"password": "secret"}, "kafka.password is not a setting"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any], said: str) -> None:
    assert refused(given).startswith(said)


def test_kafka_is_for_brokers_alone() -> None:
    assert refused({"tls": True}, "file:///logs?follow").startswith(
        "kafka is of brokers, and file:///logs?follow is no"
    )
    assert DataSource.model_validate({"url": "file:///logs?follow", "kafka": {"tls": False}}).kafka == Kafka()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "kafka://alice:hunter2@broker:9092/clicks",
            "url: the address has credentials in it; leave them out, and name",
        ),
        (
            "KAFKA://alice:hunter2@broker:9092/clicks",
            "url: the address has credentials in it; leave them out, and name",
        ),
        (
            " kafka://alice:hunter2@broker:9092/clicks",
            "url: the address has credentials in it; leave them out, and name",
        ),
        ("kafka:/alice:hunter2@broker/clicks", "url: the address has credentials in it; leave them out, and name"),
        (
            "kafka://[alice:hunter2@broker:9092/clicks",
            "url: the address has credentials in it; leave them out, and name",
        ),
        (
            "kafka://alice:hunt/hunter2@broker/clicks",
            "url: the address has credentials in it; leave them out, and name",
        ),
        (
            "kafka://alice:hunter2\u2100@broker/clicks",
            "url: the address has credentials in it; leave them out, and name",
        ),
        ("kafka://one,alice:hunter2@two/clicks", "url: the address has credentials in it; leave them out, and name"),
        ("intake://alice:hunter2@host:8310", "url: the address has credentials in it; leave them out"),
        ("kafka://broker/clicks?sasl.password=hunter2", "url: the address has a query, which no broker is told"),
        ("kafka://broker/clicks#hunter2", "url: the address has a query, which no broker is told"),
        ("webhdfs://host:9870/logs?user.name=hunter2", "url: the address has a query; leave it out, and give the user"),
        ("hdfs://host:9000/logs#hunter2", "url: the address has a query; leave it out, and give the user by user"),
        ("kafk://alice:hunter2@broker:9092/clicks", "url: the address is none of file:///some/dir, hdfs://"),
        ("intake://host:8310?token=hunter2", "url: the address is none of file:///some/dir, hdfs://"),
        ("alice:hunter2@broker", "url: the address is none of file:///some/dir, hdfs://"),
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(url: str, said: str) -> None:
    found = refused({}, url)

    assert found.startswith(said)
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("given", "protocol"),
    [({}, "PLAINTEXT"), ({"tls": True}, "SSL"), ({"saslMechanism": "PLAIN"}, "SASL_PLAINTEXT"),
     ({"saslMechanism": "SCRAM-SHA-256", "tls": True}, "SASL_SSL")],
)  # fmt: skip
def test_tls_and_sasl_are_told_to_the_client(tmp_path: Path, given: dict[str, Any], protocol: str) -> None:
    files = {"usernameFile": tmp_path / "username", "passwordFile": tmp_path / "password"}
    if "saslMechanism" in given:
        for file in files.values():
            file.write_text(f" the {file.name}\n")
        given = {**given, **{name: str(file) for name, file in files.items()}}

    found = Kafka.model_validate(given).properties()

    assert found["security.protocol"] == protocol
    if "saslMechanism" in given:
        assert (found["sasl.username"], found["sasl.password"]) == (" the username", " the password")


@pytest.mark.parametrize("text", [b"", b"\n", b"two\nlines", b"\xff\xfe", b"a" * 5000])
def test_a_file_that_holds_no_password_is_named_and_not_shown(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "username").write_text("alice")
    (tmp_path / "password").write_bytes(text)
    files = {"usernameFile": str(tmp_path / "username"), "passwordFile": str(tmp_path / "password")}

    with pytest.raises(ValueError, match="does not hold one line of text; is it the right file") as wrong:
        Kafka.model_validate({"saslMechanism": "PLAIN", **files}).properties()

    assert "lines" not in str(wrong.value)
    assert f"data.source.kafka.passwordFile {tmp_path}/password" in str(wrong.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    kafka = Kafka.model_validate({"tls": True, "caFile": str(tmp_path / "ca.pem")})

    with pytest.raises(ValueError, match=r"data\.source\.kafka\.caFile .*/ca\.pem cannot be read: No such file"):
        kafka.properties()
