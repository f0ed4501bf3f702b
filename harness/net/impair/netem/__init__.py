"""netem, on an IFB behind the hook."""
