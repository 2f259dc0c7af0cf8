from elastic_ctr.master.leases import Lease


def test_a_lease_is_over_once_its_end_has_passed() -> None:
    lease = Lease(1, "save:1", began=0.0, ends=100.0, longest=1000.0)

    assert [lease.over(now) for now in (99.0, 100.0, 100.1)] == [False, False, True]
    assert not lease.overdue(100.1)


def test_a_lease_that_is_renewed_for_ever_is_over_after_the_longest_time() -> None:
    lease = Lease(1, "save:1", began=0.0, ends=1e9, longest=1000.0)

    assert [lease.over(now) for now in (1000.0, 1000.1)] == [False, True]
    assert lease.overdue(1000.1)
