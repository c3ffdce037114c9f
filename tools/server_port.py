"""A port on loopback for a server that is told its port, and keeps it when it is started again."""
import random
import socket

LOWEST, HIGHEST = 12000, 30000  # below those that Linux gives to outgoing connections


def server_port():
    """One that nobody has; others may take it before the server does."""
    while True:
        port = random.SystemRandom().randrange(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
