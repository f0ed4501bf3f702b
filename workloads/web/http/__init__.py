"""HTTP on bare sockets: a client and a server that cost little, and nginx where it is there."""
