import socket

from horde.local.ports import LOOPBACK, reserved_port


def test_a_reserved_port_is_given_to_nobody_who_asks_for_a_free_one() -> None:
    with reserved_port() as port:
        taken = set()
        for _ in range(200):
            with socket.socket() as other:
                other.bind((LOOPBACK, 0))
                taken.add(other.getsockname()[1])
        assert port not in taken


def test_a_program_that_reuses_addresses_can_listen_on_a_reserved_port() -> None:
    with reserved_port() as port, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((LOOPBACK, port))
        server.listen()
        with socket.create_connection((LOOPBACK, port), timeout=5):
            pass
