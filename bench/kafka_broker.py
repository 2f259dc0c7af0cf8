"""A real Kafka broker: one node in KRaft mode, from the jars that `tools/get kafka` fetched. Tests and benches start it."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, TopicPartition
from typing_extensions import Self

from elastic_ctr.runtime.child_process import dies_with_this_process

LIB = Path(__file__).parents[1] / "build" / "tools" / "kafka" / "lib"
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
# A killed broker is back sooner where less of it is compiled, and fewer bytes of its log are read again.
_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_SEGMENT_BYTES = 16 << 20


def absent() -> str:
    """What Kafka needs and this machine lacks: `java`, `kafka`; empty where it can be started."""
    if shutil.which("java") is None:
        return "java"
    return "" if LIB.exists() else "kafka"


class Broker:
    """Owns a folder; `stop` and `kill` keep what was written, and `start` begins again with it.

    `listeners` are more of them by name, each with its security protocol; `settings` are further lines of server.properties;
    `users` are those of SCRAM, as kafka-storage takes them. With `leader` it is a second node of that one's cluster. It dies with the
    thread that has started it.
    """

    def __init__(
        self,
        folder: Path,
        free_port: Callable[[], int],
        *,
        listeners: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        users: Sequence[str] = (),
        leader: "Broker | None" = None,
    ) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in protocols}
        self.address = self.addresses["PLAINTEXT"]
        self.controller: str = leader.controller if leader else f"127.0.0.1:{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "server.properties"
        advertised = ",".join(f"{name}://{address}" for name, address in self.addresses.items())
        protocol_map = ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
        lines = [
            f"process.roles={'broker' if leader else 'broker,controller'}",
            f"node.id={2 if leader else 1}",
            f"controller.quorum.voters=1@{self.controller}",
            f"listeners={advertised}{'' if leader else f',CONTROLLER://{self.controller}'}",
            f"advertised.listeners={advertised}",
            f"listener.security.protocol.map={protocol_map},CONTROLLER:PLAINTEXT",
            "controller.listener.names=CONTROLLER",
            "inter.broker.listener.name=PLAINTEXT",
            f"log.dirs={folder / 'data'}",
            f"log.segment.bytes={_SEGMENT_BYTES}",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=1",
            "offsets.topic.num.partitions=1",
            "auto.create.topics.enable=false",
            "group.initial.rebalance.delay.ms=0",
            *settings,
        ]
        self._properties.write_text("\n".join(lines) + "\n")
        scram = [word for user in users for word in ("--add-scram", user)]
        self._run("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._properties), *scram)

    def _java(self, *words: str) -> list[str]:
        return ["java", *_OPTIONS, "-cp", f"{LIB}/*", *words]

    def _run(self, *words: str) -> None:
        done = subprocess.run(self._java(*words), capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def begin(self) -> None:
        """Its process, which answers some seconds later."""
        with (self._folder / "broker.log").open("ab") as log:
            command = self._java("kafka.Kafka", str(self._properties))
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                # Ctrl-C reaches whoever has started it, and that one ends it.
                start_new_session=True,
                preexec_fn=dies_with_this_process(),  # noqa: PLW1509 (it calls prctl alone)
            )

    def start(self, seconds: float = 180) -> Self:
        """Until it answers. Raises RuntimeError with the end of its log."""
        self.begin()
        ends, admin = time.monotonic() + seconds, self.admin
        try:
            while not (answered := _answers(admin)) and self.runs and time.monotonic() < ends:
                pass
        except BaseException:
            self.kill()
            raise
        if not answered:
            self.kill()
            said = (self._folder / "broker.log").read_text()[-4000:]
            raise RuntimeError(f"the broker does not answer: {said}")
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    stop = kill

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "socket.timeout.ms": 5000, "log_level": 2}, logger=None)

    def create(self, topic: str, partitions: int, nodes: Sequence[int] = (), **settings: str) -> None:
        """Settings by their names with underscores for dots. `nodes`: of each partition the node that has it."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        placed = {"replica_assignment": [[node] for node in nodes]} if nodes else {"replication_factor": 1}
        admin = self.admin
        [done] = admin.create_topics([NewTopic(topic, partitions, config=config, **placed)]).values()
        done.result(30)

    def produce(self, topic: str, messages: Iterable[bytes], partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 2}, logger=None)
        for each in messages:
            producer.produce(topic, each, partition=partition)
            producer.poll(0)
        left = producer.flush(30)
        if left:
            raise RuntimeError(f"the broker has not taken {left} messages")

    def delete_up_to(self, topic: str, offset: int, partition: int = 0) -> None:
        """As retention does."""
        admin = self.admin
        [done] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
        done.result(30)


def _answers(admin: AdminClient) -> bool:
    try:
        admin.list_topics(timeout=2)
    except KafkaException:
        return False
    return True
