"""Servers of this machine that other machines can reach, and the firewall rules that prevent it.

The servers are found in /proc without any privilege (Linux; elsewhere none). `docs/deploy` holds the rules as files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...distribute.workers.addresses import split_address
from ...distribute.workers.cluster import ClusterError, read_cluster
from .findings import Finding

_LISTEN = "0A"
EXAMPLE_PORTS, EXAMPLE_PEERS = (2222,), ("10.0.0.11", "10.0.0.12")

_NFTABLES = """\
# Only the machines of the cluster reach TensorFlow's servers, which run whatever they are sent.
#
#   nft -f nftables.conf        on every machine; `nft delete table inet unisono` removes it
table inet unisono {{
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname "lo" accept
{accept}        tcp dport {{ {ports} }} drop
    }}
}}
"""

NETWORK_POLICY = """\
# Only the pods of this job reach TensorFlow's servers, which run whatever they are sent. Network policies need a network
# plugin that enforces them (Calico and Cilium do).
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: train
spec:
  podSelector:
    matchLabels:
      job-name: train
  policyTypes: [Ingress]
  ingress:
    - from:
        - podSelector:
            matchLabels:
              job-name: train
"""


@dataclasses.dataclass(frozen=True, order=True)
class Listener:
    """A port on which something listens.

    Attributes:
        port: int.
        address: the local address; "0.0.0.0" and "::" are all of them.
        pid: int or None; the process, where this user may know it.
        command: what it runs; "" where unknown.
        runs_tensorflow: whether TensorFlow is loaded in it.
    """

    port: int
    address: str
    pid: int | None = None
    command: str = ""
    runs_tensorflow: bool = False


def reachable_listeners(proc: Path = Path("/proc")) -> list[Listener]:
    """Every TCP port that is open on more than the loopback interface, in order."""
    found = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                words = line.split()
                address, _, port = words[1].rpartition(":")
                if words[3] == _LISTEN:
                    where = _address(address)
                    if not (getattr(where, "ipv4_mapped", None) or where).is_loopback:
                        found[words[9]] = (int(port, 16), str(where))
    owners = dict(_owners(proc, set(found)))
    listeners = set()
    for inode, (port, address) in found.items():
        pid = owners.get(inode)
        listeners.add(Listener(port, address, pid, _command(proc, pid), _runs_tensorflow(proc, pid)))
    return sorted(listeners, key=lambda each: (each.port, each.address, each.pid or 0))


def listening(listeners: list[Listener] | None = None, interfaces: list[str] | None = None) -> list[Finding]:
    """A finding for each server that other machines can reach: a problem where it is TensorFlow's.

    Args:
        listeners: None: those of this machine.
        interfaces: the names of the network interfaces; None: those of this machine.
    """
    listeners = reachable_listeners() if listeners is None else listeners
    interfaces = [name for _, name in socket.if_nameindex()] if interfaces is None else interfaces
    if all(name == "lo" for name in interfaces):
        return [
            Finding("listening", "other machines", "reach nothing here: there is only a loopback interface")
        ]
    findings = [
        Finding("listening", f"port {each.port}", _shown(each), problem=_problem(each))
        for each in sorted(listeners, key=lambda each: not each.runs_tensorflow)
    ]
    return findings or [Finding("listening", "other machines", "reach no server here")]


def _problem(listener: Listener) -> str:
    if not listener.runs_tensorflow:
        return ""
    return (
        f"TensorFlow's servers run any graph they receive, and this one (process {listener.pid}) can be reached from other "
        "machines: start it with `python -m unisono launch`, or close the port to all but the cluster; "
        "`python -m unisono doctor --firewall` prints the rules."
    )


def _shown(listener: Listener) -> str:
    where = "all interfaces" if listener.address in ("0.0.0.0", "::") else listener.address
    if listener.pid is None:
        return f"open on {where}, by a process of another user"
    return f"open on {where}, by process {listener.pid} ({listener.command})"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel writes it: 32-bit words in the machine's byte order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words))


def _owners(proc: Path, inodes: set[str]) -> Iterator[tuple[str, int]]:
    """The processes that hold these sockets, as far as this user may look into them."""
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()) if proc.is_dir() else ():
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(proc / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor.path))
                    if match and match[1] in inodes:
                        yield match[1], pid


def _command(proc: Path, pid: int | None) -> str:
    if pid is None:
        return ""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(words).strip())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _runs_tensorflow(proc: Path, pid: int | None) -> bool:
    try:
        return pid is not None and "libtensorflow" in (proc / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return False


def nftables(ports: Iterable[int], peers: Iterable[str]) -> str:
    """The rules of one machine for nftables.

    Args:
        ports: those on which TensorFlow listens.
        peers: IP addresses of the machines that may connect.
    """
    shown = ", ".join(map(str, sorted(set(ports))))
    accept = ""
    addresses = sorted({ipaddress.ip_address(peer) for peer in peers}, key=lambda each: (each.version, each))
    for version, word in ((4, "ip"), (6, "ip6")):
        known = ", ".join(str(each) for each in addresses if each.version == version)
        if known:
            accept += f"        tcp dport {{ {shown} }} {word} saddr {{ {known} }} accept\n"
    return _NFTABLES.format(accept=accept, ports=shown)


def rules(environ: Mapping[str, str] | None = None) -> str:
    """The rules for the cluster in the environment and the servers that run here; an example where there are none."""
    environ = os.environ if environ is None else environ
    ports = {each.port for each in reachable_listeners() if each.runs_tensorflow}
    peers: set[str] = set()
    try:
        cluster = read_cluster(environ)
    except ClusterError:
        cluster = None
    if cluster is not None:
        ports.add(split_address(cluster.address)[1])
        hosts = [split_address(address)[0] for each in cluster.jobs.values() for address in each]
        peers = set(_resolved(hosts))
    policy = f"\n# ----- on Kubernetes, instead -----\n{NETWORK_POLICY}"
    return nftables(ports or EXAMPLE_PORTS, peers or EXAMPLE_PEERS) + policy


def _resolved(hosts: Sequence[str]) -> Iterable[str]:
    """The addresses of hosts, without those that no name server knows."""
    for host in hosts:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            continue
        yield from (str(info[4][0]).partition("%")[0] for info in found)
