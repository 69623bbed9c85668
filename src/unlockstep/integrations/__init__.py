"""unlockstep in training code that exists already: a PyTorch loop (``torch_loop``).

Exports nothing, so that each integration needs only its own framework.
"""
