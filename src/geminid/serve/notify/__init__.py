"""Notifications: what happened to jobs, sent by mail, to a webhook or to a chat."""
