"""The V2 form of forced decoding, on the real interface and loader of vLLM, with tensors on the CPU."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ds4_kernels.forced_tokens import ForcedRows, ForcedSlots, ForcedTokens
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, _load_logitsprocs_by_fqcns
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcRequestState,
    build_custom_logits_processors,
    build_custom_logits_processors_params_validator,
    interface,
)

NAME = "ds4_kernels.forced_tokens:ForcedTokens"
VOCABULARY = 50
SLOTS = 6
# SHA-256 of the same file in the wheel vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl
INTERFACE_OF_0_33 = "4172bdc4d3b736cb6670323f84aa8eb310567cd4f288c6ea4ab29e4bb6c9bcdd"


class Runner:
    """The part of vLLM's V2 model runner that a processor sees: slots, and a batch of rows in any order."""

    def __init__(self) -> None:
        self.prompt_len = torch.zeros(SLOTS, dtype=torch.int32)
        self.output: dict[int, list[int]] = {}
        states = SimpleNamespace(
            device=torch.device("cpu"),
            max_num_reqs=SLOTS,
            vocab_size=VOCABULARY,
            all_token_ids=None,
            prompt_len=SimpleNamespace(gpu=self.prompt_len),
            prefill_len=None,
            total_len=None,
        )
        (self.processor,) = build_custom_logits_processors(SimpleNamespace(), states, False, [NAME])

    def add(self, slot: int, prompt: int, forced: list[int] | None, emitted: tuple[int, ...] = ()) -> bool:
        self.prompt_len[slot] = prompt
        self.output[slot] = list(emitted)
        extra = None if forced is None else {"forced_token_ids": forced}
        return self.processor.add_request(slot, SamplingParams(extra_args=extra))

    def step(self, *slots: int, behind: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples for the slots in this order; `behind` positions before the end, as in a chunked prefill."""
        self.processor.apply_staged_writes()
        mapping = torch.tensor(slots, dtype=torch.int32)
        last = [int(self.prompt_len[slot]) + len(self.output[slot]) - 1 - behind for slot in slots]
        context = LogitsContext(
            expanded_idx_mapping=mapping,
            idx_mapping=mapping,
            idx_mapping_np=np.array(slots, dtype=np.int32),
            expanded_local_pos=torch.zeros(len(slots), dtype=torch.int32),
            input_ids=torch.zeros(len(slots), dtype=torch.int32),
            pos=torch.tensor(last, dtype=torch.int64),
            seq_lens_upper_bound_np=np.array(last, dtype=np.int32) + 1,
        )
        before = torch.randn(len(slots), VOCABULARY)
        after = self.processor.apply(before.clone(), context)
        if not behind:
            for slot, token in zip(slots, after.argmax(1).tolist(), strict=True):
                self.output[slot].append(token)
        return before, after


def test_interface_is_that_of_0_33() -> None:
    assert hashlib.sha256(Path(interface.__file__).read_bytes()).hexdigest() == INTERFACE_OF_0_33


def test_each_runner_gets_its_form() -> None:
    assert isinstance(Runner().processor, ForcedSlots)
    rows = ForcedTokens(SimpleNamespace(), torch.device("cpu"), False)
    assert isinstance(rows, ForcedRows)
    rows.update_state(BatchUpdate(batch_size=0, removed=[], added=[], moved=[]))


def test_forces_each_token_in_turn_then_lets_go() -> None:
    runner = Runner()
    assert runner.add(2, 7, [7, 0, 49])
    for token in (7, 0, 49):
        _, after = runner.step(2)
        assert after.argmax() == token
        assert (after != -torch.inf).sum() == 1
    before, after = runner.step(2)
    assert torch.equal(before, after)


def test_rows_in_any_order_beside_free_requests() -> None:
    runner = Runner()
    lists = {0: list(range(10)), 3: list(range(20, 30)), 5: list(range(30, 40))}
    for slot, forced in lists.items():
        runner.add(slot, 3 + slot, forced)
    assert not runner.add(1, 9, None)
    orders = [(0, 1, 3, 5), (5, 3, 1, 0), (3, 0), (1, 5), (0, 5, 3)]
    for order in orders:
        before, after = runner.step(*order)
        for row, slot in enumerate(order):
            if slot == 1:
                assert torch.equal(before[row], after[row])
    for slot, forced in lists.items():
        assert runner.output[slot] == forced[: len(runner.output[slot])]
        assert len(runner.output[slot]) >= 4


def test_slot_is_taken_over_by_the_next_request() -> None:
    runner = Runner()
    runner.add(0, 4, [1, 2, 3, 4, 5])
    runner.step(0)
    runner.add(0, 8, [9])
    assert runner.step(0)[1].argmax() == 9
    before, after = runner.step(0)
    assert torch.equal(before, after)
    runner.add(0, 8, None)
    before, after = runner.step(0)
    assert torch.equal(before, after)


def test_a_resumed_request_goes_on_where_it_was() -> None:
    runner = Runner()
    runner.add(4, 12, [7, 8, 9], emitted=(7, 8))
    assert runner.step(4)[1].argmax() == 9


def test_prompt_that_is_not_read_to_its_end_is_not_forced() -> None:
    runner = Runner()
    runner.add(1, 12, [7])
    before, after = runner.step(1, behind=4)
    assert torch.equal(before, after)
    assert runner.step(1)[1].argmax() == 7


def test_longer_list_keeps_those_of_other_slots() -> None:
    runner = Runner()
    runner.add(0, 3, [11, 12])
    runner.step(0)
    runner.add(1, 3, list(range(40)))
    runner.step(0, 1)
    assert runner.output == {0: [11, 12], 1: [0]}


def test_token_outside_the_vocabulary_leaves_its_position_free() -> None:
    runner = Runner()
    runner.add(0, 3, [5, VOCABULARY, 6])
    assert runner.step(0)[1].argmax() == 5
    before, after = runner.step(0)
    assert torch.equal(before, after)
    assert runner.step(0)[1].argmax() == 6


def test_malformed_list_is_refused_where_requests_are_admitted() -> None:
    validate = build_custom_logits_processors_params_validator([NAME])
    validate(SamplingParams(extra_args={"forced_token_ids": [1]}))
    with pytest.raises(VLLMValidationError, match=r"forced_token_ids\[1\]"):
        validate(SamplingParams(extra_args={"forced_token_ids": [1, -2]}))


def test_states_are_read_as_vllm_hands_them_over() -> None:
    fields = set(LogitsProcRequestState.__dataclass_fields__)
    assert {"device", "max_num_reqs", "vocab_size", "prompt_len"} <= fields


def test_v1_runner_loads_the_same_name() -> None:
    (kind,) = _load_logitsprocs_by_fqcns([NAME])
    assert isinstance(kind(SimpleNamespace(), torch.device("cpu"), False), ForcedRows)
