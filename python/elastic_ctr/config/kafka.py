"""`data.source.kafka`: TLS to the brokers, and the client's credentials."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from elastic_ctr.config.section import Section

_MOST_BYTES = 4096
_FILE = r"^/[^:\s]+$"
_LIBRDKAFKA = {
    "ca_file": "ssl.ca.location",
    "cert_file": "ssl.certificate.location",
    "key_file": "ssl.key.location",
}  # fmt: skip


def _file(description: str) -> str | None:
    found: str | None = Field(default=None, pattern=_FILE, description=description)
    return found


class Kafka(Section):
    """TLS and SASL of a Kafka topic. Secrets are in mounted files alone: these settings have their paths."""

    tls: bool = Field(
        default=False,
        description="Whether brokers are asked over TLS. Their names must be those in their certificates.",
    )
    ca_file: str | None = _file(
        "A mounted PEM file with the authorities that sign the brokers' certificates. Absent: those of the image."
    )
    cert_file: str | None = _file("A mounted PEM file with this client's certificate, where brokers want one.")
    key_file: str | None = _file("A mounted PEM file with its key, without a passphrase.")
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None,
        description="How brokers check the user: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Absent: without SASL. PLAIN without `tls` sends the password as it is.",
    )
    username_file: str | None = _file("A mounted file with the user's name.")
    password_file: str | None = _file("A mounted file with the user's password.")

    @model_validator(mode="after")
    def _together(self) -> "Kafka":
        if not self.tls and (given := self._first_given("ca_file", "cert_file", "key_file")):
            raise ValueError(f"{given} is of TLS; set tls to true, or leave it out")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("certFile goes with keyFile; give both, or neither")
        given = self._first_given("username_file", "password_file")
        if self.sasl_mechanism is None and given:
            raise ValueError(f"{given} is of SASL; give saslMechanism, or leave it out")
        if self.sasl_mechanism is not None and None in {self.username_file, self.password_file}:
            raise ValueError(
                f"saslMechanism {self.sasl_mechanism} needs usernameFile and passwordFile, mounted files with the credentials; give both"
            )
        return self

    def _first_given(self, *names: str) -> str:
        return next((self._key(name) for name in names if getattr(self, name) is not None), "")

    def _key(self, name: str) -> str:
        return str(type(self).model_fields[name].alias)

    def properties(self) -> dict[str, str]:
        """Return librdkafka's properties with the credentials that the files contain now; they must not be logged.

        Raises ValueError naming the setting and the file.
        """
        protocol = ("SASL_" if self.sasl_mechanism else "") + ("SSL" if self.tls else "PLAINTEXT")
        found = {"security.protocol": protocol}
        for name, theirs in _LIBRDKAFKA.items():
            if (path := getattr(self, name)) is not None:
                self._read(name)
                found[theirs] = path
        if self.sasl_mechanism is not None:
            found["sasl.mechanism"] = self.sasl_mechanism
            found["sasl.username"] = self._word("username_file")
            found["sasl.password"] = self._word("password_file")
        return found

    def _read(self, name: str) -> bytes:
        path = Path(getattr(self, name))
        try:
            with path.open("rb") as file:
                return file.read(_MOST_BYTES + 1)
        except OSError as failed:
            raise ValueError(
                f"data.source.kafka.{self._key(name)} {path} cannot be read: {failed.strerror}; is its Secret mounted there?"
            ) from failed

    def _word(self, name: str) -> str:
        """Return the one line of text in a file. The error message does not quote it: it may be a secret."""
        raw = self._read(name)
        word = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not word or len(raw) > _MOST_BYTES or not word.isprintable() or "\ufffd" in word:
            raise ValueError(
                f"data.source.kafka.{self._key(name)} {getattr(self, name)} does not hold one line of text; is it the right file?"
            )
        return word
