"""The mends on the pages of diagnostics come from the findings themselves."""

from __future__ import annotations

from sglang_kimi_eagle.diagnostic_pages import all_rules
from sglang_kimi_eagle.diagnostics import Severity
from sglang_kimi_eagle.mends import mends


def test_every_error_of_drafter_and_launch_says_how_to_mend_it() -> None:
    known = mends()
    checked = [
        rule.code
        for rule in all_rules()
        if rule.severity is Severity.ERROR and "KE100" < rule.code < "KE700"
    ]
    assert len(checked) > 60
    assert [code for code in checked if not known.get(code)] == []


def test_what_was_seen_is_left_out_and_helpers_are_followed() -> None:
    known = mends()
    assert known["KE501"] == ["Use --speculative-algorithm EAGLE3."]
    assert "Add --speculative-draft-model-quantization unquant." in known["KE611"]
    assert "List the ... layer ids it was trained with in eagle_config." in known["KE310"]
    assert "Use SGLang 0.5.17 or later." in known["KE313"]
