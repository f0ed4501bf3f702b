"""bpf(2) without clang or libbpf: an assembler and the system call."""
