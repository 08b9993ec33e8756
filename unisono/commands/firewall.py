"""The rules that let only the members of a cluster reach TensorFlow's servers; `docs/deploy` holds the same as files."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping, Sequence

from ..distribute.workers.addresses import split_address
from ..distribute.workers.cluster import ClusterError, read_cluster
from .listeners import reachable_listeners

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
    policy = f"\n# ----- on Kubernetes, in place of it -----\n{NETWORK_POLICY}"
    return nftables(ports or EXAMPLE_PORTS, peers or EXAMPLE_PEERS) + policy


def _resolved(hosts: Sequence[str]) -> Iterable[str]:
    """The addresses of hosts, without those that no name server knows."""
    for host in hosts:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            continue
        yield from (str(info[4][0]).partition("%")[0] for info in found)
