"""Invariant 3, row independence: a row depends on its own token alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from ds4_kernels.c128a.layout import ViewDesign
from ds4_kernels.contracts.cases import Case, cases
from ds4_kernels.contracts.subjects import Subject
from ds4_kernels.contracts.suite.harness import build


def _rows(subject: Subject, case: Case, design: ViewDesign) -> tuple[list[list[int]], list[int]]:
    """Give each token's active prefix, where the buffers hold it, and the decode tokens' lengths."""
    buffers = build(subject, case, design).memory.buffers
    prefills = len(case.positions) - case.decodes
    decode = buffers.decode[: case.decodes, : case.width].tolist()
    return decode + buffers.prefill[:prefills, : case.width].tolist(), buffers.lens[: case.decodes].tolist()


def test_other_tokens_do_not_matter(subject: Subject, design: ViewDesign) -> None:
    """A row stays as it is when every other token gets another position, request and slot."""

    @given(cases())
    def check(case: Case) -> None:
        rows, lens = _rows(subject, case, design)
        for kept in (0, case.decodes - 1, case.decodes, len(case.positions) - 1):
            others = replace(
                case,
                positions=_but(case.positions, kept, lambda position: position // 2 + 77),
                requests=_but(case.requests, kept, lambda request: (request + 1) % len(case.table)),
                writes=_but(case.writes, kept, lambda writes: not writes),
            )
            changed_rows, changed_lens = _rows(subject, others, design)
            assert changed_rows[kept] == rows[kept], f"row of token {kept} changed with the other tokens"
            if kept < case.decodes:
                assert changed_lens[kept] == lens[kept], f"length of token {kept} changed with the others"

    check()


def test_reversed_tokens_give_reversed_rows(subject: Subject, design: ViewDesign) -> None:
    """The same tokens in reverse order give the same rows in reverse order."""

    @given(cases())
    def check(case: Case) -> None:
        turned = replace(
            case,
            positions=_reversed(case.positions, case.decodes),
            requests=_reversed(case.requests, case.decodes),
            writes=_reversed(case.writes, case.decodes),
        )
        rows, lens = _rows(subject, case, design)
        turned_rows, turned_lens = _rows(subject, turned, design)
        assert turned_rows == list(_reversed(tuple(rows), case.decodes)), "rows do not follow their tokens"
        assert turned_lens == lens[::-1], "lengths do not follow their tokens"

    check()


def _but(values, kept, change):
    """Change every value but one."""
    return tuple(value if index == kept else change(value) for index, value in enumerate(values))


def _reversed(values, decodes):
    """Reverse the decode tokens and the prefill tokens among themselves."""
    return values[:decodes][::-1] + values[decodes:][::-1]
