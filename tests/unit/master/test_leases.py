from elastic_ctr.master.leases import Lease


def test_a_lease_is_over_once_its_end_has_passed() -> None:
    lease = Lease(1, "save:1", ends=100.0)

    assert [lease.over(now) for now in (99.0, 100.0, 100.1)] == [False, False, True]
