from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COUNT: _ClassVar[JobKind]
    CHECKPOINT: _ClassVar[JobKind]
    EXPORT: _ClassVar[JobKind]
    COMPACT: _ClassVar[JobKind]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECK: _ClassVar[Phase]
    TRAIN: _ClassVar[Phase]
    SAVE: _ClassVar[Phase]
    SCORE: _ClassVar[Phase]
    EVALUATE: _ClassVar[Phase]
    ANALYZE: _ClassVar[Phase]
COUNT: JobKind
CHECKPOINT: JobKind
EXPORT: JobKind
COMPACT: JobKind
CHECK: Phase
TRAIN: Phase
SAVE: Phase
SCORE: Phase
EVALUATE: Phase
ANALYZE: Phase

class Membership(_message.Message):
    __slots__ = ("trainer_id", "generation", "reason", "table_unchanged", "taken_over", "rows")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TABLE_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    TAKEN_OVER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    trainer_id: int
    generation: int
    reason: str
    table_unchanged: bool
    taken_over: str
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, trainer_id: _Optional[int] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ..., table_unchanged: bool = ..., taken_over: _Optional[str] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("rejoin", "reason", "keep_running", "next")
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEEP_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    rejoin: bool
    reason: str
    keep_running: bool
    next: LeaseReply
    def __init__(self, rejoin: bool = ..., reason: _Optional[str] = ..., keep_running: bool = ..., next: _Optional[_Union[LeaseReply, _Mapping]] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("path", "bytes", "sha256", "records")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    bytes: int
    sha256: str
    records: int
    def __init__(self, path: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., records: _Optional[int] = ...) -> None: ...

class PserverState(_message.Message):
    __slots__ = ("index", "incarnation", "host", "admin_port", "generation", "serving", "lost", "results", "error", "training", "leaving", "damaged_checkpoint", "memory_bytes", "fetched_rows", "server")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADMIN_PORT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_ROWS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    index: int
    incarnation: str
    host: str
    admin_port: int
    generation: int
    serving: bool
    lost: bool
    results: _containers.RepeatedCompositeFieldContainer[JobResult]
    error: str
    training: str
    leaving: bool
    damaged_checkpoint: str
    memory_bytes: int
    fetched_rows: int
    server: str
    def __init__(self, index: _Optional[int] = ..., incarnation: _Optional[str] = ..., host: _Optional[str] = ..., admin_port: _Optional[int] = ..., generation: _Optional[int] = ..., serving: bool = ..., lost: bool = ..., results: _Optional[_Iterable[_Union[JobResult, _Mapping]]] = ..., error: _Optional[str] = ..., training: _Optional[str] = ..., leaving: bool = ..., damaged_checkpoint: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., fetched_rows: _Optional[int] = ..., server: _Optional[str] = ...) -> None: ...

class PserverOrders(_message.Message):
    __slots__ = ("generation", "checkpoint", "jobs", "leave", "reason", "keep_running", "leave_timeout_seconds", "wrong_training", "start")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEEP_RUNNING_FIELD_NUMBER: _ClassVar[int]
    LEAVE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRONG_TRAINING_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    generation: int
    checkpoint: str
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    leave: bool
    reason: str
    keep_running: bool
    leave_timeout_seconds: float
    wrong_training: bool
    start: bool
    def __init__(self, generation: _Optional[int] = ..., checkpoint: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., leave: bool = ..., reason: _Optional[str] = ..., keep_running: bool = ..., leave_timeout_seconds: _Optional[float] = ..., wrong_training: bool = ..., start: bool = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "kind", "folder", "checkpoint", "version", "version_kind", "sample_keys", "chain", "log_of")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_KIND_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_KEYS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LOG_OF_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: JobKind
    folder: str
    checkpoint: str
    version: int
    version_kind: str
    sample_keys: bytes
    chain: _containers.RepeatedScalarFieldContainer[int]
    log_of: str
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[JobKind, str]] = ..., folder: _Optional[str] = ..., checkpoint: _Optional[str] = ..., version: _Optional[int] = ..., version_kind: _Optional[str] = ..., sample_keys: _Optional[bytes] = ..., chain: _Optional[_Iterable[int]] = ..., log_of: _Optional[str] = ...) -> None: ...

class JobResult(_message.Message):
    __slots__ = ("id", "files", "rows", "keys", "values", "written", "error", "seconds")
    class RowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    files: _containers.RepeatedCompositeFieldContainer[File]
    rows: _containers.ScalarMap[int, int]
    keys: bytes
    values: bytes
    written: bytes
    error: str
    seconds: float
    def __init__(self, id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., rows: _Optional[_Mapping[int, int]] = ..., keys: _Optional[bytes] = ..., values: _Optional[bytes] = ..., written: _Optional[bytes] = ..., error: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("name", "trainer_id", "training")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    name: str
    trainer_id: int
    training: str
    def __init__(self, name: _Optional[str] = ..., trainer_id: _Optional[int] = ..., training: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("verdict", "trainer_id", "generation", "load", "reason", "model_digest", "lease_seconds", "leave_timeout_seconds", "wrong_training", "save_seconds", "take_over", "dense_of", "servers")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WAIT: _ClassVar[JoinReply.Verdict]
        INITIALISE: _ClassVar[JoinReply.Verdict]
        JOIN: _ClassVar[JoinReply.Verdict]
        LEAVE: _ClassVar[JoinReply.Verdict]
    WAIT: JoinReply.Verdict
    INITIALISE: JoinReply.Verdict
    JOIN: JoinReply.Verdict
    LEAVE: JoinReply.Verdict
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRONG_TRAINING_FIELD_NUMBER: _ClassVar[int]
    SAVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    DENSE_OF_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    verdict: JoinReply.Verdict
    trainer_id: int
    generation: int
    load: bool
    reason: str
    model_digest: str
    lease_seconds: float
    leave_timeout_seconds: float
    wrong_training: bool
    save_seconds: float
    take_over: str
    dense_of: int
    servers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verdict: _Optional[_Union[JoinReply.Verdict, str]] = ..., trainer_id: _Optional[int] = ..., generation: _Optional[int] = ..., load: bool = ..., reason: _Optional[str] = ..., model_digest: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., leave_timeout_seconds: _Optional[float] = ..., wrong_training: bool = ..., save_seconds: _Optional[float] = ..., take_over: _Optional[str] = ..., dense_of: _Optional[int] = ..., servers: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("trainer_id", "generation", "converted", "prefetch", "hold_seconds", "reads_further")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONVERTED_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    HOLD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    READS_FURTHER_FIELD_NUMBER: _ClassVar[int]
    trainer_id: int
    generation: int
    converted: _containers.RepeatedScalarFieldContainer[str]
    prefetch: bool
    hold_seconds: float
    reads_further: bool
    def __init__(self, trainer_id: _Optional[int] = ..., generation: _Optional[int] = ..., converted: _Optional[_Iterable[str]] = ..., prefetch: bool = ..., hold_seconds: _Optional[float] = ..., reads_further: bool = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("verdict", "task", "reason", "wait_seconds")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WAIT: _ClassVar[LeaseReply.Verdict]
        WORK: _ClassVar[LeaseReply.Verdict]
        REJOIN: _ClassVar[LeaseReply.Verdict]
        LEAVE: _ClassVar[LeaseReply.Verdict]
    WAIT: LeaseReply.Verdict
    WORK: LeaseReply.Verdict
    REJOIN: LeaseReply.Verdict
    LEAVE: LeaseReply.Verdict
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    verdict: LeaseReply.Verdict
    task: Task
    reason: str
    wait_seconds: float
    def __init__(self, verdict: _Optional[_Union[LeaseReply.Verdict, str]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., reason: _Optional[str] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "attempt", "phase", "path", "start", "end", "records", "all_records", "samples", "epoch", "pass_id", "save", "shuffle_seed", "statistics", "collect", "batch_size", "holdout", "offset", "group", "group_rows", "touched", "left_out", "further", "file")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ALL_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PASS_ID_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_SEED_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    COLLECT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_ROWS_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    id: str
    attempt: str
    phase: Phase
    path: str
    start: int
    end: int
    records: int
    all_records: int
    samples: int
    epoch: int
    pass_id: str
    save: SaveOrder
    shuffle_seed: int
    statistics: str
    collect: bool
    batch_size: int
    holdout: float
    offset: float
    group: str
    group_rows: int
    touched: bool
    left_out: _containers.RepeatedCompositeFieldContainer[LeftOut]
    further: _containers.RepeatedCompositeFieldContainer[Part]
    file: str
    def __init__(self, id: _Optional[str] = ..., attempt: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., path: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., records: _Optional[int] = ..., all_records: _Optional[int] = ..., samples: _Optional[int] = ..., epoch: _Optional[int] = ..., pass_id: _Optional[str] = ..., save: _Optional[_Union[SaveOrder, _Mapping]] = ..., shuffle_seed: _Optional[int] = ..., statistics: _Optional[str] = ..., collect: bool = ..., batch_size: _Optional[int] = ..., holdout: _Optional[float] = ..., offset: _Optional[float] = ..., group: _Optional[str] = ..., group_rows: _Optional[int] = ..., touched: bool = ..., left_out: _Optional[_Iterable[_Union[LeftOut, _Mapping]]] = ..., further: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., file: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("path", "start", "end")
    PATH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    path: str
    start: int
    end: int
    def __init__(self, path: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class LeftOut(_message.Message):
    __slots__ = ("path", "offsets", "reason")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    path: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, path: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class SaveOrder(_message.Message):
    __slots__ = ("steps", "version", "samples", "live", "keys", "values", "values_kind", "offset", "touched", "touched_counts")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUES_KIND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[SaveStep]
    version: int
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    live: bytes
    keys: bytes
    values: bytes
    values_kind: str
    offset: float
    touched: bytes
    touched_counts: bytes
    def __init__(self, steps: _Optional[_Iterable[_Union[SaveStep, _Mapping]]] = ..., version: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., live: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., values: _Optional[bytes] = ..., values_kind: _Optional[str] = ..., offset: _Optional[float] = ..., touched: _Optional[bytes] = ..., touched_counts: _Optional[bytes] = ...) -> None: ...

class SaveStep(_message.Message):
    __slots__ = ("name", "folder")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    folder: str
    def __init__(self, name: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("line", "show", "click")
    LINE_FIELD_NUMBER: _ClassVar[int]
    SHOW_FIELD_NUMBER: _ClassVar[int]
    CLICK_FIELD_NUMBER: _ClassVar[int]
    line: str
    show: int
    click: int
    def __init__(self, line: _Optional[str] = ..., show: _Optional[int] = ..., click: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "lines", "examples")
    REASON_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    lines: int
    examples: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reason: _Optional[str] = ..., lines: _Optional[int] = ..., examples: _Optional[_Iterable[str]] = ...) -> None: ...

class TaskResult(_message.Message):
    __slots__ = ("trainer_id", "generation", "task_id", "attempt", "error", "records", "shows", "clicks", "refused", "ignored", "padding", "positives", "negatives", "samples", "seconds", "save", "table_unchanged", "store_unavailable", "statistics", "columns_refused", "held_out", "groups", "group", "gone", "touched", "touched_counts", "touched_told", "next", "unpredictable", "refused_of")
    class RefusedOfEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SHOWS_FIELD_NUMBER: _ClassVar[int]
    CLICKS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    POSITIVES_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    TABLE_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    STORE_UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_TOLD_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    UNPREDICTABLE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_OF_FIELD_NUMBER: _ClassVar[int]
    trainer_id: int
    generation: int
    task_id: str
    attempt: str
    error: str
    records: int
    shows: int
    clicks: int
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    ignored: int
    padding: int
    positives: bytes
    negatives: bytes
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    seconds: float
    save: SaveResult
    table_unchanged: bool
    store_unavailable: bool
    statistics: bytes
    columns_refused: bool
    held_out: int
    groups: bytes
    group: str
    gone: int
    touched: bytes
    touched_counts: bytes
    touched_told: bool
    next: LeaseRequest
    unpredictable: _containers.RepeatedCompositeFieldContainer[LeftOut]
    refused_of: _containers.ScalarMap[str, int]
    def __init__(self, trainer_id: _Optional[int] = ..., generation: _Optional[int] = ..., task_id: _Optional[str] = ..., attempt: _Optional[str] = ..., error: _Optional[str] = ..., records: _Optional[int] = ..., shows: _Optional[int] = ..., clicks: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., ignored: _Optional[int] = ..., padding: _Optional[int] = ..., positives: _Optional[bytes] = ..., negatives: _Optional[bytes] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., seconds: _Optional[float] = ..., save: _Optional[_Union[SaveResult, _Mapping]] = ..., table_unchanged: bool = ..., store_unavailable: bool = ..., statistics: _Optional[bytes] = ..., columns_refused: bool = ..., held_out: _Optional[int] = ..., groups: _Optional[bytes] = ..., group: _Optional[str] = ..., gone: _Optional[int] = ..., touched: _Optional[bytes] = ..., touched_counts: _Optional[bytes] = ..., touched_told: bool = ..., next: _Optional[_Union[LeaseRequest, _Mapping]] = ..., unpredictable: _Optional[_Iterable[_Union[LeftOut, _Mapping]]] = ..., refused_of: _Optional[_Mapping[str, int]] = ...) -> None: ...

class SaveResult(_message.Message):
    __slots__ = ("model_files", "keys", "values", "live", "published", "seconds", "refused", "values_kind", "quantised_diff", "rows", "cube_files", "counts_file")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FILES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    VALUES_KIND_FIELD_NUMBER: _ClassVar[int]
    QUANTISED_DIFF_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CUBE_FILES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FILE_FIELD_NUMBER: _ClassVar[int]
    model_files: _containers.RepeatedCompositeFieldContainer[File]
    keys: bytes
    values: bytes
    live: bytes
    published: bytes
    seconds: _containers.ScalarMap[str, float]
    refused: str
    values_kind: str
    quantised_diff: float
    rows: _containers.RepeatedScalarFieldContainer[int]
    cube_files: _containers.RepeatedCompositeFieldContainer[File]
    counts_file: File
    def __init__(self, model_files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., keys: _Optional[bytes] = ..., values: _Optional[bytes] = ..., live: _Optional[bytes] = ..., published: _Optional[bytes] = ..., seconds: _Optional[_Mapping[str, float]] = ..., refused: _Optional[str] = ..., values_kind: _Optional[str] = ..., quantised_diff: _Optional[float] = ..., rows: _Optional[_Iterable[int]] = ..., cube_files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., counts_file: _Optional[_Union[File, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("trainer_id", "generation", "attempts", "running")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    trainer_id: int
    generation: int
    attempts: _containers.RepeatedScalarFieldContainer[str]
    running: str
    def __init__(self, trainer_id: _Optional[int] = ..., generation: _Optional[int] = ..., attempts: _Optional[_Iterable[str]] = ..., running: _Optional[str] = ...) -> None: ...

class UnreachableReport(_message.Message):
    __slots__ = ("trainer_id", "generation", "server", "reason")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    trainer_id: int
    generation: int
    server: str
    reason: str
    def __init__(self, trainer_id: _Optional[int] = ..., generation: _Optional[int] = ..., server: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
