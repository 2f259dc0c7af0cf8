import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from elastic_ctr.cube.release import AgentReport, Holder, Placement, ReaderReport, ReleaseDocument, RollbackOrder

versions = st.integers(1, 2**53)
holders = st.builds(Holder, partitions=st.lists(st.integers(0, 59)).map(tuple), draining=st.booleans())
documents = st.builds(
    ReleaseDocument,
    generation=st.integers(1, 9),
    revision=st.integers(0, 9),
    placement=st.builds(Placement, shards=st.integers(1, 9), replicas=st.integers(1, 3)),
    wanted=st.lists(versions, max_size=3).map(tuple),
    candidate=st.none() | versions,
    live=st.none() | versions,
    previous=st.none() | versions,
    promotion_paused=st.booleans(),
    refused=st.dictionaries(versions, st.text(), max_size=3),
    holders=st.dictionaries(versions, st.dictionaries(st.text(), holders, max_size=2), max_size=2),
)


@given(documents)
def test_a_document_is_the_same_after_its_way_over_the_network(document: ReleaseDocument) -> None:
    assert ReleaseDocument.model_validate_json(document.model_dump_json(by_alias=True)) == document


@given(documents)
def test_readers_hear_of_every_version_that_is_wanted_even_of_one_that_nobody_is_named_for(
    document: ReleaseDocument,
) -> None:
    told = document.addresses()

    assert told.keys() == {*document.holders, *document.wanted}
    assert {version: named for version, named in told.items() if named} == {
        version: {address: each.partitions for address, each in named.items()}
        for version, named in document.holders.items()
        if named
    }
    assert document.draining() == {
        a for each in document.holders.values() for a, holder in each.items() if holder.draining
    }


@given(documents, documents)
def test_of_two_documents_at_most_one_is_newer_and_the_generation_goes_first(
    one: ReleaseDocument, other: ReleaseDocument
) -> None:
    assert not (one.is_newer_than(other) and other.is_newer_than(one))
    if one.generation > other.generation:
        assert one.is_newer_than(other)
    assert one.is_newer_than(None)
    assert not one.is_newer_than(one)


@given(documents)
def test_a_report_carries_the_document(document: ReleaseDocument) -> None:
    agent = AgentReport(pod="c-s0-0", address="a:1", shard=0, loaded={5: (1, 2)}, document=document)
    reader = ReaderReport(pod="s", validated=(5,), refused={6: "x"}, max_abs_diff={5: 1e-6}, document=document)

    assert AgentReport.model_validate_json(agent.to_json()) == agent
    assert ReaderReport.model_validate_json(reader.to_json()) == reader


@pytest.mark.parametrize("fields", [{"version": 0}, {"version": 1, "hold": True}, {"version": "x"}])
def test_an_order_that_is_not_understood_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RollbackOrder.model_validate(fields)
