"""Calls out of the server: whom it may call, and how it makes sure that it is them."""
