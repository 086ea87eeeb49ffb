"""The neutral message, its entry, and the ADK event every framework can read.

``to_event`` and ``from_event`` work on plain dicts. An event holds what JSON can; where reading it back
would not give the equal message, the entry keeps the exact fields beside it, as ``native``.
"""

from mnemongo.messages import _entry as _entry  # loaded with the package, for Message imports it late
from mnemongo.messages._event import from_event, to_event
from mnemongo.messages._message import Message, Role, ToolCall

__all__ = ["Message", "Role", "ToolCall", "from_event", "to_event"]
