"""Kafka brokers for tests: a plain one, and one with TLS, SASL and access rights."""

import subprocess
from pathlib import Path

from bench.kafka_broker import Broker, absent
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from typing_extensions import Self

from needs import needs
from ports import free_port

READER, STRANGER = "alice", "bob"
PASSWORD = "correct horse 9!"


def why_not() -> str:
    """The reason to skip where Kafka cannot be started; else empty."""
    missing = absent()
    return needs(missing) if missing else ""


def plain_broker(folder: Path) -> Broker:
    return Broker(folder, free_port)


def second_broker(folder: Path, first: Broker) -> Broker:
    """Another node of the cluster of one that runs."""
    return Broker(folder, free_port, leader=first)


class Certificates:
    """Made by openssl: an authority, what it has signed, and one that it has not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = self._signed_by_itself("authority")
        self.other_authority = self._signed_by_itself("other")
        self.server = self._signed("server", "subjectAltName=IP:127.0.0.1")
        self.client = self._signed("client", "extendedKeyUsage=clientAuth")

    def key(self, name: str) -> Path:
        return self._folder / f"{name}.key"

    def with_key(self, name: str) -> Path:
        """One file of both, as Java takes it."""
        both = self._folder / f"{name}-with-key.pem"
        both.write_text(self.key(name).read_text() + (self._folder / f"{name}.pem").read_text())
        return both

    def _signed_by_itself(self, name: str) -> Path:
        return self._request(name, "-x509", "-addext", "basicConstraints=critical,CA:TRUE")

    def _signed(self, name: str, extension: str) -> Path:
        ca = ("-CA", str(self.authority), "-CAkey", str(self.key("authority")))
        return self._request(name, "-x509", *ca, "-addext", extension)

    def _request(self, name: str, *words: str) -> Path:
        made = self._folder / f"{name}.pem"
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        files = ("-keyout", str(self.key(name)), "-out", str(made))
        subprocess.run(
            ["openssl", "req", *kind, "-subj", f"/CN={name}", *files, *words], check=True, capture_output=True
        )
        return made


class SecureBroker(Broker):
    """Listeners TLS, which wants a certificate of clients, SASL over TLS, and one without security for the test itself.

    READER may read every topic, and nothing else; STRANGER may do nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "certificates")
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in (READER, STRANGER))
        security = "org.apache.kafka.common.security"
        super().__init__(
            folder,
            free_port,
            listeners={"TLS": "SSL", "SASL": "SASL_SSL"},
            settings=(
                "ssl.keystore.type=PEM",
                f"ssl.keystore.location={self.certificates.with_key('server')}",
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={self.certificates.authority}",
                "listener.name.tls.ssl.client.auth=required",
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                f"listener.name.sasl.plain.sasl.jaas.config={security}.plain.PlainLoginModule required {users};",
                f"listener.name.sasl.scram-sha-256.sasl.jaas.config={security}.scram.ScramLoginModule required;",
                f"listener.name.sasl.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;",
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users=User:ANONYMOUS",
            ),
            users=[
                f"SCRAM-SHA-{bits}=[name={name},password={PASSWORD}]"
                for bits in (256, 512)
                for name in (READER, STRANGER)
            ],
        )

    def start(self, seconds: float = 180) -> Self:
        super().start(seconds)
        admin = self.admin
        may_read = [
            AclBinding(
                ResourceType.TOPIC,
                "*",
                ResourcePatternType.LITERAL,
                f"User:{who}",
                "*",
                AclOperation.READ,
                AclPermissionType.ALLOW,
            )
            for who in (READER, "CN=client")
        ]
        for done in admin.create_acls(may_read).values():
            done.result(30)
        return self
