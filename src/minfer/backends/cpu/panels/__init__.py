"""How weights lie in memory: formats, and how they are packed."""
