"""A running server, watched over HTTP: what it accepts, and whether that looks like its wiring."""
