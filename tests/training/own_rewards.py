"""Rewards that tests name as module:function."""

TEXT = "no function"


def halting(tl):
    return -sum(tl.halting(lane) for lane in tl.lanes)


def nothing(tl):
    return "nothing"
