"""One signal and one TL: dialects, safety rules, fallback plans, control modes. Pure: no I/O, no clock; time is passed
in."""
