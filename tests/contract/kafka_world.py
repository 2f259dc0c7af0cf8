"""A real Kafka broker: one node in KRaft mode, from the jars that `tools/get kafka` fetched."""

import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, TopicPartition

from needs import needs
from ports import free_port

LIB = Path(__file__).parents[2] / "build" / "tools" / "kafka" / "lib"
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def why_not() -> str:
    """The reason to skip where Kafka cannot be started; else empty."""
    if shutil.which("java") is None:
        return needs("Java", "apt-get install openjdk-17-jdk-headless")
    return "" if LIB.exists() else needs("kafka")


class Broker:
    """Owns a folder; `stop` and `kill` keep what was written, and `start` begins again with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{free_port()}"
        controller = f"127.0.0.1:{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._properties = folder / "server.properties"
        self._properties.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@{controller}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={folder / 'data'}\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\ntransaction.state.log.num.partitions=1\noffsets.topic.num.partitions=1\n"
            "auto.create.topics.enable=false\ngroup.initial.rebalance.delay.ms=0\n"
        )
        self._run("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._properties))

    def _java(self, *words: str) -> list[str]:
        return ["java", *_OPTIONS, "-cp", f"{LIB}/*", *words]

    def _run(self, *words: str) -> None:
        done = subprocess.run(self._java(*words), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, seconds: float = 180) -> "Broker":
        with (self._folder / "broker.log").open("ab") as log:
            command = self._java("kafka.Kafka", str(self._properties))
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        ends, admin = time.monotonic() + seconds, self.admin
        while not _answers(admin):
            if self._process.poll() is not None or time.monotonic() > ends:
                self.kill()
                raise AssertionError(f"the broker does not answer: {(self._folder / 'broker.log').read_text()[-4000:]}")
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    stop = kill

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "socket.timeout.ms": 5000, "log_level": 2}, logger=None)

    def create(self, topic: str, partitions: int, **settings: str) -> None:
        """Settings by their names with underscores for dots."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        admin = self.admin
        [done] = admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values()
        done.result(30)

    def produce(self, topic: str, messages: Iterable[bytes], partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 2}, logger=None)
        for each in messages:
            producer.produce(topic, each, partition=partition)
            producer.poll(0)
        assert producer.flush(30) == 0

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
