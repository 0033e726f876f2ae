"""EAGLE-3 speculative decoding for Kimi-K2.5 on stock SGLang."""

__version__ = "0.1.0"
