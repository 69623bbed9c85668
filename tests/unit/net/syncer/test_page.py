"""The live page: what a browser is told to hold it to, and that it gives a browser no reason to refuse it."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from unlockstep.net.syncer.page import PAGE, PAGE_HEADERS


def policy() -> dict[str, str]:
    """Content-Security-Policy, by directive."""
    return {name: value for name, _, value in (part.partition(" ") for part in PAGE_HEADERS[CSP].split("; "))}


CSP = "Content-Security-Policy"


@pytest.mark.parametrize(("tag", "directive"), [("script", "script-src"), ("style", "style-src")])
def test_its_one_script_and_its_one_style_are_what_the_policy_names(tag: str, directive: str) -> None:
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert policy()[directive] == f"'sha256-{digest}'"


def test_it_speaks_to_its_own_syncer_only_and_stands_in_no_frame() -> None:
    rules = policy()
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"


def test_it_has_no_attribute_that_the_policy_would_drop() -> None:
    markup = re.sub(r"<(script|style)>.*?</\1>", "", PAGE, flags=re.DOTALL)
    assert not re.search(r"\s(on\w+|style|src|href|action)=", markup)
    assert 'setAttribute("style"' not in PAGE and "innerHTML" not in PAGE and "eval(" not in PAGE


def test_a_token_is_kept_with_the_tab_and_shown_in_a_header() -> None:
    assert 'sessionStorage.setItem("token"' in PAGE and "localStorage" not in PAGE and "document.cookie" not in PAGE
    assert 'Authorization: "Bearer " + token' in PAGE
    assert not re.search(r"[?&]token=", PAGE)
