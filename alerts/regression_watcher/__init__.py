"""The search for regressions at work: it reads the store minute by minute, keeps what it learnt, and says what it found."""
