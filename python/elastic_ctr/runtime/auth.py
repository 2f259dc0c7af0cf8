"""The token that calls need which change something."""

from pathlib import Path

_TOKEN_LIMIT = 4096


def read_token(path: Path | None) -> str | None:
    """The token in a mounted file; None when no file is configured. Raises OSError, ValueError when it holds none."""
    if path is None:
        return None
    with path.open("rb") as file:
        given = file.read(_TOKEN_LIMIT + 1).strip()
    if not given:
        raise ValueError(f"{path} is empty; put the token in it, or leave the token file out of the configuration")
    token = given.decode("ascii", "replace")
    if len(given) > _TOKEN_LIMIT or not (token.isascii() and token.isprintable()) or " " in token:
        # The content is never shown: it may be a secret.
        raise ValueError(f"{path} holds no token, which is one word on one line; is it the right file?")
    return token


def bearer(token: str | None) -> dict[str, str]:
    """The header that a caller adds."""
    return {} if token is None else {"authorization": f"Bearer {token}"}
