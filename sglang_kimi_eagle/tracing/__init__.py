"""What a running SGLang captures and feeds its draft model, written down."""
