"""Backends: how a profile is put in force. One file each; `registry` lists them."""
