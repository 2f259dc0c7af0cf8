"""Signatures as cosign makes them with a key: ECDSA on P-256 over SHA-256, in a bundle that `cosign verify-blob` takes."""

import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


class NoSuchKey(Exception):
    """A key file that no signature is made or checked with."""


def sign(key: Path, content: bytes) -> bytes:
    """The signature in DER. It is the same each time (RFC 6979), so that two builds of a release are equal. Raises NoSuchKey."""
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as failed:
        raise NoSuchKey(f"{key} is no private key without a password: {failed}") from failed
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise NoSuchKey(
            f"{key} is no key of the curve P-256; openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 makes one"
        )
    return private.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


def public_of(key: Path) -> bytes:
    """The public key in PEM."""
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def bundle(key: Path, content: bytes, signature: bytes) -> bytes:
    """Sigstore's bundle of a signature by a key."""
    public = serialization.load_pem_public_key(public_of(key))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    hint = sha256(public.public_bytes(serialization.Encoding.DER, form)).digest()
    digest = {"algorithm": "SHA2_256", "digest": _text(sha256(content).digest())}
    document = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": _text(hint)}},
        "messageSignature": {"messageDigest": digest, "signature": _text(signature)},
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def is_of(public_key: Path, content: bytes, signature: bytes) -> bool:
    """Whether the holder of the private key has signed this content. Raises NoSuchKey."""
    try:
        public = serialization.load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as failed:
        raise NoSuchKey(f"{public_key} is no public key: {failed}") from failed
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise NoSuchKey(f"{public_key} is no key of the curve P-256")
    try:
        public.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
