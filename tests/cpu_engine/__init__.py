"""Runs the SGLang releases as published, on CPU, for the tests."""
