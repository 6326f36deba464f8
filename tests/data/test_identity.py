"""`prompt_id`: equal for equal content in any container, different for any other content."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from verl_sara.data.identity import ID_LENGTH, prompt_id

MESSAGES = [{"role": "user", "content": "What is 1+1?"}]


def test_the_id_is_pinned():
    """Stored statistics are keyed by it: a change here loses the history of every run."""
    assert prompt_id(MESSAGES, "math", "2") == "f5a4bbc1f635feb1"


def test_containers_white_space_and_unicode_form_do_not_matter():
    expected = prompt_id(MESSAGES, "math", "2")
    assert prompt_id("What is 1+1?", "math", "2") == expected
    assert (
        prompt_id([{"content": "What  is\n1+1? ", "role": "user"}], np.str_("math"), np.str_("2")) == expected
    )
    assert prompt_id(np.array(MESSAGES, dtype=object), "math", "2") == expected
    assert prompt_id("caf\u00e9", "math", "2") == prompt_id("cafe\u0301", "math", "2")
    listed = prompt_id("p", "countdown", {"target": 22, "numbers": [3, 5, 7]})
    assert prompt_id("p", "countdown", {"numbers": np.array([3, 5, 7]), "target": np.int64(22)}) == listed


def test_prompt_source_gold_and_role_matter():
    ids = {
        prompt_id(prompt, source, gold)
        for prompt in ("a", "b", [{"role": "system", "content": "a"}], [{"role": "user", "content": "a b"}])
        for source in ("math", "aime24")
        for gold in ("1", "2", {"target": 1, "numbers": [1, 2]}, {"target": 1, "numbers": [2, 1]})
    }
    assert len(ids) == 32


@given(st.text(), st.text(), st.text())
def test_any_text_has_an_id_without_underscore(prompt, source, gold):
    identity = prompt_id(prompt, source, gold)
    assert len(identity) == ID_LENGTH
    assert set(identity) <= set("0123456789abcdef")
