"""Buckets of S3, Google Cloud Storage and Azure, and of what speaks S3: a store of published files, and a source of click logs.

A file is published by one conditional PUT to its final name, so nothing has to be renamed or swept.
"""

import mmap
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError, InvalidPathError
from obstore.store import AzureStore, GCSStore, S3Store

from elastic_ctr.store.backends.backend import (
    AlreadyPublished,
    Backend,
    Body,
    BucketAccess,
    Content,
    NotInStore,
    Stat,
    StoreError,
    StoreUnavailable,
)
from elastic_ctr.store.backends.retry import RetryPolicy
from elastic_ctr.store.backends.temporary import temporary_beside

if TYPE_CHECKING:
    from obstore import Attributes, GetOptions, ObjectMeta

    Client = S3Store | GCSStore | AzureStore

T = TypeVar("T")

# Prefix of the names of a cloud's variables, its key for an endpoint, and the variables of which one brings credentials.
_VARIABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "s3": (
        "AWS_",
        "aws_endpoint",
        (
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        ),
    ),
    "gs": (
        "GOOGLE_",
        "google_base_url",
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    ),
    "az": (
        "AZURE_",
        "azure_storage_endpoint",
        (
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_SAS_KEY",
            "AZURE_FEDERATED_TOKEN_FILE",
            "AZURE_STORAGE_CLIENT_SECRET",
        ),
    ),
}
# The timeout of a whole request is for the largest file, of 5 GB, over a slow line.
_TIMEOUTS = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "1h"}
# Bytes of one block of an answer; a retry fetches an incomplete block again.
_BLOCK = 1 << 18
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_PASSING = {408, 409, 425, 429, *range(500, 600)} - {501, 505}
_PASSING_CODES = {"ConditionalRequestConflict", "RequestTimeout", "SlowDown"}
_NO_BUCKET = {"ContainerNotFound", "NoSuchBucket"}
_WRITTEN = "written to"
# Signs in the text of an error without a status, each with whether a retry may help, and the reason.
_UNHEARD = (
    ("Temporary failure in name resolution", True, "no name server answers"),
    ("dns error", False, "its host is not known here; is `url` or `bucket.endpoint` right?"),
    ("UnknownIssuer", False, "its certificate is not trusted; give the CA as bucket.caFile"),
    ("ertificate", False, "its certificate is not the host's, or no longer valid"),
    ("ConnectionRefused", True, "it refuses the connection; is it running, and is bucket.endpoint right?"),
    ("169.254.169.254", True, "no metadata service gives credentials; is bucket.credentials right?"),
    ("TimedOut", True, "it did not answer in time"),
    ("HttpError", True, "the connection broke; is it running?"),
    ("redirect without LOCATION", False, "the bucket is elsewhere; is bucket.region right?"),
)
# (address, endpoint) of the buckets that this process has seen refuse a second object of one name.
_refuses_second: set[tuple[str, str | None]] = set()
_forked = False


def _note_fork() -> None:
    global _forked  # noqa: PLW0603 (the hook has no other place)
    _forked = True


# obstore's threads do not come along: each call of the child would wait for ever.
os.register_at_fork(after_in_child=_note_fork)


class ObjectStore(Backend):
    """A prefix of a bucket. Thread-safe. `setting` is the section of the settings with the address, for messages."""

    def __init__(self, url: str, access: BucketAccess, setting: str) -> None:
        self.url = url.rstrip("/")
        self._access = access
        self._setting = setting
        self._lock = threading.Lock()
        self._files = self._credential_files()
        self._client = self._new_client(self._files)

    # -- the client --------------------------------------------------------------------------------------------------

    def _new_client(self, files: dict[str, str]) -> "Client":
        parts, access = urlsplit(self.url), self._access
        prefix, endpoint_key, variables = _VARIABLES[parts.scheme]
        config: dict[str, object] = {name.lower(): value for name, value in files.items()}
        if access.credentials == "environment" and not any(map(os.environ.get, variables)):
            # Without this the library would look for a metadata service, where there may be none.
            raise StoreError(
                f"{self.url} has no credentials: none of {', '.join(variables)} is set; set one of them, or "
                f"{self._setting}.bucket.credentials to files, instance or none"
            )
        if access.credentials == "none":
            config[f"{prefix.lower()}skip_signature"] = True
        endpoint = access.endpoint
        if parts.scheme == "s3":
            # Not all that speak S3 can delete several objects at once.
            config["aws_disable_bulk_delete"] = True
            if access.region is not None:
                config["aws_region"] = access.region
            if access.virtual_hosted:
                config["aws_virtual_hosted_style_request"] = True
                endpoint = endpoint and endpoint.replace("://", f"://{parts.netloc}.")
        if endpoint is not None:
            config[endpoint_key] = endpoint
        options: dict[str, object] = {**_TIMEOUTS, "allow_http": (endpoint or "").startswith("http://")}
        kinds: dict[str, Callable[..., Client]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        try:
            if access.ca_file is not None:
                options["root_certificate"] = Path(access.ca_file).read_bytes()
            # Retries are RetryPolicy's: a library's second try of a create would be refused for its first one.
            return kinds[parts.scheme](
                parts.netloc,
                prefix=unquote(parts.path.strip("/")) or None,
                config=config,
                client_options=options,
                retry_config={"max_retries": 0},
            )
        except OSError as failed:
            raise StoreError(f"{self._setting}.bucket.caFile {access.ca_file}: {failed.strerror}") from failed
        except (BaseError, ValueError) as wrong:
            # Without its text, which may have a key.
            raise StoreError(
                f"{self.url} cannot be opened ({type(wrong).__name__}): are {self._setting}.url, its `bucket` and the files of its "
                "credentials right?"
            ) from None

    def _credential_files(self) -> dict[str, str]:
        """Return the credentials of a mounted folder by the names of the variables that they stand for."""
        if self._access.credentials != "files":
            return {}
        folder = Path(self._access.credentials_dir)
        prefix = _VARIABLES[urlsplit(self.url).scheme][0]
        try:
            found = {each.name: each.read_text().strip() for each in folder.glob(f"{prefix}*")}
        except (OSError, ValueError) as failed:
            raise StoreError(f"the credentials of {self.url} in {folder} cannot be read: {failed}") from failed
        if not found:
            raise StoreError(
                f"{folder} has no file with credentials of {self.url}; mount a Secret with keys such as "
                f"{_VARIABLES[urlsplit(self.url).scheme][2][0]}, or set {self._setting}.bucket.credentials"
            )
        return found

    def _has_new_credentials(self, refused: "Client") -> bool:
        """True if the mounted credentials have changed since a refused client was made; there is then a new one.

        Raises StoreUnavailable while the files cannot be used: they may be written just now.
        """
        with self._lock:
            if self._client is not refused:
                return True
            try:
                if (found := self._credential_files()) == self._files:
                    return False
                self._client = self._new_client(found)
            except StoreError as failed:
                raise StoreUnavailable(str(failed)) from failed
            self._files = found
            return True

    def close(self) -> None:
        """Do nothing: idle connections end with the object."""

    # -- reading -----------------------------------------------------------------------------------------------------

    def stat(self, path: str, deed: str = "looked up in") -> Stat:
        if not path:
            return Stat(0, 0.0, folder=True)
        with suppress(NotInStore):
            return _stat_of(self._ask(lambda: self._client.head(path), path, deed))
        if below := self._ask_list(lambda: next(iter(self._client.list(path)), ()), path, deed):
            return Stat(0, max(each["last_modified"].timestamp() for each in below), folder=True)
        raise NotInStore(f"{path} is not in {self.url}")

    def walk(self, folder: str) -> list[tuple[str, Stat]]:
        def pages() -> "list[ObjectMeta]":
            return [each for page in self._client.list(folder or None) for each in page]

        found = self._ask_list(pages, folder)
        # As below, of every folder on the way.
        folders = {folder, *(str(above) for each in found for above in PurePosixPath(each["path"]).parents)}
        return [(each["path"], _stat_of(each)) for each in found if each["size"] or each["path"] not in folders]

    def list(self, folder: str) -> list[tuple[str, Stat]]:
        found = self._ask_list(lambda: self._client.list_with_delimiter(folder or None), folder)
        folders = {_name(each): Stat(0, 0.0, folder=True) for each in found["common_prefixes"]}
        # The object `a/`, which consoles and Hadoop write as a marker of a folder, has the path `a`.
        files = [(_name(each["path"]), _stat_of(each)) for each in found["objects"] if each["path"] != folder]
        if folder and not (folders or files):
            raise NotInStore(f"{folder} is not in {self.url}")
        # A file may have the name of a folder. An empty one is a marker of it, as Azure's tools write.
        return [*((name, stat) for name, stat in files if stat.size or name not in folders), *folders.items()]

    @contextmanager
    def read(self, path: str, start: int) -> Iterator[Body]:
        options: GetOptions = {"range": {"offset": start}} if start else {}
        try:
            answer = self._ask(lambda: self._client.get(path, options=options), path, "read from")
        except (StoreUnavailable, NotInStore):
            # A folder is no object, and to look for one would cost a list at each look at an absent donefile.
            raise
        except StoreError:
            # The statuses of a start at the end or past it differ between stores.
            stat = self.stat(path)
            if stat.size > start:
                raise
            yield Body(stat, stat.size, iter(()))
            return
        yield Body(_stat_of(answer.meta), answer.range[0], self._blocks(iter(answer.stream(_BLOCK)), path))

    def _blocks(self, stream: Iterator[bytes], path: str) -> Iterator[bytes]:
        while (block := self._ask(lambda: next(stream, None), path, "read from")) is not None:
            yield bytes(block)

    # -- writing -----------------------------------------------------------------------------------------------------

    def create(self, content: Content, path: str, retry: RetryPolicy) -> None:
        self.verify(retry)
        mark, sent = secrets.token_hex(8), False
        for attempt in retry.attempts():
            with attempt, content() as body:
                try:
                    self._put(body, path, "create", mark)
                except AlreadyPublished:
                    # A refusal may answer a second try after a first one that succeeded but whose answer was lost.
                    if not (sent and self._mark_of(path) == mark):
                        raise
                finally:
                    sent = True

    def replace(self, content: Content, path: str, retry: RetryPolicy) -> None:
        for attempt in retry.attempts():
            with attempt, content() as body:
                self._put(body, path, "overwrite", "")

    def _put(self, body: bytes | BinaryIO, path: str, mode: Literal["create", "overwrite"], mark: str) -> None:
        data: bytes | memoryview = b""
        if isinstance(body, bytes):
            data = body
        elif os.fstat(body.fileno()).st_size:
            # Not read into memory, where the library would have it twice.
            data = memoryview(mmap.mmap(body.fileno(), 0, access=mmap.ACCESS_READ))
        # Azure takes no dash in the name of a metadatum.
        marks: Attributes | None = {"put": mark} if mark else None
        self._ask(
            lambda: self._client.put(path, data, mode=mode, attributes=marks, use_multipart=False), path, _WRITTEN
        )

    def _mark_of(self, path: str) -> object:
        answer = self._ask(lambda: self._client.get(path, options={"head": True}), path, "looked up in")
        return answer.attributes.get("put")

    def verify(self, retry: RetryPolicy) -> None:
        where = (self.url, self._access.endpoint)
        if where not in _refuses_second:
            retry.call(self._try_second)
            _refuses_second.add(where)

    def _try_second(self) -> None:
        """Raises StoreError if the bucket is absent or takes a second object of one name."""
        self._ask_list(lambda: next(iter(self._client.list()), ()), "")
        # Hidden, should its deletion fail.
        name = temporary_beside("probe")
        try:
            self._put(b"", name, "create", "")
            self._put(b"", name, "create", "")
        except AlreadyPublished:
            return
        finally:
            self._delete([name])
        raise StoreError(
            f"{self.url} takes a second object of one name, although If-None-Match forbids it: two writers could replace each "
            "other's files; use a store with conditional writes (docs/operations/buckets.md)"
        )

    def delete(self, path: str) -> None:
        self._delete([name for name, _ in self.walk(path)])
        self._delete([path])

    def _delete(self, names: Sequence[str]) -> None:
        try:
            self._ask(lambda: self._client.delete(names), names[0] if names else "", "deleted from")
        except NotInStore:
            # S3 alone deletes what is absent. Another process may delete the same.
            if len(names) > 1:
                for name in names:
                    self._delete([name])

    # -- errors ------------------------------------------------------------------------------------------------------

    def _ask(self, call: Callable[[], T], path: str, deed: str) -> T:
        cannot = f"{path or '/'} cannot be {deed} {self.url}"
        if _forked:
            raise StoreError(f"{cannot}: this process is a fork, in which no call to a bucket returns; start it anew")
        client = self._client
        try:
            return _beside_main(call)
        except (BaseError, OSError, ValueError, NotImplementedError) as failed:
            # The text is not shown: it may have the address of a request, with its signature.
            raise self._refusal(failed, cannot, path, client) from None

    def _ask_list(self, call: Callable[[], T], folder: str, deed: str = "listed in") -> T:
        """As `_ask`. A folder without objects is no error to a bucket, so what answers that it finds nothing is no bucket."""
        try:
            return self._ask(call, folder, deed)
        except NotInStore:
            raise self._no_bucket(f"{folder or '/'} cannot be {deed} {self.url}") from None

    def _no_bucket(self, cannot: str) -> StoreError:
        return StoreError(f"{cannot}: there is no such bucket; is {self._setting}.url right?")

    def _refusal(self, failed: Exception, cannot: str, path: str, client: "Client") -> StoreError:
        text = str(failed)
        found, named = _STATUS.search(text), _CODE.search(text)
        status, code = int(found[1]) if found else 0, named[1] if named else ""
        answers = f"{cannot}: it answers {status} {code}".rstrip()
        if code in _NO_BUCKET:
            return self._no_bucket(cannot)
        if status == 412 or code == "BlobAlreadyExists":
            return AlreadyPublished(f"{path} is already published in {self.url}; published files are never changed")
        if status == 404 or isinstance(failed, FileNotFoundError):
            return NotInStore(f"{path} is not in {self.url}")
        # A HEAD is answered without a code, also with 400 for an expired token.
        expired = code == "ExpiredToken" or (status == 400 and not code)
        if (status in {401, 403} or expired) and self._has_new_credentials(client):
            return StoreUnavailable(f"{answers}, and there are new credentials; try again")
        if code == "ExpiredToken" or (expired and "AWS_SESSION_TOKEN" in self._files):
            return StoreUnavailable(f"{answers}: the credentials have expired, and there are no new ones yet")
        if code == "RequestTimeTooSkewed":
            return StoreUnavailable(f"{answers}: the clock of this machine is wrong; set it by NTP")
        if status in {401, 403}:
            return StoreError(
                f"{answers}: access is denied; it needs credentials that may list, read, write and delete there: set "
                f"{self._setting}.bucket"
            )
        if status in _PASSING or code in _PASSING_CODES:
            return StoreUnavailable(f"{answers}; try again")
        if status:
            return StoreError(f"{answers}; is {self._setting}.url right, with region and endpoint of `bucket`?")
        if isinstance(failed, InvalidPathError | ValueError):
            # One such key makes its whole listing fail.
            named = re.search(r'Path "([^"]+)"', text)
            return StoreError(
                f"{cannot}: {(named[1] if named else path)!r} is no path of a file; delete or rename that object"
            )
        for sign, passes, reason in _UNHEARD:
            if sign in text:
                return (StoreUnavailable if passes else StoreError)(f"{cannot}: {reason}")
        return StoreError(f"{cannot}: the answer is not understood; is `url` or `bucket.endpoint` right?")


def _beside_main(call: Callable[[], T]) -> T:
    """Call in another thread if this is the main one: no handler of a signal runs until a call of the main thread returns."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as failed:  # noqa: BLE001 (it is raised in the main thread)
            result.set_exception(failed)

    threading.Thread(target=run, name="bucket", daemon=True).start()
    return result.result()


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _stat_of(meta: "ObjectMeta") -> Stat:
    # Azure's listings have ETags without quotes, its answers have them with quotes.
    return Stat(meta["size"], meta["last_modified"].timestamp(), identity=(meta["e_tag"] or "").strip('"'))
