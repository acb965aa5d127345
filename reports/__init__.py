"""One run as a picture in the terminal, a page and a file."""
