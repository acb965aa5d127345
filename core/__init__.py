"""What the agent and the server must spell alike: stages, names, the histogram, configuration, errors."""
