"""Python clients of serving, blocking and with asyncio. They need numpy alone.

    with ServingClient("127.0.0.1:8400") as client:
        prediction = client.predict_rows([{"user": "u7", "price": 12.5, "tags": ["sport", "news"]}])
        prediction.probabilities, prediction.version

For a model of feasigns, the client sends the Open Inference Protocol's binary tensors, the fastest way:

    feasigns, lengths = client.encode([{"0": [17241709254077376921], "7": [5, 6]}])
    prediction = client.predict(feasigns, lengths)

A lost connection is made again at the next request. A request whose connection is lost, or whose server cannot answer now (503), is
sent again, to another address if there are several: predictions change nothing.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.client_attempts import Addresses, PredictionRefused, Question, ServingUnavailable
from elastic_ctr.serving.client_connections import (
    Address,
    AnswerBroken,
    AsyncConnection,
    ClientConnection,
    Response,
    request_bytes,
)
from elastic_ctr.serving.client_messages import (
    JSON_LENGTH,
    Instance,
    Keys,
    Lengths,
    ModelInputs,
    Prediction,
    Row,
    checked,
    checked_shared,
    encoded,
    has_large_numbers,
    inputs_of,
    prediction_of,
    rows_prediction_of,
    rows_request,
    tensor_request,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "JSON_LENGTH",
    "AsyncServingClient",
    "Prediction",
    "PredictionRefused",
    "ServingClient",
    "ServingUnavailable",
    "prediction_of",
    "tensor_request",
]

T = TypeVar("T")
C = TypeVar("C", ClientConnection, AsyncConnection)
_JSON: Mapping[str, str] = {"Content-Type": "application/json"}


class _Asker(Generic[C]):
    """The common part of both clients: addresses, paths, settings, and the inputs of the model once they are known."""

    def __init__(
        self, address: str | Sequence[str], *, model: str = "ctr", timeout_seconds: float = 10.0, retries: int = 2
    ) -> None:
        """Nothing is sent before the first request.

        Args:
            address: host:port of the HTTP frontend; several of them take turns, and replace one another after a failure.
            model: the name that serving gives its model.
            timeout_seconds: the longest that a call takes, its retries included.
            retries: the most retries of one call. After the first ten retries, at most a tenth of the calls is retried.

        Raises:
            ServingUnavailable: an address is invalid.
        """
        self._addresses = Addresses([address] if isinstance(address, str) else list(address))
        self._model = f"/v2/models/{model}"
        self._rows = f"/v1/models/{model}:predict"
        self._timeout = timeout_seconds
        self._retries = retries
        self._inputs: ModelInputs | None = None
        self._idle: dict[Address, list[C]] = {each: [] for each in self._addresses.all}

    def forget_slots(self) -> None:
        """Request the inputs of the model anew before the next prediction, as after a refusal with status 409."""
        self._inputs = None

    def _question(self) -> Question:
        return Question(self._addresses, self._timeout, self._retries)

    def _close_idle(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def _keep(self, address: Address, connection: C, method: str) -> None:
        """Keep a connection for the next request. Only predictions: other requests move a connection to serving's slower frontend."""
        if method == "GET":
            connection.close()
        elif connection.is_open:
            self._idle[address].append(connection)

    def _slots(self, inputs: ModelInputs) -> SlotList:
        if inputs.slots is None:
            raise PredictionRefused(http.HTTPStatus.BAD_REQUEST, inputs.feasigns_refused())
        return inputs.slots


def _read(address: Address, response: Response, read: Callable[[Response], T], what: str = "answer") -> T:
    """Raises ServingUnavailable for an answer of another protocol."""
    try:
        return read(response)
    except (ValueError, LookupError, TypeError) as wrong:
        raise ServingUnavailable(f"{address.text}: its {what} cannot be read: {wrong}") from wrong


def _inputs_of(response: Response) -> ModelInputs | None:
    return inputs_of(response.body)


def _prediction_of(response: Response) -> Prediction:
    length = response.headers.get(JSON_LENGTH.lower(), "")
    return prediction_of(response.body, int(length) if length.isdecimal() else len(response.body))


class ServingClient(_Asker[ClientConnection]):
    """A blocking client, with one connection to each address. Not for several threads at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._close_idle()

    def slots(self) -> SlotList:
        """Return the slot list of the live version, which is requested once. Raises PredictionRefused for a model of columns, and
        before the first version is live.
        """
        return self._slots(self._known())

    def columns(self) -> dict[str, str]:
        """Return the columns of a model of columns, with the datatype of each; empty for a model of feasigns."""
        return dict(self._known().columns)

    def encode(self, instances: Sequence[Instance]) -> tuple[Keys, npt.NDArray[np.int64]]:
        """Return (feasigns u64[n], lengths i64[rows, slots]) of instances given as slot name to feasigns.

        Raises ValueError for a slot that the model does not have, or a feasign outside 0 … 2^64-1; and the errors of `slots`.
        """
        return encoded(instances, self.slots())

    def predict(self, feasigns: Keys, lengths: Lengths, *, first_is_shared: bool = False) -> Prediction:
        """Return the prediction of a model of feasigns.

        Args:
            feasigns: u64[n], by row, then by slot in the order of `slots()`.
            lengths: whole numbers [rows, slots], the number of feasigns in each slot of each row.
            first_is_shared: the first row has the feasigns that all others share, in slots that these leave empty; the prediction is of
                the others.

        Raises:
            PredictionRefused: serving refuses with a reason; after status 409 the next call requests the slot list anew.
            ServingUnavailable: see there.
            ValueError: the two do not fit together.
        """
        body, length = tensor_request(feasigns, lengths, self.slots(), first_is_shared=first_is_shared)
        try:
            address, found = self._ask("POST", f"{self._model}/infer", body, {JSON_LENGTH: str(length)})
        except PredictionRefused as refused:
            if refused.status == http.HTTPStatus.CONFLICT:
                self.forget_slots()
            raise
        return _read(address, found, _prediction_of)

    def predict_rows(self, rows: Sequence[Row]) -> Prediction:
        """Return the prediction of a model of columns.

        Args:
            rows: a value by column for each row: text, a number of any size, True or False, or a list of these. A column that is
                absent or None is missing.

        Raises:
            PredictionRefused: serving refuses with a reason that names row and column.
            ServingUnavailable: see there.
            ValueError: a value cannot be sent, such as NaN.
        """
        return self._predict_rows(checked(rows))

    def predict_candidates(self, shared: Row, candidates: Sequence[Row], *, top: int | None = None) -> Prediction:
        """Return the prediction of candidates that have columns in common, such as those of their user.

        Args:
            shared: a value by column, as in `predict_rows`.
            candidates: the other columns of each candidate. A column is in `shared` or in candidates, not in both.
            top: only so many candidates with the highest probabilities, best first; the prediction has their `places`.

        Raises:
            PredictionRefused, ServingUnavailable, ValueError: as `predict_rows`.
        """
        return self._predict_rows(checked(candidates), checked_shared(shared, top), top)

    def _predict_rows(self, rows: list[Row], shared: Row | None = None, top: int | None = None) -> Prediction:
        # The columns are requested only for rows with a large number, which are rare.
        given = [*rows, *([] if shared is None else [shared])]
        columns = self.columns() if has_large_numbers(given) else None
        body = rows_request(rows, shared, top, columns)
        try:
            address, found = self._ask("POST", self._rows, body, _JSON)
        except PredictionRefused as refused:
            if refused.status == http.HTTPStatus.BAD_REQUEST and self._known().slots is not None:
                raise PredictionRefused(refused.status, self._known().rows_refused()) from None
            raise
        return _read(address, found, lambda response: rows_prediction_of(response.body, len(rows), top))

    def _known(self) -> ModelInputs:
        while self._inputs is None:
            address, found = self._ask("GET", self._model)
            self._inputs = _read(address, found, _inputs_of, "metadata")
            if self._inputs is None:
                # Serving refuses this with the stage that it has reached, unless a version went live just now.
                self._ask("GET", f"{self._model}/ready")
        return self._inputs

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[Address, Response]:
        question = self._question()
        while True:
            attempt = question.attempt()
            if attempt.pause:
                time.sleep(attempt.pause)
            idle = self._idle[attempt.address]
            connection = idle.pop() if idle else ClientConnection(attempt.address)
            reused = connection.is_open
            try:
                request = request_bytes(method, attempt.address, path, body, headers or {})
                response = connection.exchange(request, attempt.until)
            except (OSError, AnswerBroken) as failed:
                question.failed(attempt, failed, reused=reused)
                continue
            self._keep(attempt.address, connection, method)
            if question.settled(attempt, response, f"{method} {path}"):
                return attempt.address, response


class AsyncServingClient(_Asker[AsyncConnection]):
    """The same client with asyncio, for any number of concurrent calls in one event loop; each call has its own connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self._close_idle()
        # Transports close at the next turn of the event loop.
        await asyncio.sleep(0)

    async def slots(self) -> SlotList:
        """As that of ServingClient."""
        return self._slots(await self._known())

    async def columns(self) -> dict[str, str]:
        """As that of ServingClient."""
        return dict((await self._known()).columns)

    async def encode(self, instances: Sequence[Instance]) -> tuple[Keys, npt.NDArray[np.int64]]:
        """As that of ServingClient."""
        return encoded(instances, await self.slots())

    async def predict(self, feasigns: Keys, lengths: Lengths, *, first_is_shared: bool = False) -> Prediction:
        """As that of ServingClient."""
        body, length = tensor_request(feasigns, lengths, await self.slots(), first_is_shared=first_is_shared)
        try:
            address, found = await self._ask("POST", f"{self._model}/infer", body, {JSON_LENGTH: str(length)})
        except PredictionRefused as refused:
            if refused.status == http.HTTPStatus.CONFLICT:
                self.forget_slots()
            raise
        return _read(address, found, _prediction_of)

    async def predict_rows(self, rows: Sequence[Row]) -> Prediction:
        """As that of ServingClient."""
        return await self._predict_rows(checked(rows))

    async def predict_candidates(self, shared: Row, candidates: Sequence[Row], *, top: int | None = None) -> Prediction:
        """As that of ServingClient."""
        return await self._predict_rows(checked(candidates), checked_shared(shared, top), top)

    async def _predict_rows(self, rows: list[Row], shared: Row | None = None, top: int | None = None) -> Prediction:
        given = [*rows, *([] if shared is None else [shared])]
        columns = await self.columns() if has_large_numbers(given) else None
        body = rows_request(rows, shared, top, columns)
        try:
            address, found = await self._ask("POST", self._rows, body, _JSON)
        except PredictionRefused as refused:
            if refused.status == http.HTTPStatus.BAD_REQUEST and (await self._known()).slots is not None:
                raise PredictionRefused(refused.status, (await self._known()).rows_refused()) from None
            raise
        return _read(address, found, lambda response: rows_prediction_of(response.body, len(rows), top))

    async def _known(self) -> ModelInputs:
        while self._inputs is None:
            address, found = await self._ask("GET", self._model)
            self._inputs = _read(address, found, _inputs_of, "metadata")
            if self._inputs is None:
                await self._ask("GET", f"{self._model}/ready")
        return self._inputs

    async def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[Address, Response]:
        question = self._question()
        while True:
            attempt = question.attempt()
            if attempt.pause:
                await asyncio.sleep(attempt.pause)
            idle = self._idle[attempt.address]
            connection = idle.pop() if idle else AsyncConnection(attempt.address)
            reused = connection.is_open
            try:
                request = request_bytes(method, attempt.address, path, body, headers or {})
                response = await connection.exchange(request, attempt.until)
            except (OSError, AnswerBroken) as failed:
                question.failed(attempt, failed, reused=reused)
                continue
            self._keep(attempt.address, connection, method)
            if question.settled(attempt, response, f"{method} {path}"):
                return attempt.address, response
