import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from elastic_ctr.operate.cli import kubectl as module
from elastic_ctr.operate.cli.kubectl import Kubectl, KubectlFailed, PortForward, end, ending_in_order
from elastic_ctr.operate.cli.kubectl import _last_words as last_words
from operate.cli.fake_kubectl import FakeKubectl


@pytest.fixture
def found(kubectl: FakeKubectl) -> Kubectl:
    return Kubectl.found("ns", "kind-ctr")


def test_every_call_names_context_and_namespace(found: Kubectl, kubectl: FakeKubectl) -> None:
    found.read("get", "pods", "--selector", "app.kubernetes.io/name=elastic-ctr")

    assert kubectl.calls == [
        [
            "--context", "kind-ctr", "--namespace", "ns", "get", "pods", "--selector",
            "app.kubernetes.io/name=elastic-ctr", "--output", "json", "--request-timeout=30s",
        ]
    ]  # fmt: skip


def test_it_may_be_another_program_or_several_words(
    kubectl: FakeKubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_blank = tmp_path / "my kubectl"
    with_blank.write_text("")
    with_blank.chmod(0o755)

    monkeypatch.setenv("KUBECTL", "kubectl --kubeconfig=mine")
    assert Kubectl.found("ns", None).command("get")[:2] == [str(kubectl.path), "--kubeconfig=mine"]
    monkeypatch.setenv("KUBECTL", str(with_blank))
    assert Kubectl.found("ns", None).command("get")[0] == str(with_blank)
    monkeypatch.setenv("KUBECTL", " ")
    assert Kubectl.found("ns", None).command("get")[0] == str(kubectl.path)


def test_a_kubectl_that_is_not_there_is_an_error_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBECTL", raising=False)

    with pytest.raises(KubectlFailed, match=r"^kubectl is not there: put kubectl on PATH, set KUBECTL"):
        Kubectl.found("ns", None)
    monkeypatch.setenv("KUBECTL", "/nowhere/kubectl get")
    with pytest.raises(KubectlFailed, match=r"^/nowhere/kubectl is not there"):
        Kubectl.found("ns", None)
    monkeypatch.setenv("KUBECTL", "'kubectl")
    with pytest.raises(KubectlFailed, match="cannot be read: No closing quotation"):
        Kubectl.found("ns", None)


def test_a_refusal_of_kubectl_is_reported_in_its_own_words(found: Kubectl, kubectl: FakeKubectl) -> None:
    kubectl.say(fail="Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout")

    with pytest.raises(KubectlFailed, match=r"kubectl get pods: Unable to connect to the server: dial tcp 10\.0\.0\.1"):
        found.read("get", "pods")


def test_an_answer_that_is_no_json_is_an_error(found: Kubectl, kubectl: FakeKubectl) -> None:
    kubectl.path.write_text("#!/bin/sh\necho '<html>'\n")

    with pytest.raises(KubectlFailed, match="kubectl get pods does not answer in JSON"):
        found.read("get", "pods")


def test_an_answer_that_does_not_come_is_an_error(
    found: Kubectl, kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ASK_SECONDS", 0.05)
    kubectl.path.write_text("#!/bin/sh\nexec sleep 60\n")

    with pytest.raises(KubectlFailed, match="kubectl get pods does not end; is the cluster there"):
        found.read("get", "pods")


def test_a_kubectl_that_is_no_program_is_an_error(found: Kubectl, kubectl: FakeKubectl) -> None:
    kubectl.path.write_text("no program")

    with pytest.raises(KubectlFailed, match="kubectl cannot be started"):
        found.read("get", "pods")
    with pytest.raises(KubectlFailed, match="kubectl cannot be started"):
        PortForward(found, "ctr-master-0", 8701)


def test_a_port_forward_says_where_it_listens_and_ends_when_closed(found: Kubectl, kubectl: FakeKubectl) -> None:
    kubectl.say(forward={"ctr-master-0:8701": 45678})

    forward = PortForward(found, "ctr-master-0", 8701)

    assert forward.address == "127.0.0.1:45678"
    assert forward.open
    [pid] = kubectl.running()
    forward.close()
    forward.close()
    assert kubectl.running() == []
    assert kubectl.calls[0][4:] == ["port-forward", "pod/ctr-master-0", ":8701", "--address", "127.0.0.1"]
    assert pid


def test_a_port_forward_that_fails_or_never_listens_is_an_error_and_leaves_no_process(
    found: Kubectl, kubectl: FakeKubectl
) -> None:
    kubectl.say(forward={"gone:1": "error: unable to forward port because pod is not running", "silent:1": ""})

    with pytest.raises(KubectlFailed, match="to gone: error: unable to forward port because pod is not running"):
        PortForward(found, "gone", 1)
    with pytest.raises(KubectlFailed, match=r"to silent does not listen within 0\.2 s"):
        PortForward(found, "silent", 1, seconds=0.2)
    assert kubectl.running() == []


def test_a_port_forward_that_talks_a_lot_goes_on(found: Kubectl, kubectl: FakeKubectl, tmp_path: Path) -> None:
    # More than a pipe holds, as one line for each connection comes to in an hour of watching.
    done = tmp_path / "done"
    kubectl.path.write_text(
        "#!/bin/sh\necho 'Forwarding from 127.0.0.1:45678 -> 1'\n"
        "i=0; while [ $i -lt 20000 ]; do echo 'Handling connection for 1'; i=$((i+1)); done\n"
        f"touch {done}\nexec sleep 60\n"
    )
    forward = PortForward(found, "ctr-master-0", 1)

    while forward.open and not done.exists():
        threading.Event().wait(0.01)

    assert done.exists()
    forward.close()


def test_one_that_does_not_heed_sigterm_is_killed(
    found: Kubectl, kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_SECONDS", 0.2)
    kubectl.path.write_text("#!/bin/sh\ntrap '' TERM\necho ready\nwhile :; do sleep 60; done\n")
    process = found.started("x", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()

    end(process)

    assert process.poll() == -signal.SIGKILL
    process.stdout.close()


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_wrapper_and_what_it_has_started_end_together(found: Kubectl, kubectl: FakeKubectl) -> None:
    kubectl.path.write_text("#!/bin/sh\nsleep 60 &\necho $!\necho 'Forwarding from 127.0.0.1:45678 -> 1'\nwait\n")
    forward = PortForward(found, "ctr-master-0", 1)
    child = int(forward._said[0])

    forward.close()

    # Both have been told at once; the kernel may end the child a moment after its parent.
    ends = time.monotonic() + 5
    while is_alive(child) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not is_alive(child)


def test_sigterm_leaves_in_order() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit) as left, ending_in_order():
        signal.raise_signal(signal.SIGTERM)

    assert left.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_ending_in_order_keeps_a_signal_handler_that_is_there() -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, _: told.append(signum))
    try:
        with ending_in_order():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert told == [signal.SIGTERM]


def test_signals_are_the_main_threads_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def run() -> None:
        with ending_in_order():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert found == [before]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "it ended without a word"),
        ("a\n\n b \n", "a b"),
        ("1\n2\n3\n4\n", "2 3 4"),
        ("x" * 900, "x" * 500),
        (
            'E1123 21:00:00.1 7 memcache.go:265] "Unhandled Error" err="get"\nThe connection was refused',
            "The connection was refused",
        ),
    ],
)
def test_last_words_are_a_sentence_s_worth(said: str, told: str) -> None:
    assert last_words(said) == told
