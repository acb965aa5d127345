"""Reading the files people write: every value with its line, every mistake at once, and again when the file changes."""
