from elastic_ctr.runtime.growing_pause import growing_pause


def test_a_pause_doubles_with_each_failure_up_to_the_longest() -> None:
    assert [growing_pause(failures, 0.5, 3.0) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_pause_stays_bounded_after_any_number_of_failures() -> None:
    assert growing_pause(1_000_000, 0.1, 5.0) == 5.0
