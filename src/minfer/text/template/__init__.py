"""Chat templates: a sandbox for them, what they keep of messages, and well-known ones by name."""
