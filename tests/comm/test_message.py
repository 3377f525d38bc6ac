"""Heads survive their encoding, and differences are named."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_comm.message import Head, pack

_SIZES = st.integers(0, 2**40)
HEADS = st.builds(
    Head,
    operation=st.sampled_from(["gather", "reduce", "share text", "share bytes", "barrier"]),
    exchange=st.integers(0, 2**63 - 1),
    batch=_SIZES,
    num_tokens=_SIZES,
    heads=_SIZES,
    key_dim=_SIZES,
    value_dim=_SIZES,
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8]),
    device=st.sampled_from([torch.device("cpu"), torch.device("cuda")]),
)
HEAD = Head(
    operation="gather",
    exchange=7,
    batch=2,
    num_tokens=3,
    heads=1,
    key_dim=2,
    value_dim=3,
    dtype=torch.float32,
    device=torch.device("cpu"),
)


@settings(deadline=None, max_examples=100)
@given(HEADS)
def test_a_head_is_what_its_encoding_decodes_to(head):
    assert Head.decode(head.encode()) == head


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, None),
        ({"operation": "reduce"}, "its operation is gather, expected reduce"),
        ({"exchange": 8, "batch": 9}, "it uses another exchange: the ranks hold different masks or plans"),
        ({"heads": 9}, "its heads is 1, expected 9"),
        ({"num_tokens": 9}, "its num_tokens is 3, expected 9"),
        ({"device": torch.device("cuda", 1)}, "its device is cpu, expected cuda"),
        ({"dtype": torch.bfloat16}, "its dtype is torch.float32, expected torch.bfloat16"),
    ],
)
def test_the_first_difference_is_named(change, text):
    assert HEAD.difference(dataclasses.replace(HEAD, **change)) == text


def test_a_shared_text_may_have_any_length():
    shared = dataclasses.replace(HEAD, operation="share text")
    assert shared.difference(dataclasses.replace(shared, num_tokens=99)) is None


def test_a_message_holds_runs_of_tokens_one_after_another():
    k = torch.arange(2 * 5 * 1 * 2.0).reshape(2, 5, 1, 2)
    v = torch.arange(2 * 5 * 1 * 3.0).reshape(2, 5, 1, 3)
    packed_k, packed_v = pack(HEAD, k, v, [(0, 1), (3, 2)]).tensors()
    assert torch.equal(packed_k, k[:, [0, 3, 4]])
    assert torch.equal(packed_v, v[:, [0, 3, 4]])
