"""A stock kernel under QEMU: recipe (what), image (fetched, built), boot.

May import nothing of net."""
