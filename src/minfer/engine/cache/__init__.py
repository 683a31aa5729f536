"""The state of sequences: which tokens are computed, and what can be taken up again."""
