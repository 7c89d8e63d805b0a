"""The ids of the requests of lines."""

from __future__ import annotations

from batch_store.records import line_request_id
from storage.database.base import new_id


def test_a_line_has_the_same_id_however_often_it_is_asked_for() -> None:
    batch, other = new_id(), new_id()
    ids = {(number, attempt): line_request_id(batch, number, attempt) for number in range(200) for attempt in range(5)}
    assert len(set(ids.values())) == 1000
    for (number, attempt), id_ in ids.items():
        assert line_request_id(batch, number, attempt) == id_ != line_request_id(other, number, attempt)
        assert (id_.version, id_.variant) == (7, "specified in RFC 4122")
        assert id_.bytes[:6] == batch.bytes[:6], "it lies in the time of its batch"
