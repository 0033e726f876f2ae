"""Python's own start-up module: readies each process of the engine, before SGLang loads."""

import importlib
import os

from redirections import (
    amx_backend,
    kimi_k3,
    lifetime,
    qwen_vl,
    recorder,
    speculation,
    torch_cuda,
    triton_attention,
    triton_indices,
)

if "CPU_ENGINE_PARENT" in os.environ:
    lifetime.end_with_parent(int(os.environ["CPU_ENGINE_PARENT"]))
torch_cuda.register()
kimi_k3.register()
if os.environ.get("TRITON_INTERPRET") == "1":
    qwen_vl.register()
    speculation.register()
    triton_attention.register()
    triton_indices.register()
else:
    amx_backend.register()
if "CPU_ENGINE_RECORDS" in os.environ:
    recorder.register()
for name in filter(None, os.environ.get("CPU_ENGINE_PROBES", "").split(",")):
    importlib.import_module(f"probes.{name}").register()
