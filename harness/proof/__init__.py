"""SHOWS THAT IT WAS SO. The only scapy. All but probe is pure, all the way down.

Before a run: probe sends, prove joins what was asked, read back, counted and missed (evidence, significance,
statistics). After it: judge makes a verdict of what a watch saw (watched), column by column (judge_fault, judge_rules,
pace). covers says by what each condition is judged on which backend.

May import: net, spec, contract, errors."""
