"""A network of their own for the processes of one machine, so that no other machine reaches TensorFlow's servers.

These servers run whatever they are sent and listen on all interfaces. A network namespace that has only a loopback
interface has none on which another machine, or another user of this one, could reach them. Nothing outside is reached
from it either.

Source: unshare(2), setns(2), user_namespaces(7), network_namespaces(7), netdevice(7). Linux; no privilege is needed where
the kernel lets users make namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
# A network namespace of its own right, then one that a user namespace gives the right to.
_TRIED = "net", "user"

NO_NAME = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Failed to resolve",
)
"""What programs print that want to reach another machine and cannot."""


class PrivateNetwork:
    """A network namespace with a loopback interface. It lasts as long as a process is in it, or this object is open.

    Raises:
        OSError: the kernel does not allow it; the message says what was tried.
    """

    def __init__(self) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError(f"{sys.platform} has no network namespaces")
        told, tell = os.pipe()
        wait, leave = os.pipe()
        pid = os.fork()
        if pid == 0:
            _hold(tell, wait, leave)
        os.close(tell)
        os.close(wait)
        try:
            answer = os.read(told, 1 << 10).decode()
            if not answer.startswith("ready"):
                raise OSError(answer or "the process that was to make it died")
            kinds = ("user", "net") if answer == "ready user" else ("net",)
            self._namespaces = [
                os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds
            ]
        finally:
            os.close(told)
            os.close(leave)  # the namespaces last as long as these descriptors
            os.waitpid(pid, 0)

    def enter(self) -> None:
        """Moves this process into it. Context: a child that has one thread, before it runs its program."""
        libc = ctypes.CDLL(None, use_errno=True)
        for namespace in self._namespaces:
            _checked(libc.setns(namespace, 0), "setns")

    def close(self) -> None:
        """Lets go of it."""
        while self._namespaces:
            os.close(self._namespaces.pop())


def before_program(network: PrivateNetwork | None, *others: Callable[[], Any]) -> Callable[[], None]:
    """What a child does before it runs its program: it enters the network, then calls `others`.

    In this order: a process that enters a user namespace forgets which signal it gets when its parent dies.
    """

    def prepare() -> None:
        if network is not None:
            network.enter()
        for other in others:
            other()

    return prepare


def make_network(wanted: str) -> tuple[PrivateNetwork | None, str]:
    """The network for the processes, and one sentence about it.

    Args:
        wanted: "own" or "host".

    Returns:
        None where the processes share the network of this machine.
    """
    if wanted == "host":
        return None, ""
    try:
        network = PrivateNetwork()
    except OSError as error:
        return None, (
            f"the processes could not be given a network of their own ({error}): TensorFlow's servers, which run whatever "
            "they are sent, can be reached from other machines unless a firewall prevents it; see `python -m unisono "
            "doctor`, or give --network host to say that this is intended"
        )
    return network, (
        "the processes have a network of their own: nothing outside reaches them, and they reach nothing outside (no "
        "downloads, no logging services); --network host gives them that of this machine"
    )


def _hold(tell: int, wait: int, leave: int) -> None:
    """The life of the process that makes the namespaces: until their descriptors are open elsewhere."""
    os.close(leave)
    try:
        answer = f"ready {_make()}"
    except OSError as error:
        answer = str(error)
    with contextlib.suppress(OSError):
        os.write(tell, answer.encode())
        os.read(wait, 1)
    os._exit(0)


def _make() -> str:
    """Makes the namespaces, of the network alone where this process may; "net" or "user"."""
    libc = ctypes.CDLL(None, use_errno=True)
    if "net" in _TRIED and libc.unshare(_NEW_NET) == 0:
        kind = "net"
    else:
        kind, user, group = "user", os.geteuid(), os.getegid()
        _checked(libc.unshare(_NEW_USER | _NEW_NET), "unshare")
        with contextlib.suppress(FileNotFoundError):
            _write("/proc/self/setgroups", "deny")  # else the next but one is refused
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _bring_up_loopback()
    return kind


def _bring_up_loopback() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = bytearray(struct.pack("16sh14x", b"lo", 0))
        fcntl.ioctl(any_socket, _GET_FLAGS, request)
        (flags,) = struct.unpack_from("h", request, 16)
        struct.pack_into("h", request, 16, flags | _UP)
        fcntl.ioctl(any_socket, _SET_FLAGS, request)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
