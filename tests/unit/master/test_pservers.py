from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.pservers import GENERATION_PORTS, Pservers


def known(*, generation: int = 1, serving: bool = True, error: str = "", count: int = 2) -> Pservers:
    found = Pservers(2)
    for index in range(count):
        found.learn(
            control.PserverState(
                index=index,
                incarnation="x",
                host="h",
                port=8800 + 16 * index,
                generation=generation,
                serving=serving,
                error=error,
            ),
            now=100.0,
        )
    return found


def test_there_are_no_endpoints_until_every_parent_is_known() -> None:
    assert known(count=1).endpoints(1) == []


def test_each_of_sixteen_generations_has_ports_of_its_own() -> None:
    one = known()

    found = [tuple(one.endpoints(generation)) for generation in range(1, 1 + GENERATION_PORTS)]

    assert found[0] == ("h:8801", "h:8817")
    assert len({endpoint for pair in found for endpoint in pair}) == 2 * GENERATION_PORTS
    assert one.endpoints(1 + GENERATION_PORTS) == one.endpoints(1)


def test_who_is_waited_for_is_named_with_its_error() -> None:
    assert known().waiting_for(1) == ""
    assert known(generation=1).waiting_for(2) == "pserver 0, 1 of 2"
    assert known(serving=False, error="no memory").waiting_for(1) == "pserver 0, 1 of 2 (no memory)"
    assert known(count=1).waiting_for(1) == "pserver 1 of 2"


def test_a_parent_is_silent_after_its_time_until_it_is_forgotten() -> None:
    one = known()

    assert one.silent(105.0, 5.0) == []
    assert one.silent(105.1, 5.0) == [0, 1]
    one.forget(0)
    assert one.silent(105.1, 5.0) == [1]


def test_those_that_never_called_are_unheard_too_and_others_begin_unknown() -> None:
    found = Pservers(3)
    found.learn(control.PserverState(index=1, host="a"), 10.0)
    found.learn(control.PserverState(index=2, host="b"), 5.0)

    assert found.silent_since(6.0) == [0, 2]
    found.begin(1)
    assert found.count == 1
    assert found.get(1) is None
