"""What is replaced inside SGLang's processes because there is no GPU, by upstream file.

Nothing here is about the models or the wiring of the drafter.
"""
