"""ebpf, and a process that holds packets back where the kernel can't."""
