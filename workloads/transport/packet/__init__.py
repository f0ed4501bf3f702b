"""What is on the wire: wire (headers), codec (numbers), layout (which packet holds what)."""
