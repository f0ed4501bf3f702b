"""Programs for the kernel: assembler (eBPF), classic (cBPF), syscalls.

May import nothing of net."""
