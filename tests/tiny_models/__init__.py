"""Tiny Kimi-K2.5 target and EAGLE-3 drafters: twins, training, export."""
