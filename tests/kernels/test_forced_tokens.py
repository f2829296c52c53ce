"""The forced-tokens processor follows any sequence of batch changes."""

from types import SimpleNamespace

import pytest
import torch
from ds4_kernels.forced_tokens import ForcedTokens, forced_token_ids
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

VOCABULARY = 50


def processor() -> ForcedTokens:
    return ForcedTokens(SimpleNamespace(), torch.device("cpu"), False)


def params(forced) -> SamplingParams:
    return SamplingParams(extra_args=None if forced is None else {"forced_token_ids": forced})


def update(size, removed=(), added=(), moved=()) -> BatchUpdate:
    return BatchUpdate(batch_size=size, removed=list(removed), added=list(added), moved=list(moved))


def apply(subject: ForcedTokens, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    before = torch.randn(rows, VOCABULARY)
    return before, subject.apply(before.clone())


def test_forces_each_token_in_turn_then_lets_go():
    subject, emitted = processor(), []
    subject.update_state(update(1, added=[(0, params([7, 0, 49]), [1], emitted)]))
    for token in (7, 0, 49):
        _, after = apply(subject, 1)
        assert after.argmax() == token
        assert (after != -torch.inf).sum() == 1
        emitted.append(token)
        subject.update_state(None)
    before, after = apply(subject, 1)
    assert torch.equal(before, after)


def test_a_resumed_request_goes_on_where_it_was():
    subject = processor()
    subject.update_state(update(1, added=[(0, params([7, 8, 9]), [1], [7, 8])]))
    assert apply(subject, 1)[1].argmax() == 9


def test_requests_without_forcing_are_untouched():
    subject = processor()
    subject.update_state(
        update(3, added=[(0, params(None), [1], []), (1, params([3]), [1], []), (2, params([]), [1], [])])
    )
    before, after = apply(subject, 3)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert after[1].argmax() == 3


def test_a_token_outside_the_vocabulary_leaves_the_engine_alive():
    subject = processor()
    subject.update_state(update(1, added=[(0, params([VOCABULARY]), [1], [])]))
    before, after = apply(subject, 1)
    assert torch.equal(before, after)


def test_greedy_requests_need_it_too():
    assert processor().is_argmax_invariant() is False


@pytest.mark.parametrize("wrong", ["1,2", 5, {"a": 1}, [1, "2"], [1.0], [True], [-1], [None]])
def test_malformed_requests_are_refused(wrong):
    with pytest.raises(ValueError, match="forced_token_ids"):
        ForcedTokens.validate_params(params(wrong))


@pytest.mark.parametrize("right", [None, [], [0], [1, 2, 3]])
def test_wellformed_requests_pass(right):
    ForcedTokens.validate_params(params(right))
    assert forced_token_ids(params(right).extra_args) == tuple(right or ())


class Batches(RuleBasedStateMachine):
    """A model of vLLM's batch: rows hold requests, which leave, join, replace one another, move and swap."""

    @initialize()
    def start(self):
        self.subject = processor()
        self.rows: dict[int, tuple[list[int] | None, list[int]]] = {}

    forced = st.none() | st.lists(st.integers(min_value=0, max_value=VOCABULARY - 1), max_size=4)
    row = st.integers(min_value=0, max_value=5)

    @rule(row=row, forced=forced)
    def add_or_replace(self, row, forced):
        emitted: list[int] = []
        self.rows[row] = (forced, emitted)
        self.subject.update_state(update(len(self.rows), added=[(row, params(forced), [1], emitted)]))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove(self, data):
        row = data.draw(st.sampled_from(sorted(self.rows)))
        del self.rows[row]
        self.subject.update_state(update(len(self.rows), removed=[row]))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), forced=forced)
    def remove_then_add_in_one_update(self, data, forced):
        row = data.draw(st.sampled_from(sorted(self.rows)))
        emitted: list[int] = []
        self.rows[row] = (forced, emitted)
        self.subject.update_state(
            update(len(self.rows), removed=[row], added=[(row, params(forced), [1], emitted)])
        )

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), destination=row)
    def move(self, data, destination):
        source = data.draw(st.sampled_from(sorted(self.rows)))
        if source == destination:
            return
        self.rows[destination] = self.rows.pop(source)
        moved = [(source, destination, MoveDirectionality.UNIDIRECTIONAL)]
        self.subject.update_state(update(len(self.rows), moved=moved))

    @precondition(lambda self: len(self.rows) > 1)
    @rule(data=st.data())
    def swap(self, data):
        first, second = data.draw(st.permutations(sorted(self.rows)))[:2]
        self.rows[first], self.rows[second] = self.rows[second], self.rows[first]
        self.subject.update_state(update(len(self.rows), moved=[(first, second, MoveDirectionality.SWAP)]))

    @rule(token=st.integers(min_value=0, max_value=VOCABULARY - 1))
    def emit(self, token):
        for _, emitted in self.rows.values():
            emitted.append(token)
        self.subject.update_state(None)

    @invariant()
    def each_row_is_forced_as_its_request_asks(self):
        before, after = apply(self.subject, 6)
        for row in range(6):
            forced, emitted = self.rows.get(row, (None, []))
            if forced and len(emitted) < len(forced):
                assert after[row].argmax() == forced[len(emitted)]
                assert (after[row] == -torch.inf).sum() == VOCABULARY - 1
            else:
                assert torch.equal(before[row], after[row])


Batches.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBatches = Batches.TestCase
