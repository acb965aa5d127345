"""One module for each library of the user's: which of its calls are which stage."""
