"""Prints what the programs in its network namespace try to reach, and leads them nowhere.

Run it with the capabilities NET_ADMIN and NET_RAW in a container without network, which others then share. It makes
every address one of the loopback's: the kernel refuses connections, and each packet is seen here. Names get addresses
of their own, so that what follows a question for one is seen too.
"""

import socket
import struct
import sys
import threading

RESOLVER = "192.0.2.53"
"""Where /etc/resolv.conf sends questions."""
NAMED = struct.unpack("!I", socket.inet_aton("198.18.0.0"))[0]
TCP, UDP, ICMP = 6, 17, 1
OUTGOING = 4
names: list[str] = []
said: set[str] = set()


def say(line: str) -> None:
    """Print a line once."""
    if line not in said:
        said.add(line)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def route_everything_here() -> None:
    """Add what `ip route add local default dev lo src 127.0.0.1` adds."""
    attributes = struct.pack("=HHI", 8, 4, socket.if_nametoindex("lo"))  # RTA_OIF
    attributes += struct.pack("=HH", 8, 7) + socket.inet_aton("127.0.0.1")  # RTA_PREFSRC
    # RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_HOST, RTN_LOCAL
    route = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 255, 4, 254, 2, 0) + attributes
    header = struct.pack("=IHHII", 16 + len(route), 24, 0x0405, 1, 0)  # RTM_NEWROUTE; create, with an answer
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as netlink:
        netlink.send(header + route)
        error = -struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    if error:
        raise OSError(error, "the route cannot be added")


def answer_names(sockets: socket.socket) -> None:
    """Answer every question for an IPv4 address; any other with nothing."""
    while True:
        question, asker = sockets.recvfrom(4096)
        labels, place = [], 12
        while question[place]:
            labels.append(question[place + 1 : place + 1 + question[place]].decode("ascii", "replace"))
            place += 1 + question[place]
        name, kind = ".".join(labels).lower(), struct.unpack_from("!H", question, place + 1)[0]
        say(f"name {name}")
        if name not in names:
            names.append(name)
        address = struct.pack("!HHHIHI", 0xC00C, 1, 1, 60, 4, NAMED + names.index(name)) if kind == 1 else b""
        head = question[:2] + struct.pack("!5H", 0x8180, 1, 1 if address else 0, 0, 0)
        sockets.sendto(head + question[12 : place + 5] + address, asker)


def reached(packet: bytes) -> str:
    """Return whom a packet is for; empty if it stays in the container or goes on with a conversation."""
    if packet[0] >> 4 != 4:
        return ""
    protocol, address, transport = packet[9], socket.inet_ntoa(packet[16:20]), packet[(packet[0] & 15) * 4 :]
    if address.startswith("127.") or protocol == ICMP:
        return ""
    port = struct.unpack_from("!H", transport, 2)[0] if protocol in {TCP, UDP} else 0
    if (address, port) == (RESOLVER, 53) or (protocol == TCP and transport[13] & 0x12 != 2):
        return ""
    number = struct.unpack("!I", packet[16:20])[0] - NAMED
    return f"{names[number] if 0 <= number < len(names) else address}:{port}"


def main() -> None:
    """Watch until killed."""
    route_everything_here()
    resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    resolver.bind((RESOLVER, 53))
    threading.Thread(target=answer_names, args=(resolver,), daemon=True).start()
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    packets.bind(("lo", 3))
    say("ready")
    while True:
        packet, (_, _, direction, *_) = packets.recvfrom(65536)
        if direction == OUTGOING and (whom := reached(packet)):
            say(f"reached {whom}")


if __name__ == "__main__":
    main()
