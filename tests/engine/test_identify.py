"""A dump against a running server that traces: what the story had to find out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dump_files import CAPTURED, NORM, dumped, specforge, story, texts
from engine_tools import Drafters, Engines
from sglang_kimi_eagle.cli import app
from sglang_kimi_eagle.tracing.request import VARIABLE, TraceRequest
from tiny_models.paths import LLAMA

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_layer")]


def identify(*arguments: object) -> tuple[int, Any, set[str]]:
    result = CliRunner().invoke(app, ["identify", *map(str, arguments), "--json"])
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    content = json.loads(result.stdout)
    return result.exit_code, content, {finding["code"] for finding in content["findings"]}


def names(content: Any) -> dict[str, str]:
    return {tensor["name"]: tensor["is"] for tensor in content["tensors"]}


@pytest.mark.parametrize(
    ("release", "dtype"), [("0.5.9", "float32"), ("0.5.23", "float32"), ("0.5.23", "bfloat16")]
)
def test_a_dump_is_identified_by_a_running_server(
    engines: Engines, drafters: Drafters, release: str, dtype: str, tmp_path: Path
) -> None:
    (tmp_path / "dump").mkdir()
    for number, tokens in enumerate(texts()):
        specforge(tmp_path / "dump" / f"data_{number}.ckpt", dumped(tokens))
    story(tmp_path / "story.pt", dumped(texts()[0]))
    specforge(tmp_path / "other.ckpt", dumped(texts()[0], seed=1))
    request = TraceRequest(tmp_path / "trace", states=None)
    # As the drafter of the story was served: with its ids, and nothing that says what they mean.
    draft = drafters.shipped(LLAMA)
    environ = {VARIABLE: request.encode()}
    args = ("--dtype", dtype)
    with engines.server(release, draft, environ=environ, args=args) as server:
        status, content, codes = identify(
            tmp_path / "dump", "--trace", request.folder, "--server", server.base_url
        )
    assert status == 0, codes
    aux = {f"aux_hidden_state[{i}]": f"h[{k}]" for i, k in enumerate(CAPTURED)}
    assert names(content) == {"hidden_state": NORM, **aux}
    assert content["samples"] == len(texts())
    verdict = content["verdict"]
    assert verdict["states"] == [3, 5, 7]
    assert verdict["ids"]["layer_output"] == [2, 4, 6]
    (stock,) = [group["ids"] for group in verdict["stock_sglang"] if release in group["sglang"]]
    assert stock == ([2, 4, 6] if release == "0.5.9" else [3, 5, 7])
    # 0.5.9 happens to feed what was dumped; a current release does not.
    assert ("KE829" in codes) == (release != "0.5.9")

    status, content, codes = identify(tmp_path / "story.pt", "--trace", request.folder)
    assert status == 0, codes
    assert list(names(content).values()) == [*aux.values(), NORM]

    status, content, codes = identify(tmp_path / "other.ckpt", "--trace", request.folder)
    assert status == 3 and "KE824" in codes
    assert set(names(content).values()) == {None}
