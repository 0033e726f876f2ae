"""Training dumps: read whatever wrote them, and say which hidden states they hold."""
