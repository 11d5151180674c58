"""Contracts of TLs for the tests of training."""

from protos import policy_pb2 as pb


def contract(tl, inputs, actions, kind="categorical", dialect="sumo-rl"):
    return pb.PolicyContract(
        tl=tl, observation=pb.Observation(size=inputs, dialect=dialect), action=pb.Action(kind=kind, size=actions)
    )
