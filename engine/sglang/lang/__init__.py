"""The frontend language: programs that call a model, run in the user's process, over HTTP."""
