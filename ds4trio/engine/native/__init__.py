"""Kernels for CPUs: written in Python, compiled by Numba for the processor they run on."""
