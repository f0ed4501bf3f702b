"""Offloads decide what a packet is. Senders cut to the MTU before the loss point; receivers merge again behind it.

Every segmentation variant is off on both ends of a host's link: one left on (tcp6, ecn) lets super-packets pass the
loss point, or silently disables the receiver's GRO. GRO is on at the host (after the loss point) and off at the switch.
"""

from __future__ import annotations

from pyroute2.ethtool.ioctl import IoctlEthtool, NotSupportedError

SEGMENTATION = (
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
    "tx-udp-segmentation",
    "tx-generic-segmentation",
)
HOST = {**dict.fromkeys(SEGMENTATION, False), "rx-gro": True}
PORT = {**dict.fromkeys(SEGMENTATION, False), "rx-gro": False}
CHECKSUM = ("tx-checksum-ip-generic",)


def switch(interface: str, wanted: dict[str, bool]) -> dict[str, bool]:
    """Set features of an interface of the current namespace; returns what is really in force. Names the kernel does not
    know are left out: older ones have fewer variants."""
    device = IoctlEthtool(interface)
    try:
        features = device.get_features()
        for name, on in wanted.items():
            if name in features:
                features[name] = on
        device.set_features(features)
        features = device.get_features()
        return {name: bool(features[name]) for name in wanted if name in features}
    finally:
        device.close()


def read(interface: str, names: tuple[str, ...] | None = (*SEGMENTATION, "rx-gro")) -> dict[str, bool]:
    """None: all that there are; an interface without ethtool has none."""
    device = IoctlEthtool(interface)
    try:
        features = device.get_features()
        return {name: bool(features[name]) for name in names or sorted(features.keys()) if name in features}
    except NotSupportedError:
        if names is not None:
            raise
        return {}
    finally:
        device.close()


def wrong(real: dict[str, bool], wanted: dict[str, bool]) -> list[str]:
    """Names that are not as wanted."""
    return [name for name, on in wanted.items() if name in real and real[name] != on]
