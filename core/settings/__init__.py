"""Settings: the list of all environment variables and options, value parsing, and YAML files with line numbers."""
