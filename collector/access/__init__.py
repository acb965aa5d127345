"""Who may send: tokens, certificates, rates."""
