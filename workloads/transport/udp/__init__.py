"""The socket: link (whom it talks to, how fast), admission (whom the kernel lets in)."""
