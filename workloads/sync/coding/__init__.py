"""What happens to numbers on their way: a coding is a Channel around a Channel, so that any strategy can use it.

A user's own is named by its import path: workload.options.coding = ["my_module:Mine"]."""
