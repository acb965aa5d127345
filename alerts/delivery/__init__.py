"""Delivery of notifications: messages, channels, and an outbox that sends each message at least once."""
