"""Telling people: messages, the channels they go to, and the outbox that loses none."""
