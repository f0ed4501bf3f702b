"""How experiments are asked for: points reads a suite's file, adhoc the words of a command line; reference tells what
can be written."""
