"""The kernel's words: qdiscs and classes (kinds, shaping), hooks (hook, oversize), offloads, what it answers (rtnl,
look).

May import: net.host, net.bpf."""
