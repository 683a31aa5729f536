"""Chat templates.

`chat_template` renders one, within the bounds that `sandbox`, `filters`, `prices` and `budget` set. `content` finds out
in which form it reads what messages say, and `losses` that it left nothing out. `given` are templates in place of the
file's own, and `named/` holds the well-known ones.
"""
