"""A private network for the processes of one machine: TensorFlow's servers run every graph that they receive."""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP


def enter_private_network() -> None:
    """Move this process, and all later child processes, into a network that has only a loopback interface.

    The namespace is created directly if this process may do so, else inside a user namespace.

    Source: unshare(2), user_namespaces(7), network_namespaces(7), netdevice(7). Context: a process that has one thread.

    Raises:
        OSError: the kernel allows neither.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NET) != 0:
        user, group = os.geteuid(), os.getegid()
        if libc.unshare(_NEW_USER | _NEW_NET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise OSError(
                f"--network private is not possible here (unshare: {reason}): leave it out, and close the ports of this "
                "machine to others."
            )
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/self/setgroups").write_text("deny")  # else the kernel rejects gid_map
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = bytearray(struct.pack("16sh14x", b"lo", 0))
        fcntl.ioctl(any_socket, _GET_FLAGS, request)
        (flags,) = struct.unpack_from("h", request, 16)
        struct.pack_into("h", request, 16, flags | _UP)
        fcntl.ioctl(any_socket, _SET_FLAGS, request)
