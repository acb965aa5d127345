"""Slack: an incoming webhook, or a bot token for one updated message per incident."""
