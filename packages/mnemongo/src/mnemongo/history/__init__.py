"""Chat histories: the friendly face of the store, free of any framework."""

from mnemongo.history._async import AsyncChatHistory, AsyncTurn
from mnemongo.history._sync import ChatHistory, Turn
from mnemongo.history._window import Context, TokenCounter

__all__ = ["AsyncChatHistory", "AsyncTurn", "ChatHistory", "Context", "TokenCounter", "Turn"]
