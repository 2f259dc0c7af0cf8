"""Whether to follow a master that serves another training."""

from elastic_ctr.control.foreign_master import ForeignMasterGrace


def test_a_master_of_the_same_training_is_followed_at_once() -> None:
    assert ForeignMasterGrace(lambda: 0.0).may_end(wrong_training=False)


def test_a_master_of_another_training_is_followed_after_a_while() -> None:
    now = [100.0]
    one = ForeignMasterGrace(lambda: now[0])

    assert not one.may_end(wrong_training=True)
    now[0] += ForeignMasterGrace.SECONDS - 1
    assert not one.may_end(wrong_training=True)
    now[0] += 1
    assert one.may_end(wrong_training=True)


def test_the_while_begins_anew_with_every_master_of_the_same_training() -> None:
    now = [100.0]
    one = ForeignMasterGrace(lambda: now[0])
    one.may_end(wrong_training=True)
    now[0] += ForeignMasterGrace.SECONDS
    one.may_end(wrong_training=False)

    assert not one.may_end(wrong_training=True)
