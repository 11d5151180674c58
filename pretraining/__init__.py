"""The factory of the policy for any junction: synthetic streets, training on many streets, the gate, the selection."""
