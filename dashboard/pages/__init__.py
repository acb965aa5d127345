"""One module a page: what is read for it and how it is laid out."""
