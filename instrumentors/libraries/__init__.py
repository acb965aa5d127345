"""The instrumented libraries: one module or package each, plus what several of them share."""
