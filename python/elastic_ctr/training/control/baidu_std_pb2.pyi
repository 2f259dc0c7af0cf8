from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestMeta(_message.Message):
    __slots__ = ("service_name", "method_name")
    SERVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    service_name: str
    method_name: str
    def __init__(self, service_name: _Optional[str] = ..., method_name: _Optional[str] = ...) -> None: ...

class ResponseMeta(_message.Message):
    __slots__ = ("error_code", "error_text")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TEXT_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_text: str
    def __init__(self, error_code: _Optional[int] = ..., error_text: _Optional[str] = ...) -> None: ...

class RpcMeta(_message.Message):
    __slots__ = ("request", "response", "correlation_id")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    request: RequestMeta
    response: ResponseMeta
    correlation_id: int
    def __init__(self, request: _Optional[_Union[RequestMeta, _Mapping]] = ..., response: _Optional[_Union[ResponseMeta, _Mapping]] = ..., correlation_id: _Optional[int] = ...) -> None: ...

class PsRequest(_message.Message):
    __slots__ = ("cmd_id", "table_id", "client_id")
    CMD_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    cmd_id: int
    table_id: int
    client_id: int
    def __init__(self, cmd_id: _Optional[int] = ..., table_id: _Optional[int] = ..., client_id: _Optional[int] = ...) -> None: ...

class PsResponse(_message.Message):
    __slots__ = ("err_code", "err_msg", "data")
    ERR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERR_MSG_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    err_code: int
    err_msg: str
    data: bytes
    def __init__(self, err_code: _Optional[int] = ..., err_msg: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...
