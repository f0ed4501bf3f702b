"""The way of packets that are led aside: programs (code of the gate and what leads onward), gate puts them at devices,
detour makes the devices and holds the rules, netem is one kind of rules; clock is the gates' deadline and counters."""
