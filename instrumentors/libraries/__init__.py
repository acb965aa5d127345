"""Instrumented libraries: one module or package each, and modules that are shared by several of them."""
