"""What mnemongo does, as plans: they decide everything and do no I/O.

Each public function of these modules returns an ``Operation``, to be given to ``Store.run``,
``await AsyncStore.run`` or ``ModelStore.run``.
"""

from mnemongo.plans import entries, leases, retention, sessions, setup, state

__all__ = ["entries", "leases", "retention", "sessions", "setup", "state"]
