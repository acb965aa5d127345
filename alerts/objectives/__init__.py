"""Service level objectives and the file that defines them."""
