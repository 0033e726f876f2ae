"""Loaded by tests alone, by name in CPU_ENGINE_PROBES: they watch the engine, or emulate a GPU."""
