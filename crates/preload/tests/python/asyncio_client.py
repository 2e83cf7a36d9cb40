"""asyncio: fifty connections at once, half-close, refusals, a connect that is given up. Arguments: URL, file, echo, nobody."""

import asyncio
import socket
import sys

_, _, echo, nobody = sys.argv[1:]


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


async def talk(i):
    reader, writer = await asyncio.open_connection(*address(echo))
    assert writer.get_extra_info("peername") == address(echo)
    sent = bytes([i]) * 100_003
    writer.write(sent)
    writer.write_eof()
    assert await reader.read() == sent
    writer.close()
    await writer.wait_closed()


async def refused():
    try:
        await asyncio.open_connection(*address(nobody))
    except ConnectionRefusedError:
        return
    sys.exit("nobody answered")


async def given_up():
    task = asyncio.ensure_future(asyncio.open_connection(*address(echo)))
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass


async def by_socket():
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, address(echo))
        await loop.sock_sendall(sock, b"hello")
        assert await loop.sock_recv(sock, 5) == b"hello"


async def main():
    await asyncio.gather(*(talk(i) for i in range(50)), *(refused() for _ in range(10)), given_up(), by_socket())


asyncio.run(main())
print("ok")
