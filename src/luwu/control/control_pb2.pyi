from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLED_BACK: _ClassVar[StepEnd]
    COMMITTED: _ClassVar[StepEnd]
    PREPARED: _ClassVar[StepEnd]
    NOT_FINITE: _ClassVar[StepEnd]
    VOID: _ClassVar[StepEnd]

class WorkerPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BETWEEN_STEPS: _ClassVar[WorkerPhase]
    FORWARD: _ClassVar[WorkerPhase]
    BACKWARD: _ClassVar[WorkerPhase]
    AFTER_BACKWARD: _ClassVar[WorkerPhase]
    ENDING: _ClassVar[WorkerPhase]
ROLLED_BACK: StepEnd
COMMITTED: StepEnd
PREPARED: StepEnd
NOT_FINITE: StepEnd
VOID: StepEnd
BETWEEN_STEPS: WorkerPhase
FORWARD: WorkerPhase
BACKWARD: WorkerPhase
AFTER_BACKWARD: WorkerPhase
ENDING: WorkerPhase

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("protocol_version", "nonce")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    nonce: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol_version", "nonce", "asks_for_key")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ASKS_FOR_KEY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    nonce: bytes
    asks_for_key: bool
    def __init__(self, protocol_version: _Optional[int] = ..., nonce: _Optional[bytes] = ..., asks_for_key: bool = ...) -> None: ...

class JoinWorkerRequest(_message.Message):
    __slots__ = ("nonce", "proof", "rank", "workers")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    rank: int
    workers: int
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., rank: _Optional[int] = ..., workers: _Optional[int] = ...) -> None: ...

class JoinSwitchRequest(_message.Message):
    __slots__ = ("nonce", "proof", "name", "address", "port", "fan_in", "payload_bytes", "parent")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    FAN_IN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    name: str
    address: str
    port: int
    fan_in: int
    payload_bytes: int
    parent: str
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., port: _Optional[int] = ..., fan_in: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., parent: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("session", "proof", "transport", "job")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    proof: bytes
    transport: str
    job: int
    def __init__(self, session: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., transport: _Optional[str] = ..., job: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Event(_message.Message):
    __slots__ = ("watching", "failure", "topology", "closing", "notice", "job", "places", "stop", "ended", "trace")
    WATCHING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    watching: Watching
    failure: Failure
    topology: Topology
    closing: Closing
    notice: Notice
    job: RunJob
    places: Places
    stop: Stop
    ended: RunEnded
    trace: SwitchTrace
    def __init__(self, watching: _Optional[_Union[Watching, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., topology: _Optional[_Union[Topology, _Mapping]] = ..., closing: _Optional[_Union[Closing, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., job: _Optional[_Union[RunJob, _Mapping]] = ..., places: _Optional[_Union[Places, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., ended: _Optional[_Union[RunEnded, _Mapping]] = ..., trace: _Optional[_Union[SwitchTrace, _Mapping]] = ...) -> None: ...

class Watching(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SwitchTrace(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: int
    def __init__(self, records: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error", "message")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Closing(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text", "fenced", "void_attempt")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    VOID_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    text: str
    fenced: int
    void_attempt: int
    def __init__(self, text: _Optional[str] = ..., fenced: _Optional[int] = ..., void_attempt: _Optional[int] = ...) -> None: ...

class RunJob(_message.Message):
    __slots__ = ("job", "files")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    job: str
    files: _containers.RepeatedCompositeFieldContainer[RunFile]
    def __init__(self, job: _Optional[str] = ..., files: _Optional[_Iterable[_Union[RunFile, _Mapping]]] = ...) -> None: ...

class Places(_message.Message):
    __slots__ = ("ranks",)
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class RunFile(_message.Message):
    __slots__ = ("name", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunEnded(_message.Message):
    __slots__ = ("stopped", "error", "message")
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    stopped: bool
    error: str
    message: str
    def __init__(self, stopped: bool = ..., error: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Topology(_message.Message):
    __slots__ = ("job", "workers", "address", "port", "position", "below", "network", "incarnation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job: int
    workers: int
    address: str
    port: int
    position: int
    below: _containers.RepeatedCompositeFieldContainer[Neighbour]
    network: Network
    incarnation: int
    def __init__(self, job: _Optional[int] = ..., workers: _Optional[int] = ..., address: _Optional[str] = ..., port: _Optional[int] = ..., position: _Optional[int] = ..., below: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., network: _Optional[_Union[Network, _Mapping]] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Network(_message.Message):
    __slots__ = ("key", "epoch", "payload_bytes", "form", "windows", "heartbeat_seconds", "idle_heartbeat_seconds", "resend_seconds", "longest_resend_seconds", "queueing_seconds", "parent_address", "parent_port", "group_address", "group_port")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESEND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_RESEND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUEING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PARENT_PORT_FIELD_NUMBER: _ClassVar[int]
    GROUP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUP_PORT_FIELD_NUMBER: _ClassVar[int]
    key: int
    epoch: int
    payload_bytes: int
    form: str
    windows: _containers.RepeatedScalarFieldContainer[int]
    heartbeat_seconds: float
    idle_heartbeat_seconds: float
    resend_seconds: float
    longest_resend_seconds: float
    queueing_seconds: float
    parent_address: str
    parent_port: int
    group_address: str
    group_port: int
    def __init__(self, key: _Optional[int] = ..., epoch: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., form: _Optional[str] = ..., windows: _Optional[_Iterable[int]] = ..., heartbeat_seconds: _Optional[float] = ..., idle_heartbeat_seconds: _Optional[float] = ..., resend_seconds: _Optional[float] = ..., longest_resend_seconds: _Optional[float] = ..., queueing_seconds: _Optional[float] = ..., parent_address: _Optional[str] = ..., parent_port: _Optional[int] = ..., group_address: _Optional[str] = ..., group_port: _Optional[int] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("name", "address", "port")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    port: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class StandingRequest(_message.Message):
    __slots__ = ("manifest", "jobs")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    jobs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, manifest: _Optional[str] = ..., jobs: _Optional[_Iterable[int]] = ...) -> None: ...

class StandingReply(_message.Message):
    __slots__ = ("uuid", "steps", "has_model", "commit_points", "under_way")
    UUID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HAS_MODEL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_POINTS_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    steps: _containers.RepeatedScalarFieldContainer[int]
    has_model: bool
    commit_points: str
    under_way: bool
    def __init__(self, uuid: _Optional[str] = ..., steps: _Optional[_Iterable[int]] = ..., has_model: bool = ..., commit_points: _Optional[str] = ..., under_way: bool = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("servers", "uuid", "step")
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    servers: int
    uuid: str
    step: int
    def __init__(self, servers: _Optional[int] = ..., uuid: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("manifest", "address", "port", "payload_bytes", "switch", "share", "run", "kept", "jobs")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    address: str
    port: int
    payload_bytes: int
    switch: str
    share: Share
    run: str
    kept: _containers.RepeatedScalarFieldContainer[str]
    jobs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, manifest: _Optional[str] = ..., address: _Optional[str] = ..., port: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., switch: _Optional[str] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., run: _Optional[str] = ..., kept: _Optional[_Iterable[str]] = ..., jobs: _Optional[_Iterable[int]] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("fresh", "step", "attempts", "rolled_back", "data_token", "loss_scale", "first_step", "first_attempts", "first_rolled_back", "word", "worker_return_seconds", "aggregate")
    FRESH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    DATA_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    WORKER_RETURN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    fresh: bool
    step: int
    attempts: int
    rolled_back: int
    data_token: bytes
    loss_scale: LossScale
    first_step: int
    first_attempts: int
    first_rolled_back: int
    word: str
    worker_return_seconds: float
    aggregate: str
    def __init__(self, fresh: bool = ..., step: _Optional[int] = ..., attempts: _Optional[int] = ..., rolled_back: _Optional[int] = ..., data_token: _Optional[bytes] = ..., loss_scale: _Optional[_Union[LossScale, _Mapping]] = ..., first_step: _Optional[int] = ..., first_attempts: _Optional[int] = ..., first_rolled_back: _Optional[int] = ..., word: _Optional[str] = ..., worker_return_seconds: _Optional[float] = ..., aggregate: _Optional[str] = ...) -> None: ...

class InitialisedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetSegmentsRequest(_message.Message):
    __slots__ = ("block", "segments")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    block: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, block: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("end", "group")
    END_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    end: int
    group: int
    def __init__(self, end: _Optional[int] = ..., group: _Optional[int] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ("groups", "max_grad_norm", "loss_scale")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[HyperParameters]
    max_grad_norm: float
    loss_scale: LossScale
    def __init__(self, groups: _Optional[_Iterable[_Union[HyperParameters, _Mapping]]] = ..., max_grad_norm: _Optional[float] = ..., loss_scale: _Optional[_Union[LossScale, _Mapping]] = ...) -> None: ...

class LossScale(_message.Message):
    __slots__ = ("scale", "good_steps")
    SCALE_FIELD_NUMBER: _ClassVar[int]
    GOOD_STEPS_FIELD_NUMBER: _ClassVar[int]
    scale: float
    good_steps: int
    def __init__(self, scale: _Optional[float] = ..., good_steps: _Optional[int] = ...) -> None: ...

class BeginReply(_message.Message):
    __slots__ = ("epoch", "given_up", "trace_records", "trace_last", "ended")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    TRACE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    TRACE_LAST_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    given_up: bool
    trace_records: int
    trace_last: bool
    ended: int
    def __init__(self, epoch: _Optional[int] = ..., given_up: bool = ..., trace_records: _Optional[int] = ..., trace_last: bool = ..., ended: _Optional[int] = ...) -> None: ...

class HyperParameters(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("roll_back", "pushes", "last_attempt", "report")
    ROLL_BACK_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    LAST_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    roll_back: bool
    pushes: int
    last_attempt: int
    report: str
    def __init__(self, roll_back: bool = ..., pushes: _Optional[int] = ..., last_attempt: _Optional[int] = ..., report: _Optional[str] = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("commits", "squares", "annuls", "attempt")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    ANNULS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    commits: bool
    squares: float
    annuls: bool
    attempt: int
    def __init__(self, commits: bool = ..., squares: _Optional[float] = ..., annuls: bool = ..., attempt: _Optional[int] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("end", "squares", "last_attempt")
    END_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    LAST_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    end: StepEnd
    squares: float
    last_attempt: int
    def __init__(self, end: _Optional[_Union[StepEnd, str]] = ..., squares: _Optional[float] = ..., last_attempt: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class MakeDurableRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MakeDurableReply(_message.Message):
    __slots__ = ("done", "step")
    DONE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    done: bool
    step: int
    def __init__(self, done: bool = ..., step: _Optional[int] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: str
    def __init__(self, report: _Optional[str] = ...) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("attempts", "phase", "block", "acquired", "pushed", "place", "memory_bytes", "link")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    phase: WorkerPhase
    block: str
    acquired: int
    pushed: int
    place: str
    memory_bytes: int
    link: LinkCounts
    def __init__(self, attempts: _Optional[int] = ..., phase: _Optional[_Union[WorkerPhase, str]] = ..., block: _Optional[str] = ..., acquired: _Optional[int] = ..., pushed: _Optional[int] = ..., place: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., link: _Optional[_Union[LinkCounts, _Mapping]] = ...) -> None: ...

class LinkCounts(_message.Message):
    __slots__ = ("transport", "at_seconds", "received_bytes", "sent_bytes", "packets_sent", "packets_again", "packets_dropped")
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PACKETS_SENT_FIELD_NUMBER: _ClassVar[int]
    PACKETS_AGAIN_FIELD_NUMBER: _ClassVar[int]
    PACKETS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    transport: str
    at_seconds: float
    received_bytes: int
    sent_bytes: int
    packets_sent: int
    packets_again: int
    packets_dropped: int
    def __init__(self, transport: _Optional[str] = ..., at_seconds: _Optional[float] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., packets_sent: _Optional[int] = ..., packets_again: _Optional[int] = ..., packets_dropped: _Optional[int] = ...) -> None: ...

class DivideRequest(_message.Message):
    __slots__ = ("attempt", "rows", "seconds")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    rows: int
    seconds: float
    def __init__(self, attempt: _Optional[int] = ..., rows: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class DivideReply(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rows: _Optional[_Iterable[int]] = ...) -> None: ...

class JoinLauncherRequest(_message.Message):
    __slots__ = ("nonce", "proof", "host")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    host: str
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., host: _Optional[str] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: int
    def __init__(self, workers: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("name", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class TellRequest(_message.Message):
    __slots__ = ("rank", "report")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    report: str
    def __init__(self, rank: _Optional[int] = ..., report: _Optional[str] = ...) -> None: ...

class TellReply(_message.Message):
    __slots__ = ("clock",)
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    clock: float
    def __init__(self, clock: _Optional[float] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("nonce", "proof", "look")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    LOOK_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    look: bool
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., look: bool = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("proof", "open", "step", "attempts", "rolled_back", "workers", "present", "missing", "failure", "pause", "unwritten", "since_commit_seconds", "blocks", "block_names", "figures", "switches", "machines", "run", "standby", "aggregate")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PROOF_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    UNWRITTEN_FIELD_NUMBER: _ClassVar[int]
    SINCE_COMMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_NAMES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    open: bool
    step: int
    attempts: int
    rolled_back: int
    workers: int
    present: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    missing: _containers.RepeatedScalarFieldContainer[int]
    failure: str
    pause: str
    unwritten: int
    since_commit_seconds: float
    blocks: bytes
    block_names: _containers.RepeatedScalarFieldContainer[str]
    figures: _containers.ScalarMap[str, float]
    switches: _containers.RepeatedCompositeFieldContainer[SwitchStatus]
    machines: _containers.RepeatedCompositeFieldContainer[MachineStatus]
    run: str
    standby: StandbyStatus
    aggregate: str
    def __init__(self, proof: _Optional[bytes] = ..., open: bool = ..., step: _Optional[int] = ..., attempts: _Optional[int] = ..., rolled_back: _Optional[int] = ..., workers: _Optional[int] = ..., present: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., missing: _Optional[_Iterable[int]] = ..., failure: _Optional[str] = ..., pause: _Optional[str] = ..., unwritten: _Optional[int] = ..., since_commit_seconds: _Optional[float] = ..., blocks: _Optional[bytes] = ..., block_names: _Optional[_Iterable[str]] = ..., figures: _Optional[_Mapping[str, float]] = ..., switches: _Optional[_Iterable[_Union[SwitchStatus, _Mapping]]] = ..., machines: _Optional[_Iterable[_Union[MachineStatus, _Mapping]]] = ..., run: _Optional[str] = ..., standby: _Optional[_Union[StandbyStatus, _Mapping]] = ..., aggregate: _Optional[str] = ...) -> None: ...

class StandbyStatus(_message.Message):
    __slots__ = ("follows", "other", "connected", "in_sync", "step", "generation", "waits_seconds", "trouble", "bytes", "bytes_copied", "replaced")
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAITS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_COPIED_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    follows: bool
    other: str
    connected: bool
    in_sync: bool
    step: int
    generation: int
    waits_seconds: float
    trouble: str
    bytes: int
    bytes_copied: int
    replaced: bool
    def __init__(self, follows: bool = ..., other: _Optional[str] = ..., connected: bool = ..., in_sync: bool = ..., step: _Optional[int] = ..., generation: _Optional[int] = ..., waits_seconds: _Optional[float] = ..., trouble: _Optional[str] = ..., bytes: _Optional[int] = ..., bytes_copied: _Optional[int] = ..., replaced: bool = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("nonce", "proof", "url", "port", "token", "uuid", "advertise")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    ADVERTISE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    url: str
    port: int
    token: bytes
    uuid: str
    advertise: str
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., url: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[bytes] = ..., uuid: _Optional[str] = ..., advertise: _Optional[str] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("proof", "uuid", "manifest", "files", "generation", "in_sync", "step", "refusal")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    uuid: str
    manifest: str
    files: _containers.RepeatedCompositeFieldContainer[StoreFile]
    generation: int
    in_sync: bool
    step: int
    refusal: str
    def __init__(self, proof: _Optional[bytes] = ..., uuid: _Optional[str] = ..., manifest: _Optional[str] = ..., files: _Optional[_Iterable[_Union[StoreFile, _Mapping]]] = ..., generation: _Optional[int] = ..., in_sync: bool = ..., step: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...

class StoreFile(_message.Message):
    __slots__ = ("name", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    content: bytes
    def __init__(self, name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("nonce", "proof", "anyway")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    ANYWAY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    anyway: bool
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., anyway: bool = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("proof", "told")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    told: bool
    def __init__(self, proof: _Optional[bytes] = ..., told: bool = ...) -> None: ...

class TakeOverRequest(_message.Message):
    __slots__ = ("nonce", "proof", "anyway")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    ANYWAY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    anyway: bool
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., anyway: bool = ...) -> None: ...

class TakeOverReply(_message.Message):
    __slots__ = ("proof", "step")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    step: int
    def __init__(self, proof: _Optional[bytes] = ..., step: _Optional[int] = ...) -> None: ...

class MachineStatus(_message.Message):
    __slots__ = ("host", "peer", "ranks", "waits")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    host: str
    peer: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    waits: int
    def __init__(self, host: _Optional[str] = ..., peer: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., waits: _Optional[int] = ...) -> None: ...

class SwitchStatus(_message.Message):
    __slots__ = ("name", "address", "parent", "link")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    parent: str
    link: LinkCounts
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., parent: _Optional[str] = ..., link: _Optional[_Union[LinkCounts, _Mapping]] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("rank", "peer", "progress", "heard_seconds", "behind_seconds")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    HEARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    peer: str
    progress: ProgressRequest
    heard_seconds: float
    behind_seconds: float
    def __init__(self, rank: _Optional[int] = ..., peer: _Optional[str] = ..., progress: _Optional[_Union[ProgressRequest, _Mapping]] = ..., heard_seconds: _Optional[float] = ..., behind_seconds: _Optional[float] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("nonce", "proof", "steps", "most_bytes", "offset", "profile_worker", "alone", "end")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PROFILE_WORKER_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    steps: int
    most_bytes: int
    offset: int
    profile_worker: int
    alone: bool
    end: bool
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., steps: _Optional[int] = ..., most_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., profile_worker: _Optional[int] = ..., alone: bool = ..., end: bool = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("proof", "done", "size", "content", "waits_for")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    done: bool
    size: int
    content: bytes
    waits_for: str
    def __init__(self, proof: _Optional[bytes] = ..., done: bool = ..., size: _Optional[int] = ..., content: _Optional[bytes] = ..., waits_for: _Optional[str] = ...) -> None: ...

class RunTrace(_message.Message):
    __slots__ = ("first_step", "last_step", "processes", "missing")
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    first_step: int
    last_step: int
    processes: _containers.RepeatedCompositeFieldContainer[ProcessTrace]
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., processes: _Optional[_Iterable[_Union[ProcessTrace, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class ProcessTrace(_message.Message):
    __slots__ = ("name", "records", "dropped", "clock_ns", "clock_error_ns", "blocks", "packets", "profile", "servers", "server")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    name: str
    records: bytes
    dropped: int
    clock_ns: int
    clock_error_ns: int
    blocks: _containers.RepeatedScalarFieldContainer[str]
    packets: _containers.RepeatedCompositeFieldContainer[PacketCounts]
    profile: Profile
    servers: _containers.RepeatedCompositeFieldContainer[ClockDifference]
    server: str
    def __init__(self, name: _Optional[str] = ..., records: _Optional[bytes] = ..., dropped: _Optional[int] = ..., clock_ns: _Optional[int] = ..., clock_error_ns: _Optional[int] = ..., blocks: _Optional[_Iterable[str]] = ..., packets: _Optional[_Iterable[_Union[PacketCounts, _Mapping]]] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ..., servers: _Optional[_Iterable[_Union[ClockDifference, _Mapping]]] = ..., server: _Optional[str] = ...) -> None: ...

class ClockDifference(_message.Message):
    __slots__ = ("clock_ns", "clock_error_ns")
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    clock_ns: int
    clock_error_ns: int
    def __init__(self, clock_ns: _Optional[int] = ..., clock_error_ns: _Optional[int] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("events", "names", "tracks", "dropped", "clock_error_ns", "failure")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    events: bytes
    names: _containers.RepeatedScalarFieldContainer[str]
    tracks: _containers.RepeatedScalarFieldContainer[str]
    dropped: int
    clock_error_ns: int
    failure: str
    def __init__(self, events: _Optional[bytes] = ..., names: _Optional[_Iterable[str]] = ..., tracks: _Optional[_Iterable[str]] = ..., dropped: _Optional[int] = ..., clock_error_ns: _Optional[int] = ..., failure: _Optional[str] = ...) -> None: ...

class PacketCounts(_message.Message):
    __slots__ = ("at_ns", "came", "sent", "resent")
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    CAME_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    at_ns: int
    came: int
    sent: int
    resent: int
    def __init__(self, at_ns: _Optional[int] = ..., came: _Optional[int] = ..., sent: _Optional[int] = ..., resent: _Optional[int] = ...) -> None: ...

class TraceRecordsRequest(_message.Message):
    __slots__ = ("records", "dropped", "last", "clock_ns", "clock_error_ns", "blocks", "profile", "servers", "packets")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_NS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    dropped: int
    last: bool
    clock_ns: int
    clock_error_ns: int
    blocks: _containers.RepeatedScalarFieldContainer[str]
    profile: Profile
    servers: _containers.RepeatedCompositeFieldContainer[ClockDifference]
    packets: _containers.RepeatedCompositeFieldContainer[PacketCounts]
    def __init__(self, records: _Optional[bytes] = ..., dropped: _Optional[int] = ..., last: bool = ..., clock_ns: _Optional[int] = ..., clock_error_ns: _Optional[int] = ..., blocks: _Optional[_Iterable[str]] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ..., servers: _Optional[_Iterable[_Union[ClockDifference, _Mapping]]] = ..., packets: _Optional[_Iterable[_Union[PacketCounts, _Mapping]]] = ...) -> None: ...

class TraceRecordsReply(_message.Message):
    __slots__ = ("clock_ns", "profile_bytes")
    CLOCK_NS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    clock_ns: int
    profile_bytes: int
    def __init__(self, clock_ns: _Optional[int] = ..., profile_bytes: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("failure",)
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    failure: str
    def __init__(self, failure: _Optional[str] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("method", "request", "unanswered")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    unanswered: bool
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ..., unanswered: bool = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("reply", "failure")
    REPLY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    reply: bytes
    failure: Failure
    def __init__(self, reply: _Optional[bytes] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...
