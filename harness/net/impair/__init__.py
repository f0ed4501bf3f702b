"""How a profile is put in force. One file or folder for each backend, with its Kind; registry lists and chooses.

May import: net.tc, net.bpf, net.host, net.counters, net.kernel."""
