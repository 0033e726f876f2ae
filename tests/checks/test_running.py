"""How checks are run: silence, strictness, extensions, and the pages of their codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from drafter_files import llama
from judging import LAUNCH, changed, codes, judge
from sglang_kimi_eagle import diagnostics, extending
from sglang_kimi_eagle.checks import Context, unknown_codes
from sglang_kimi_eagle.diagnostic_pages import pages
from sglang_kimi_eagle.diagnostics import Diagnostic, Severity, rule
from sglang_kimi_eagle.server_arguments import BadCommandLine, ServerArguments
from sglang_kimi_eagle.settings import Settings

DOCS = Path(__file__).parent.parent.parent / "docs" / "diagnostics"
BROKEN = changed(llama(), eagle_config=None, torch_dtype="float16")


def test_silence_by_code() -> None:
    assert codes(BROKEN) == ["KE121", "KE610"]
    assert codes(BROKEN, settings=Settings(ignore=frozenset({"KE121"}))) == ["KE610"]


def test_strict_promotes_warnings() -> None:
    severities = {f.code: f.severity for f in judge(BROKEN, settings=Settings(strict=True))}
    assert severities == {"KE121": Severity.ERROR, "KE610": Severity.ERROR}


class Extension:
    """What another package brings."""

    @extending.hookimpl
    def kimi_eagle_checks(self) -> list[object]:
        def check(context: Context) -> Iterator[Diagnostic]:
            if context.drafter is not None:
                yield extending.BROKEN.found("theirs")

        def fails(context: Context) -> list[Diagnostic]:
            raise RuntimeError("out of order")

        return [check, fails]

    @extending.hookimpl
    def kimi_eagle_silenced(self) -> list[str]:
        return ["KE610"]


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SimpleNamespace]]:
    found: list[SimpleNamespace] = []
    monkeypatch.setattr(extending.metadata, "entry_points", lambda group: found)
    extending.extensions.cache_clear()
    yield found
    extending.extensions.cache_clear()


def test_another_package_adds_and_silences_checks(entry_points: list[SimpleNamespace]) -> None:
    entry_points.append(SimpleNamespace(name="theirs", load=Extension))
    findings = judge(BROKEN)
    assert [finding.code for finding in findings] == ["KE121", "KE019", "KE019"]
    assert findings[1].message == "theirs"
    assert "out of order" in findings[2].seen


def test_a_package_that_cannot_be_loaded(entry_points: list[SimpleNamespace]) -> None:
    def load() -> None:
        raise ImportError("no module named theirs")

    entry_points.append(SimpleNamespace(name="theirs", load=load))
    (finding,) = judge(llama())
    assert (finding.code, finding.severity) == ("KE019", Severity.WARNING)
    assert "theirs" in finding.where


def test_pages_are_current() -> None:
    wanted = pages()
    present = {path.name: path.read_text("utf-8") for path in DOCS.glob("*.md")}
    assert present == wanted, "run python -m sglang_kimi_eagle.diagnostic_pages docs/diagnostics"


def test_every_rule_has_an_example_and_a_summary() -> None:
    for name, page in pages().items():
        assert name == "README.md" or "## Example" in page, name


def test_arguments_from_a_command_line() -> None:
    command = (
        "python -m sglang.launch_server --model-path=kimi --tp 8 --speculative-algo eagle3 "
        "--speculative-draft-model drafter --pp-size 2 --enable-dp-attention --port 1"
    )
    arguments = ServerArguments.from_command_line(
        command.split(), {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "true"}
    )
    assert arguments == ServerArguments(
        model_path="kimi",
        speculative_algorithm="eagle3",
        draft_model_path="drafter",
        pp_size=2,
        enable_dp_attention=True,
        allow_longer_context=True,
    )
    assert arguments.algorithm == "EAGLE3"


@pytest.mark.parametrize("words", ["--pp-size two", "--model-path", "--context-length 2k"])
def test_arguments_that_are_none(words: str) -> None:
    with pytest.raises(BadCommandLine):
        ServerArguments.from_command_line(words.split(), {})


def test_arguments_from_sglang() -> None:
    raw = SimpleNamespace(
        model_path="kimi",
        speculative_algorithm="EAGLE3",
        speculative_draft_model_path="drafter",
        quantization="fp8",
        speculative_draft_model_quantization="unquant",
        pp_size=1,
        dtype="auto",
    )
    assert ServerArguments.from_sglang(raw, {}).draft_quantization == "unquant"
    resolved = SimpleNamespace(
        **{**vars(raw), "speculative_draft_model_quantization": None},
        tokenizer_path="kimi",
        served_model_name="kimi",
        random_seed=7,
    )
    assert ServerArguments.from_sglang(resolved, {}).draft_quantization == "unquant"
    inherited = SimpleNamespace(**{**vars(resolved), "speculative_draft_model_quantization": "fp8"})
    assert ServerArguments.from_sglang(inherited, {}).draft_quantization == "fp8"


def test_the_backend_that_sglang_has_chosen() -> None:
    class Record(SimpleNamespace):
        """What 0.5.19 and later keep: the user's values, and apart from them what was chosen."""

        def resolved_dict(self) -> dict[str, object]:
            return {**vars(self), "attention_backend": "trtllm_mla", "page_size": 64}

    record = Record(model_path="kimi", attention_backend=None, page_size=None)
    assert ServerArguments.from_sglang(record, {}).attention_backend is None
    record._resolution_finished = True
    arguments = ServerArguments.from_sglang(record, {})
    # Of everything else the user's own value counts.
    assert (arguments.attention_backend, arguments.page_size) == ("trtllm_mla", None)


def test_codes_to_ignore_that_nobody_has(entry_points: list[SimpleNamespace]) -> None:
    def unknown(*codes: str) -> list[str]:
        return [finding.seen for finding in unknown_codes(Settings(ignore=frozenset(codes)))]

    assert unknown() == []
    assert unknown("KE121", "KE012", "KE868") == []
    assert unknown("KE121;KE610", "KE9999", "MINE1") == ["'KE121;KE610'", "'KE9999'", "'MINE1'"]
    assert len(unknown(*map(str, range(1000)))) == 10

    def load() -> object:
        rule("MINE1", "mine", Severity.WARNING, "Theirs.", example="x")
        return Extension()

    entry_points.append(SimpleNamespace(name="theirs", load=load))
    extending.extensions.cache_clear()
    try:
        assert unknown("MINE1") == []
    finally:
        del diagnostics._RULES["MINE1"]


def test_importing_the_checks_imports_nothing_heavy() -> None:
    code = (
        "import sys, sglang_kimi_eagle.checks, sglang_kimi_eagle.drafter;"
        "heavy = {'numpy', 'torch', 'typer', 'rich', 'safetensors', 'argparse', 'asyncio', 'yaml'};"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DOCS.parent.parent)


def test_launch_without_a_drafter_on_disk() -> None:
    assert codes(None, launch=LAUNCH) == []
