"""What controls a TL without its policy: the control modes, the fallback plan, max-pressure."""
