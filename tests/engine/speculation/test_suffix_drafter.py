"""Texts of a scope: what is found, for whom, how much is kept and for how long."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.request import Request
from engine.speculation.drafter import Proposal, Query
from engine.speculation.suffix_drafter import LEAST_MATCH, TEXT_BYTES, TOKEN_BYTES, SuffixDrafter
from protocol.requests import StorePolicy
from tests.engine.speculation.test_ngram_drafter import request_of

TEXT = list(range(100, 140))


class Requests:
    """Makes requests, which end at once, of a drafter whose clock stands still."""

    def __init__(self, **bounds: int) -> None:
        self.now = 0.0
        self.drafter = SuffixDrafter(lambda: self.now, **bounds)
        self._arrivals = 0
        self._retained: set[str] = set()

    def retain(self, scope: str, seconds: float) -> None:
        self._retained.add(scope)
        self.drafter.retain(scope, seconds)

    def make(
        self, output: Sequence[int], scope: str = "project", root: bytes = b"root", store: StorePolicy = "all"
    ) -> Request:
        self._arrivals += 1
        if scope not in self._retained:
            self.retain(scope, 3600.0)
        request = request_of([1, 2, 3, 4, 5], self._arrivals)
        request.segments, request.store = ((5, root, scope),), store
        for token in output:
            request.tokens.append(token)
        self.drafter.begin(request)
        return request

    def end(self, output: Sequence[int], **fields: object) -> None:
        self.drafter.end(self.make(output, **fields))  # type: ignore[arg-type]
        for _ in range(40):
            self.drafter.catch_up()

    def ask(self, output: Sequence[int], most: int = 5, **fields: object) -> Proposal | None:
        request = self.make(output, **fields)  # type: ignore[arg-type]
        (proposal,) = self.drafter.propose([Query(request, most)])
        return proposal


def test_an_earlier_output_goes_on() -> None:
    requests = Requests()
    assert requests.ask(TEXT[:8]) is None
    requests.end(TEXT)
    proposal = requests.ask([7, 7, *TEXT[3:8]])
    assert proposal is not None
    assert list(proposal.tokens) == TEXT[8:13]
    longer = requests.ask(TEXT[:12])
    assert longer is not None
    assert longer.chance > proposal.chance


def test_the_beginning_of_an_output_is_known_by_the_end_of_the_prompt() -> None:
    requests = Requests()
    requests.end(TEXT)
    proposal = requests.ask([])
    assert proposal is not None
    assert list(proposal.tokens) == TEXT[:5]


def test_what_followed_most_often_is_proposed() -> None:
    requests = Requests()
    for last in (50, 60, 60, 50, 60):
        requests.end([*TEXT[:6], last, last])
    proposal = requests.ask(TEXT[:6])
    assert proposal is not None
    assert list(proposal.tokens) == [60, 60]


def test_while_it_is_right_it_goes_on_at_the_same_place() -> None:
    requests = Requests()
    requests.end(TEXT)
    request = requests.make(TEXT[:6])
    for length in range(6, 30, 4):
        (proposal,) = requests.drafter.propose([Query(request, 3)])
        assert proposal is not None
        assert list(proposal.tokens) == TEXT[length : length + 3]
        for token in TEXT[length : length + 4]:
            request.tokens.append(token)
    request.tokens.append(9)
    assert requests.drafter.propose([Query(request, 3)]) == [None]


def test_scopes_partitions_and_unstored_requests_are_apart() -> None:
    requests = Requests()
    requests.end(TEXT, scope="other")
    requests.end(TEXT, root=b"partition")
    requests.end(TEXT, store="hbm")
    requests.end(TEXT, store="none")
    assert requests.ask(TEXT[:8]) is None
    assert requests.ask(TEXT[:8], scope="other") is not None
    assert requests.ask(TEXT[:8], root=b"partition") is not None
    assert requests.drafter.texts("project") == 1


def test_a_request_that_does_not_read_the_cache_is_told_nothing() -> None:
    requests = Requests()
    requests.end(TEXT)
    request = requests.make(TEXT[:8])
    request.read = False
    assert requests.drafter.propose([Query(request, 3)]) == [None]


def test_a_forgotten_scope_has_no_texts() -> None:
    requests = Requests()
    requests.end(TEXT)
    requests.drafter.end(requests.make(TEXT))  # one that is not in the index yet
    requests.drafter.forget("other")
    assert requests.ask(TEXT[:8]) is not None
    requests.drafter.forget("project")
    assert requests.ask(TEXT[:8]) is None
    assert requests.drafter.size == 0


def test_texts_go_with_their_retention() -> None:
    requests = Requests()
    requests.retain("project", 60.0)
    requests.end(TEXT)
    requests.now = 59.0
    assert requests.ask(TEXT[:8]) is not None
    requests.now = 61.0
    assert requests.ask(TEXT[:8]) is None
    requests.end(TEXT)
    requests.retain("project", 0.0)
    assert requests.ask(TEXT[:8]) is None
    requests.end(TEXT)
    assert requests.drafter.texts("project") == 0


def test_a_purged_scope_keeps_its_retention() -> None:
    requests = Requests()
    requests.retain("project", 60.0)
    requests.end(TEXT)
    requests.drafter.purge("project")
    assert requests.ask(TEXT[:8]) is None
    requests.end(TEXT)
    assert requests.ask(TEXT[:8]) is not None
    requests.now = 61.0
    assert requests.ask(TEXT[:8]) is None
    assert requests.drafter.texts("project") == 0


def test_nothing_is_kept_of_a_scope_whose_retention_is_unknown() -> None:
    requests = Requests()
    requests.end(TEXT)
    running = requests.make(TEXT)
    requests.drafter.forget("project")
    requests.drafter.end(running)
    requests.end(TEXT)
    assert requests.drafter.texts("project") == 0
    assert requests.ask(TEXT[:8]) is None


def test_memory_is_bounded_and_the_least_recently_used_text_goes() -> None:
    size = TEXT_BYTES + TOKEN_BYTES * (LEAST_MATCH + len(TEXT))
    requests = Requests(scope_bytes=3 * size, all_bytes=100 * size)
    for first in range(3):
        requests.end([first, *TEXT[1:]])
    assert requests.ask([0, *TEXT[1:4]]) is not None  # used again, so that the next is the oldest
    requests.end([3, *TEXT[1:]])
    assert requests.drafter.texts("project") == 3
    assert requests.ask([1, *TEXT[1:4]]) is None
    assert requests.ask([0, *TEXT[1:4]]) is not None
    for scope in range(200):
        requests.end(TEXT, scope=str(scope))
        assert requests.drafter.size <= 100 * size
    assert requests.ask(TEXT[:8], scope="0") is None
    assert requests.ask(TEXT[:8], scope="199") is not None


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("end"), st.lists(st.integers(0, 2), max_size=30)),
            st.tuples(st.just("ask"), st.lists(st.integers(0, 2), min_size=1, max_size=8)),
            st.tuples(st.just("purge"), st.just([])),
            st.tuples(st.just("wait"), st.just([])),
        ),
        max_size=40,
    )
)
def test_what_is_proposed_stands_in_a_text_that_is_kept(acts: list[tuple[str, list[int]]]) -> None:
    requests = Requests(scope_bytes=8 * TEXT_BYTES + 60 * TOKEN_BYTES, all_bytes=1 << 20)
    requests.retain("project", 10.0)
    kept: list[list[int]] = []
    for act, tokens in acts:
        match act:
            case "end":
                requests.end(tokens)
                kept.append([2, 3, 4, 5, *tokens])
            case "purge":
                requests.drafter.purge("project")
                kept.clear()
            case "wait":
                requests.now += 3.0
            case _:
                proposal = requests.ask(tokens)
                if proposal is not None:
                    known = [5, *tokens][-LEAST_MATCH:] if len(tokens) < LEAST_MATCH else tokens[-LEAST_MATCH:]
                    whole = [*known, *proposal.tokens] if len(known) == LEAST_MATCH else list(proposal.tokens)
                    assert any(whole == text[at : at + len(whole)] for text in kept for at in range(len(text)))
    requests.drafter.forget("project")
    assert requests.drafter.size == 0


def test_however_many_partitions_a_client_names_few_are_kept() -> None:
    requests = Requests()
    for number in range(2100):
        requests.drafter.end(requests.make(TEXT[:4], root=str(number).encode()))
    assert requests.drafter.texts("project") <= 2048
    requests.retain("project", 5.0)
    requests.now = 10.0
    for _ in range(400):
        requests.drafter.catch_up()
    assert requests.drafter.size == 0


def test_texts_go_with_their_retention_though_nobody_asks() -> None:
    requests = Requests()
    requests.retain("project", 10.0)
    requests.end(TEXT)
    requests.now = 12.0
    requests.drafter.catch_up()
    assert requests.drafter.texts("project") == 0


def test_what_one_scope_has_too_much_of_costs_no_other_its_texts() -> None:
    requests = Requests()
    requests.end(TEXT, scope="other")
    for number in range(2100):
        requests.drafter.end(requests.make(TEXT[:4], root=str(number).encode()))
    assert requests.drafter.texts("project") <= 256
    assert requests.ask(TEXT[:8], scope="other") is not None


def test_the_partitions_of_a_scope_share_its_memory() -> None:
    size = TEXT_BYTES + TOKEN_BYTES * (LEAST_MATCH + len(TEXT))
    requests = Requests(scope_bytes=3 * size, all_bytes=100 * size)
    for number in range(10):
        requests.end(TEXT, root=str(number).encode())
    assert requests.drafter.texts("project") == 3
    assert requests.ask(TEXT[:8], root=b"9") is not None
    assert requests.ask(TEXT[:8], root=b"6") is None
