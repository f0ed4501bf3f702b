"""What a strategy speaks through: genuine (packets that cross a network), simulated (a generator in this process)."""
