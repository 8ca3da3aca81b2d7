"""Diffusion pipelines: recognised here; README.md says what is served."""
