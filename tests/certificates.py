"""Certificates of an authority made for a test, as cert-manager's Secrets have them."""

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs certificates; `home` is the folder of its own key."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self._home = home
        self._made = 0
        self._openssl("req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._home, check=True, capture_output=True)

    def folder(self, place: Path, days: int = 2, address: str | None = None) -> Path:
        """The folder `place`, made with another tls.crt and tls.key, and ca.crt. `days` 0: it is over at once. `address`: the server's IP."""
        self._made += 1
        named = ("-addext", f"subjectAltName=IP:{address}") if address else ()
        self._openssl("req", *_KEY, "-keyout", "tls.key", "-out", "tls.csr", "-subj", f"/CN=pod-{self._made}", *named)
        signing = (
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-set_serial",
            str(self._made),
            "-days",
            str(days),
            "-copy_extensions",
            "copy",
        )
        self._openssl("x509", "-req", "-in", "tls.csr", *signing, "-out", "tls.crt")
        place.mkdir()
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (place / name).write_bytes((self._home / name).read_bytes())
        return place
