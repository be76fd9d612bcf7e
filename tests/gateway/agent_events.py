"""Events between tests and the agents that they run in this process."""

import threading

released = threading.Event()
"""Set by a test to let agents that block go on."""
events: list[str] = []
"""What agents note."""
