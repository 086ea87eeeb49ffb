"""What every test may use: the server and the stores of ``fix_mongod``."""

from __future__ import annotations

pytest_plugins = ["fix_mongod"]
