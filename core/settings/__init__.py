"""Settings: the list of all environment variables and options, pydantic models for values, and YAML files with line numbers."""
