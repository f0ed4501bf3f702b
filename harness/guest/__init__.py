"""A stock Debian kernel under QEMU whose root is this machine's root, read-only: netem and prio on any machine."""
