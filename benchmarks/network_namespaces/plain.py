"""One TCP connection with nothing over it: `plain.py ADDRESS BYTES RANK`; rank 0 receives and prints the rate [B/s].

Timed from the first eighth to the last byte, so that the start of the connection and a full token bucket are outside.
"""

import socket
import sys
import time


def receive(address: str, size: int) -> float:
    with socket.create_server((address, 29400)) as listener:
        connection, _ = listener.accept()
    buffer, done, begin, before = bytearray(1 << 20), 0, 0.0, 0
    with connection:
        while done < size:
            got = connection.recv_into(buffer)
            if not got:
                raise RuntimeError(f"{done} of {size} bytes came")
            done += got
            if not begin and done >= size / 8:
                begin, before = time.perf_counter(), done
        return (done - before) / (time.perf_counter() - begin)


def send(address: str, size: int) -> None:
    end = time.monotonic() + 20.0
    while True:
        try:
            connection = socket.create_connection((address, 29400), timeout=20.0)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    piece = bytes(1 << 18)
    with connection:
        for at in range(0, size, len(piece)):
            connection.sendall(piece[: size - at])


if __name__ == "__main__":
    if sys.argv[3] == "0":
        print(receive(sys.argv[1], int(sys.argv[2])))
    else:
        send(sys.argv[1], int(sys.argv[2]))
