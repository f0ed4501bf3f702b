"""NOT GENUINE, AND LABELLED SO: no_network answers for a network that is not there, rules are what the workload draws.

May import: net, proof, spec, contract, errors."""
