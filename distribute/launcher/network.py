"""A private network for the processes of one machine, so that no other machine reaches TensorFlow's servers."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
# A network namespace directly where this process may create one, else one inside of a user namespace.
_TRIED = "net", "user"

NO_NAME = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Failed to resolve",
)
"""Output of programs that tried to reach another machine and could not."""


def enter_private_network() -> None:
    """Moves this process, and all later child processes, into a network with a loopback interface alone.

    These servers execute every graph that they receive, and listen on all interfaces. A namespace with only a loopback
    interface makes them unreachable for other machines and users, and blocks all connections to the outside.

    Where the kernel does not allow it, an OSError says what was tried, and the process has not moved.

    Source: unshare(2), user_namespaces(7), network_namespaces(7), netdevice(7). Context: a process that has one thread.
    """
    answer, say = os.pipe()
    trial = os.fork()  # a process cannot leave a namespace again
    if trial == 0:
        try:
            _enter()
        except OSError as error:
            os.write(say, str(error).encode())
        finally:
            os._exit(0)
    os.close(say)
    with os.fdopen(answer) as pipe:
        failure = pipe.read()
    _, status = os.waitpid(trial, 0)
    if failure or status:
        raise OSError(failure or "the process that tried it died")
    _enter()


def choose_network(wanted: str) -> tuple[bool, str]:
    """Enters a private network if `wanted` is "own" and not "host"; whether it did, and one sentence about it."""
    if wanted == "host":
        return False, ""
    try:
        enter_private_network()
    except OSError as error:
        return False, (
            f"the processes could not be given a private network ({error}): TensorFlow's servers, which execute every graph "
            "they receive, can be reached from other machines unless a firewall prevents it (`ss -ltnp` lists them); "
            "pass --network host if this is intended"
        )
    return True, (
        "the processes have a private network: nothing outside can reach them, and they can reach nothing outside (no "
        "downloads, no logging services); --network host gives them the network of this machine"
    )


def _enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if "net" not in _TRIED or libc.unshare(_NEW_NET) != 0:
        user, group = os.geteuid(), os.getegid()
        if libc.unshare(_NEW_USER | _NEW_NET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"unshare: {os.strerror(number)}")
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/self/setgroups").write_text("deny")  # else the kernel rejects gid_map
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _bring_up_loopback()


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = bytearray(struct.pack("16sh14x", b"lo", 0))
        fcntl.ioctl(any_socket, _GET_FLAGS, request)
        (flags,) = struct.unpack_from("h", request, 16)
        struct.pack_into("h", request, 16, flags | _UP)
        fcntl.ioctl(any_socket, _SET_FLAGS, request)
