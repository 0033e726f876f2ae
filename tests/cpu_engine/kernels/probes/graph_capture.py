"""Runs SGLang's own CUDA graph runner up to the point where it would capture graphs.

``model_executor/cuda_graph_runner.py``, ``CudaGraphRunner.__init__`` (0.5.9 to 0.5.10.post1): the
capture itself, which needs a GPU, is replaced by a note of what the model would capture then.
The note goes to the JSON file CPU_ENGINE_GRAPH_NOTE.
"""

import json
import os
from typing import Any

from redirections.after_import import after_import


def register() -> None:
    after_import("sglang.srt.model_executor.model_runner", _build_graph_runner)


def _build_graph_runner(module: Any) -> None:
    original = module.ModelRunner.init_device_graphs

    def init_device_graphs(runner: Any) -> None:
        if not runner.is_draft_worker:
            from sglang.srt.model_executor import cuda_graph_runner

            cuda_graph_runner.CudaGraphRunner.capture = _note
            cuda_graph_runner.CudaGraphRunner(runner)
        original(runner)

    module.ModelRunner.init_device_graphs = init_device_graphs


def _note(graph_runner: Any) -> None:
    model = graph_runner.model_runner.model.language_model.model
    with open(os.environ["CPU_ENGINE_GRAPH_NOTE"], "w") as file:
        json.dump(model.layers_to_capture, file)
