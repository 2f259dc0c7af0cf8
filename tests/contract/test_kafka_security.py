"""TLS, SASL and access rights of a real broker, and what operators are told when they are wrong."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from contract.kafka_world import PASSWORD, READER, STRANGER, SecureBroker, why_not
from elastic_ctr.config.kafka import Kafka
from elastic_ctr.sources.streams.interface import Kept
from elastic_ctr.sources.streams.kafka_topic import KafkaTopic
from elastic_ctr.sources.streams.open import open_stream
from elastic_ctr.store.backends import StoreError, StoreUnavailable
from ports import free_ports

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

TOPIC = "clicks"
COMMAND = Path(sys.executable).parent / "elastic-ctr"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("kafka")) as running:
        running.create(TOPIC, 1)
        running.produce(TOPIC, [b"first", b"second"])
        yield running


@pytest.fixture
def secret(tmp_path: Path) -> Callable[[str, str], str]:
    """A mounted file with a text; its path."""

    def written(name: str, text: str) -> str:
        file = tmp_path / name
        file.write_text(text + "\n")
        return str(file)

    return written


Secret = Callable[[str, str], str]


def sasl(
    broker: SecureBroker, secret: Secret, mechanism: str = "SCRAM-SHA-512", user: str = READER, password: str = PASSWORD
) -> Kafka:
    return Kafka.model_validate(
        {
            "tls": True,
            "caFile": str(broker.certificates.authority),
            "saslMechanism": mechanism,
            "usernameFile": secret("username", user),
            "passwordFile": secret("password", password),
        }
    )


def topic_of(broker: SecureBroker, listener: str, kafka: Kafka) -> KafkaTopic:
    found = open_stream(f"kafka://{broker.addresses[listener]}/{TOPIC}", kafka.properties)
    assert isinstance(found, KafkaTopic)
    return found


def is_read(stream: KafkaTopic) -> bool:
    kept = stream.partitions()
    with stream.read(f"{TOPIC}/0", 0, 2).raw as lines:
        return kept == {f"{TOPIC}/0": Kept(0, 2)} and lines.read() == b"first\nsecond\n"


def refusal(stream: KafkaTopic) -> str:
    try:
        with pytest.raises(StoreUnavailable) as refused:
            stream.partitions()
    finally:
        stream.close()
    assert PASSWORD not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_who_may_read_the_topic_and_nothing_else_reads_it(
    broker: SecureBroker, secret: Secret, mechanism: str
) -> None:
    stream = topic_of(broker, "SASL", sasl(broker, secret, mechanism))

    assert is_read(stream)
    stream.close()


def test_a_client_is_known_by_its_certificate(broker: SecureBroker) -> None:
    own = broker.certificates
    files = {"caFile": str(own.authority), "certFile": str(own.client), "keyFile": str(own.key("client"))}
    stream = topic_of(broker, "TLS", Kafka.model_validate({"tls": True, **files}))

    assert is_read(stream)
    stream.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_told(broker: SecureBroker, secret: Secret, mechanism: str) -> None:
    said = refusal(topic_of(broker, "SASL", sasl(broker, secret, mechanism, password="a wrong one")))

    assert "refuses this user: SASL authentication error: Authentication failed" in said
    assert "mend data.source.kafka.saslMechanism, usernameFile and passwordFile" in said
    assert "a wrong one" not in said


def test_a_password_that_was_replaced_is_used_from_the_next_call_on(broker: SecureBroker, secret: Secret) -> None:
    stream = topic_of(broker, "SASL", sasl(broker, secret, password="the old one"))
    with pytest.raises(StoreUnavailable, match="refuses this user"):
        stream.partitions()

    secret("password", "")
    with pytest.raises(StoreUnavailable, match=r"passwordFile .* does not hold one line of text"):
        stream.partitions()
    secret("password", PASSWORD)

    assert is_read(stream)
    stream.close()


def test_a_user_who_may_not_read_the_topic_is_told_what_to_allow(broker: SecureBroker, secret: Secret) -> None:
    said = refusal(topic_of(broker, "SASL", sasl(broker, secret, user=STRANGER)))

    assert said.endswith("this user may not read the topic; allow it Read on the topic, no group is used")


def test_a_certificate_of_another_authority_is_not_trusted(broker: SecureBroker, secret: Secret) -> None:
    kafka = sasl(broker, secret).model_copy(update={"ca_file": str(broker.certificates.other_authority)})

    said = refusal(topic_of(broker, "SASL", kafka))

    assert "is not trusted: SSL handshake failed: " in said
    assert "certificate verify failed" in said
    assert "give the authority that has signed its certificate in data.source.kafka.caFile" in said


def test_a_name_that_the_certificate_does_not_have_is_not_trusted(broker: SecureBroker, secret: Secret) -> None:
    address = broker.addresses["SASL"].replace("127.0.0.1", "localhost")
    stream = KafkaTopic(address, TOPIC, sasl(broker, secret).properties)

    assert "the broker's name as it stands in the certificate" in refusal(stream)


def test_a_broker_that_wants_a_certificate_is_told_of(broker: SecureBroker) -> None:
    kafka = Kafka.model_validate({"tls": True, "caFile": str(broker.certificates.authority)})

    said = refusal(topic_of(broker, "TLS", kafka))

    assert "does not take this client's certificate: " in said
    assert "mend data.source.kafka.certFile and keyFile" in said


def test_a_listener_of_another_kind_is_suspected(broker: SecureBroker) -> None:
    said = refusal(topic_of(broker, "TLS", Kafka()))

    assert said.endswith("is a broker there, and is data.source.kafka that of its listener?")


def test_a_key_of_another_certificate_is_refused_when_the_stream_is_opened(broker: SecureBroker) -> None:
    own = broker.certificates
    files = {"caFile": str(own.authority), "certFile": str(own.client), "keyFile": str(own.key("other"))}

    with pytest.raises(StoreError, match=r"data\.source\.kafka\.keyFile failed: .*key values mismatch"):
        topic_of(broker, "TLS", Kafka.model_validate({"tls": True, **files}))


def role_file(folder: Path, url: str, kafka: Kafka) -> tuple[Path, int]:
    """Of a master, and the port of its status."""
    port = free_ports(2)
    source = {"url": url, "kafka": kafka.model_dump(by_alias=True, exclude_none=True)}
    settings = {
        "data": {"source": source, "start": "earliest", "slots": ["1"]},
        "model": {},
        "store": {"url": f"file://{folder}/store"},
        "master": {"port": port, "statusPort": port + 1, "stateDir": str(folder / "master")},
        "trainer": {},
        "pservers": 1,
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file, port + 1


def test_no_secret_is_in_the_log_the_status_or_the_arguments_of_a_master(
    broker: SecureBroker, secret: Secret, tmp_path: Path
) -> None:
    file, port = role_file(tmp_path, f"kafka://{broker.addresses['SASL']}/{TOPIC}", sasl(broker, secret, user=STRANGER))
    log = tmp_path / "log"
    with log.open("wb") as out:
        master = subprocess.Popen(
            [str(COMMAND), "master", "--config", str(file)],
            stdout=out, stderr=out, env={**os.environ, "ELASTIC_CTR_LOG_LEVEL": "DEBUG"},
        )  # fmt: skip
    try:
        status: dict[str, object] = {}
        ends = time.monotonic() + 90
        while not status.get("error") and time.monotonic() < ends:
            time.sleep(0.2)
            assert master.poll() is None, log.read_text()
            try:
                status = httpx.get(f"http://127.0.0.1:{port}/status", trust_env=False).json()
            except httpx.HTTPError:
                continue
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
        arguments = Path(f"/proc/{master.pid}/cmdline").read_text()
        environment = Path(f"/proc/{master.pid}/environ").read_text()
    finally:
        master.terminate()
        master.wait(30)

    assert "may not read the topic" in str(status["error"])
    for where in (json.dumps(status), metrics, arguments, environment, log.read_text()):
        assert PASSWORD not in where


def test_a_role_without_its_secret_ends_with_a_sentence(broker: SecureBroker, secret: Secret, tmp_path: Path) -> None:
    kafka = sasl(broker, secret)
    file, _ = role_file(tmp_path, f"kafka://{broker.addresses['SASL']}/{TOPIC}", kafka)
    (tmp_path / "password").unlink()

    done = subprocess.run(
        [str(COMMAND), "master", "--config", str(file)], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"data.source.kafka.passwordFile {tmp_path}/password cannot be read: No such file or directory; is its Secret mounted there?"
    )
